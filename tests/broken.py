"""The oracle in the dress of the handle, and broken copies of it: a comparison must tell them apart."""

from dataclasses import replace

from tests.moves import Moves
from tests.oracle import OracleCache, OracleFull, OracleRefused
from tests.oracle import results as r
from tests.oracle.components import FULL
from tests.pair import Pair
from tests.setups import Setup


class StandIn(OracleCache):
    """The oracle takes what any caller gives; the handle must also refuse what is malformed."""

    def __init__(self, setup: Setup):
        self.__dict__ |= setup.oracle().__dict__

    @property
    def state(self) -> dict:
        return self.snapshot()

    @state.setter
    def state(self, state: dict) -> None:
        self.restore(state)

    def insert(self, tokens, slots, namespace=None, **options):
        return super().insert(tokens, slots, namespace, **options)


def standin_pair(setup: Setup, kind: type[StandIn] = StandIn) -> Pair:
    return Pair(setup, kind(setup), refused=OracleRefused, no_room=OracleFull, bits=lambda c: c.digest())


class NoTouch(StandIn):
    """A match does not refresh."""

    def match_prefix(self, tokens, namespace=None):
        clock, order = self.clock, {n.number: dict(n.access) for n in self.nodes()}
        result = super().match_prefix(tokens, namespace)
        self.clock = clock
        for node in self.nodes():
            node.access = order.get(node.number, node.access)
        return result

    def check(self):
        pass


class TouchingProbe(StandIn):
    def probe(self, tokens, namespace=None):
        path, _, _ = self._walk(namespace, self._pages(self._tokens(tokens)))
        if path:
            self._touch(path, path[-1].end)
        return super().probe(tokens, namespace)


class SplitUnlocks(StandIn):
    """The new front part of a split is not locked."""

    def _split(self, node, n):
        front = super()._split(node, n)
        front.locks = self.none()
        return front

    def check(self):
        pass


class EvictsLocked(StandIn):
    def evict(self, wanted):
        locks = [(n, n.locks) for n in self.nodes()]
        for node, _ in locks:
            node.locks = self.none()
        result = super().evict(wanted)
        for node, lock in locks:
            node.locks = lock
        return result

    def check(self):
        pass


class EvictsTooMuch(StandIn):
    def evict(self, wanted):
        return super().evict({name: n + 1 for name, n in wanted.items()})


class LeaksDuplicates(StandIn):
    """The duplicates of an insert are reported as freed, but are not."""

    def insert(self, tokens, slots, namespace=None, **options):
        result = super().insert(tokens, slots, namespace, **options)
        if self.free_slots[FULL] is not None:
            self.free_slots[FULL] = self.free_slots[FULL] - set(result.freed[FULL])
        return result


class CountsTwice(StandIn):
    """A request counts on what it has inserted before."""

    def insert(self, tokens, slots, namespace=None, **options):
        honest = options.get("inserted_len", 0)
        return super().insert(tokens, slots, namespace, **options | {"inserted_len": min(honest, 0)})


class TakesAnySlot(StandIn):
    def _check_held(self, handed):
        pass

    def check(self):
        pass


class UnlocksTwice(StandIn):
    def unlock(self, receipt):
        if receipt.number in self.receipts:
            super().unlock(receipt)


class MixesNamespaces(StandIn):
    """("ab", "c") and ("a", "bc") are one, and so are 1 and "1", and None and ""."""

    def _walk(self, namespace, key):
        wanted, spaces = self._flat(namespace), [n.namespace for n in self.nodes()]
        return super()._walk(next((s for s in spaces if self._flat(s) == wanted), namespace), key)

    @staticmethod
    def _flat(namespace):
        parts = namespace if isinstance(namespace, tuple) else (namespace,)
        return "".join(str(p if not isinstance(p, bytes) else p.decode()) for p in parts if p is not None)


class RoundsUp(StandIn):
    """A page is matched although its last token differs."""

    def probe(self, tokens, namespace=None):
        result = super().probe(tokens, namespace)
        return replace(result, device_len=result.device_len + (result.stop == r.DIVERGED))


class GrowsWhenFull(StandIn):
    """A refused insert has split already."""

    def insert(self, tokens, slots, namespace=None, **options):
        try:
            return super().insert(tokens, slots, namespace, **options)
        except OracleFull:
            _, part, _ = self._walk(namespace, self._pages(self._tokens(tokens)))
            if part:
                self._split(*part)
            raise

    def check(self):
        pass


class SplitRefreshes(StandIn):
    """A split counts as an access."""

    def _split(self, node, n):
        front = super()._split(node, n)
        self._touch([front, node], node.end)
        return front


class NewChild(StandIn):
    """A split gives the rear part the new identity."""

    def _split(self, node, n):
        front = super()._split(node, n)
        front.number, node.number = node.number, front.number
        return front


class LeavesStay(StandIn):
    """A parent that has become a leaf is evicted only by a later call."""

    def evict(self, wanted):
        leaves = [n for n in self.nodes() if not n.children]
        inner = [n for n in self.nodes() if n.children]
        kept = [(n, dict(n.locks)) for n in inner]
        for node in inner:
            node.locks[FULL] += 1
        result = super().evict(wanted)
        for node, locks in kept:
            node.locks = locks
        assert leaves or not result.freed[FULL]
        return result


class KeepsClock(StandIn):
    """Rolling back leaves the clock where it was, so that the same call twice ends differently."""

    def restore(self, snapshot):
        clock = self.clock
        super().restore(snapshot)
        self.clock = clock


BROKEN = [
    NoTouch,
    TouchingProbe,
    SplitUnlocks,
    EvictsLocked,
    EvictsTooMuch,
    LeaksDuplicates,
    CountsTwice,
    TakesAnySlot,
    UnlocksTwice,
    MixesNamespaces,
    RoundsUp,
    GrowsWhenFull,
    SplitRefreshes,
    NewChild,
    LeavesStay,
    KeepsClock,
]

MOVES = {name: kinds for name, kinds in Moves.signatures().items() if name != "malformed"}
