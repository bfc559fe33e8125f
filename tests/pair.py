"""A handle and the oracle, driven together: each call goes to both, and any difference is raised at once."""

from collections import deque

import numpy as np

from tests.oracle import OracleFull, OracleRefused, tagged
from tests.oracle.components import MAMBA

OK, REFUSED, NO_ROOM = "ok", "refused", "full"


class Difference(AssertionError):
    """The handle and the oracle do not agree."""


def same(what: str, got, want) -> None:
    if got != want:
        raise Difference(f"{what}: got {got!r}, want {want!r}")


def ints(slots) -> list[int]:
    return [int(s) for s in np.asarray(slots).reshape(-1)]


def by_name(slots: dict) -> dict[str, list[int]]:
    return {name: ints(of) for name, of in slots.items()}


def in_order(slots: dict) -> dict[str, list[int]]:
    return {name: sorted(ints(of)) for name, of in slots.items()}


def state_bits(cache) -> list[bytes]:
    """The state as the next transition finds it, but each table's spare row, where idle writes go."""
    import jax

    from urc.tables.packed import Table

    leaves = jax.tree.leaves(cache.state.drained(), is_leaf=lambda x: isinstance(x, Table))
    arrays = [leaf.data[: leaf.spare] if isinstance(leaf, Table) else leaf for leaf in leaves]
    return [np.asarray(array).tobytes() for array in arrays]


def errors() -> tuple[type, type]:
    import urc

    return urc.InvalidInput, urc.CacheFull


class Pair:
    """Per component, `held`: the slots that requests have; `spare`: those of the caller's allocator, if he has one.

    Nodes, receipts and sessions are named by the oracle's numbers; `handles` maps nodes to what the cache calls them.
    """

    def __init__(self, setup, cache, *, refused: type, no_room: type, bits=state_bits):
        self.setup, self.cache, self.bits = setup, cache, bits
        self.refused_error, self.no_room_error = refused, no_room
        self.calls = 0
        self.oracle = setup.oracle()
        self.reset()

    def reset(self) -> None:
        self.cache.reset()
        self.oracle.reset()
        self.handles = {0: 0}  # oracle's node -> handle
        self.held = {name: [] for name in self.setup.names}
        self.spare = {name: deque(range(self.setup.pools[name])) for name in self.setup.callers}
        self.receipts = []  # pairs of receipts that are out: the cache's, the oracle's
        self.sessions = []  # pairs of numbers, open and closed
        self._forget()
        self.calls += 1

    def _forget(self) -> None:
        self.spent = []  # pairs of receipts that were given back
        self.stale = []  # handles of nodes that are gone

    def snapshot(self) -> tuple:
        held, spare = ({name: list(of) for name, of in slots.items()} for slots in (self.held, self.spare))
        mine = (dict(self.handles), held, spare, list(self.receipts), list(self.sessions))
        return self.cache.state, self.oracle.snapshot(), mine

    def restore(self, snapshot: tuple) -> None:
        state, oracle, (handles, held, spare, receipts, sessions) = snapshot
        self.cache.state = state
        self.oracle.restore(oracle)
        self.handles = dict(handles)
        self.held = {name: list(of) for name, of in held.items()}
        self.spare = {name: deque(of) for name, of in spare.items()}
        self.receipts, self.sessions = list(receipts), list(sessions)
        self._forget()  # names of that future: they may come to mean other things
        self.calls += 1

    def _both(self, of_cache, of_oracle) -> tuple:
        """Runs both sides; returns the common outcome and the two results. What fails must change no bit."""
        self.calls += 1
        want, expected = None, OK
        try:
            want = of_oracle()
        except OracleRefused:
            expected = REFUSED
        except OracleFull:
            expected = NO_ROOM
        before = None if expected == OK else self.bits(self.cache)
        got, outcome = None, OK
        try:
            got = of_cache()
        except self.refused_error as e:
            outcome, got = REFUSED, e
        except self.no_room_error as e:
            outcome, got = NO_ROOM, e
        if outcome != expected:
            raise Difference(f"the cache: {outcome} ({got!r}); the oracle: {expected} ({want!r})")
        if before is not None:
            same("the state after a refusal", self.bits(self.cache) == before, True)
        return outcome, got, want

    def _node(self, handle, number: int) -> None:
        """A node keeps its handle as long as it lives, and no two share one."""
        handle = int(handle)
        known = self.handles.setdefault(number, handle)
        same(f"handle of node {number}", handle, known)

    def _same_match(self, got, want) -> None:
        for name in ("device_len", "host_len", "full_len", "branching_len"):
            same(name, int(getattr(got, name)), getattr(want, name))
        same("stop", getattr(got.stop, "name", got.stop), want.stop)
        same("hits", {name: int(hit) for name, hit in got.hits.items()}, want.hits)
        same("slots", by_name(got.slots), want.slots)
        self._node(got.node, want.node)
        self._node(got.best_node, want.best_node)

    # The calls

    def match(self, key, space):
        _, got, want = self._both(
            lambda: self.cache.match_prefix(key, namespace=space),
            lambda: self.oracle.match_prefix(key, space),
        )
        self._same_match(got, want)
        return want

    def probe(self, key, space):
        before = self.bits(self.cache)
        _, got, want = self._both(lambda: self.cache.probe(key, namespace=space), lambda: self.oracle.probe(key, space))
        self._same_match(got, want)
        same("the state after a probe", self.bits(self.cache) == before, True)
        return want

    def match_many(self, keys, spaces):
        self._many(self.cache.match_prefixes, self.oracle.match_prefixes, keys, spaces)

    def probe_many(self, keys, spaces):
        self._many(self.cache.probes, self.oracle.probes, keys, spaces)

    def _many(self, of_cache, of_oracle, keys, spaces) -> None:
        _, got, want = self._both(
            lambda: of_cache(keys, namespaces=spaces), lambda: of_oracle(list(keys), list(spaces))
        )
        same("number of results", len(got), len(want))
        for one, other in zip(got, want, strict=True):
            self._same_match(one, other)

    def alloc(self, name: str, n: int) -> list[int] | None:
        """Takes `n` slots into `held`."""
        if name in self.spare:
            if n > len(self.spare[name]):
                return None
            slots = [self.spare[name].popleft() for _ in range(n)]
            self.held[name] += slots
            return slots
        self.calls += 1
        got = self.cache.alloc(name, n)
        slots = None if got is None else ints(got)
        free = len(self.oracle.free_slots[name])
        if (slots is None) != (n > free):
            raise Difference(f"alloc({name!r}, {n}): {slots} with {free} free")
        if slots is None:
            return None
        try:
            self.oracle.alloc(name, n, slots=slots)
        except AssertionError as e:
            raise Difference(f"alloc({name!r}, {n}): {slots}: {e}") from e
        if not self.setup.tails:
            self._whole_pages(slots)
        self.held[name] += slots
        return slots

    def _whole_pages(self, slots: list[int]) -> None:
        size = self.setup.page_size
        for page in zip(*[iter(slots)] * size, strict=True):
            same("a page of slots", page, tuple(range(page[0] // size * size, page[0] // size * size + size)))

    def _not_held(self, name: str, slots) -> None:
        gone = set(slots)
        self.held[name] = [s for s in self.held[name] if s not in gone]

    def free(self, name: str, slots: list[int]) -> str:
        outcome = OK
        if name in self.spare:
            self.spare[name] += slots
        else:
            outcome, _, _ = self._both(lambda: self.cache.free(name, slots), lambda: self.oracle.free(name, slots))
        if outcome == OK:
            self._not_held(name, slots)
        return outcome

    def insert(self, key, slots: dict, space, **options):
        """Returns the outcome and the oracle's result."""
        outcome, got, want = self._both(
            lambda: self.cache.insert(key, slots, namespace=space, **options),
            lambda: self.oracle.insert(key, slots, space, **options),
        )
        if outcome == OK:
            same("prefix_len", int(got.prefix_len), want.prefix_len)
            same("adopted", by_name(got.adopted), want.adopted)
            same("freed", self._freed(got.freed), self._freed(want.freed))
            same("existed", {name: bool(had) for name, had in got.existed.items()}, want.existed)
            self._node(got.node, want.node)
            for name in self.setup.names:
                self._not_held(name, want.adopted[name] + want.freed[name])
            self._spare(want.freed)
        return outcome, want

    @staticmethod
    def _freed(freed: dict) -> dict:
        """In the order handed in; but states that a path may not keep have no order among themselves."""
        return {name: sorted(ints(of)) if name == MAMBA else ints(of) for name, of in freed.items()}

    def _spare(self, freed: dict) -> None:
        for name in self.setup.callers:
            self.spare[name] += freed[name]

    def evict(self, targets: dict) -> None:
        _, got, want = self._both(lambda: self.cache.evict(targets), lambda: self.oracle.evict(targets))
        same("evicted", {name: int(n) for name, n in got.evicted.items()}, want.evicted)
        same("freed", in_order(got.freed), in_order(want.freed))
        self._spare(want.freed)
        alive = {0, *(node.number for node in self.oracle.nodes())}
        for number in set(self.handles) - alive:
            self.stale.append(self.handles.pop(number))

    def learn_handles(self) -> None:
        """Learns the names of the nodes that no result has named yet."""
        if len(self.handles) <= len(self.oracle.nodes()):
            self.compare_trees()

    def lock(self, number: int) -> None:
        self.learn_handles()
        handle = self.handles[number]
        _, got, want = self._both(lambda: self.cache.lock(handle), lambda: self.oracle.lock(number))
        self.receipts.append((got, want))

    def unlock(self, i: int) -> None:
        got, want = self.receipts.pop(i)
        outcome, _, _ = self._both(lambda: self.cache.unlock(got), lambda: self.oracle.unlock(want))
        same("unlock", outcome, OK)
        self.spent.append((got, want))

    def release_early(self, i: int, name: str) -> str:
        got, want = self.receipts[i]
        outcome, _, _ = self._both(
            lambda: self.cache.release_early(got, name), lambda: self.oracle.release_early(want, name)
        )
        return outcome

    # Sessions

    def open_session(self) -> str:
        outcome, got, want = self._both(self.cache.open_session, self.oracle.open_session)
        if outcome == OK:
            same("a session of its own", int(got) in [mine for mine, _ in self.sessions], False)
            self.sessions.append((int(got), want))
        return outcome

    def advance_session(self, i: int, number: int) -> None:
        self.learn_handles()
        handle = self.handles[number]
        self._session(i, lambda cache, session, node: cache.advance_session(session, node), (handle, number))

    def recede_session(self, i: int, length: int) -> None:
        self._session(i, lambda cache, session, n: cache.recede_session(session, n), (length, length))

    def close_session(self, i: int) -> None:
        self._session(i, lambda cache, session, _: cache.close_session(session), (None, None))

    def _session(self, i: int, call, arguments: tuple) -> None:
        got, want = self.sessions[i]
        _, one, other = self._both(
            lambda: call(self.cache, got, arguments[0]), lambda: call(self.oracle, want, arguments[1])
        )
        same("the session was open", one, other)

    def refuses(self, what: str, call) -> None:
        """`call` is wrong by the look of it, and the oracle need not be asked."""
        self.calls += 1
        before = self.bits(self.cache)
        try:
            got = call()
        except self.refused_error:
            same(f"the state after {what}", self.bits(self.cache) == before, True)
        else:
            raise Difference(f"{what} was accepted: {got!r}")

    # The whole structure

    def compare(self, *, check: bool = True) -> None:
        """`check`: also what cannot be seen from outside, which takes the handle far longer."""
        self.oracle.check()
        if check:
            self.cache.check()
        self.compare_sizes()
        self.compare_trees()
        for name in self.setup.names:
            order = [int(handle) for handle in self.cache.access_order(name)]
            same(f"access order of {name}", order, [self.handles[n] for n in self.oracle.access_order(name)])

    def compare_sizes(self) -> None:
        sizes, wanted = self.cache.sizes(), self.oracle.sizes()
        same("components", set(sizes), set(wanted))
        for component in self.setup.names:
            got, want = sizes[component], wanted[component]
            for name in ("free", "evictable", "protected"):
                same(f"{name} of {component}", getattr(got, name), getattr(want, name))
            free = len(self.spare[component]) if got.free is None else got.free
            total = free + got.evictable + got.protected + len(self.held[component])
            same(f"ledger of {component}", total, self.setup.pools[component])

    def compare_trees(self) -> None:
        got = [view for view in self.cache.tree() if int(view.node) != 0]
        want = {(tagged(v.namespace), v.prefix): v for v in self.oracle.tree()}
        self._same_order(got)
        same("prefixes", {(tagged(v.namespace), tuple(v.prefix)) for v in got}, set(want))
        same("number of nodes", len(got), len(want))
        for mine in got:
            theirs = want[tagged(mine.namespace), tuple(mine.prefix)]
            self._node(mine.node, theirs.node)
        for mine in got:
            theirs = want[tagged(mine.namespace), tuple(mine.prefix)]
            where = f"of the node at {theirs.namespace!r} {theirs.prefix}"
            same(f"parent {where}", int(mine.parent), self.handles[theirs.parent])
            for name in ("key", "hit_count", "priority", "values", "locks", "sessions", "is_leaf"):
                same(f"{name} {where}", getattr(mine, name), getattr(theirs, name))
        handles = [self.handles[v.node] for v in want.values()]
        same("distinct handles", len(set(handles) | {0}), len(handles) + 1)

    def _same_order(self, views) -> None:
        """Each namespace is one stretch, in the order of the prefixes, which is pre-order."""
        got = [(tagged(v.namespace), tuple(v.prefix)) for v in views]
        firsts = list(dict.fromkeys(space for space, _ in got))
        same("pre-order", got, sorted(got, key=lambda view: (firsts.index(view[0]), view[1])))
