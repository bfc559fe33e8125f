"""Broken copies of the cache whose faults only show where it has more than Full."""

from dataclasses import replace

from tests.broken import StandIn
from tests.oracle import OracleRefused
from tests.oracle.components import FULL, MAMBA, SWA, Mamba, Swa
from tests.setups import Setup


class Unchecked(StandIn):
    def check(self):
        pass


class UnlocksTodaysWindow(Unchecked):
    """An unlock releases SWA on the window as it is cut now, not on what the receipt has counted."""

    def unlock(self, receipt):
        claim = self._live(receipt)
        claim.since = self._claim(claim.node).since
        super().unlock(receipt)


class LocksValuesOnly(Unchecked):
    """A lock does not count tombstones, but an unlock does."""

    def lock(self, number):
        receipt = super().lock(number)
        for node in self.find(number).path:
            for name, value in node.values.items():
                if value is None and node.locks[name]:
                    node.locks[name] -= 1
        return receipt

    def _count(self, claim, field, parts, by):
        super()._count(claim, field, parts, by)
        for node in self.nodes():
            node.locks = {name: max(n, 0) for name, n in node.locks.items()}


class ReleasesTwice(Unchecked):
    """An early release may be repeated, and takes the lock of another holder."""

    def release_early(self, receipt, name):
        claim = self._live(receipt)
        if name in self.components and name != FULL:
            claim.parts = claim.parts | {name}
        super().release_early(receipt, name)

    def _count(self, claim, field, parts, by):
        super()._count(claim, field, parts, by)
        for node in self.nodes():
            node.locks = {name: max(n, 0) for name, n in node.locks.items()}


class ReleasesOnlyOne(Unchecked):
    """An early release leaves the components of lower rank locked, until the end."""

    def release_early(self, receipt, name):
        claim = self._live(receipt)
        if name == FULL or name not in claim.parts:
            raise OracleRefused("not there to be released")
        self._count(claim, "locks", [name], -1)
        claim.parts = claim.parts - {name}


class StatesGoToTheFront(Unchecked):
    """A split gives the front part the state too."""

    def _split(self, node, n):
        front = super()._split(node, n)
        if MAMBA in self.components:
            front.values[MAMBA] = node.values[MAMBA]
        return front


class AnySwa(Swa):
    def agrees(self, segments):
        return [node.values[SWA] is not None for node, _ in segments]


class NoWindow(StandIn):
    """SWA agrees wherever it is present, however short a time it has been."""

    def __init__(self, setup: Setup):
        super().__init__(setup)
        if SWA in self.components:
            self.components[SWA] = AnySwa(window=setup.window)


class WholePathSwa(Swa):
    def touches(self, node, length, page_size):
        return True


class RefreshesTheInterior(StandIn):
    """A request refreshes the SWA of its whole path."""

    def __init__(self, setup: Setup):
        super().__init__(setup)
        if SWA in self.components:
            self.components[SWA] = WholePathSwa(window=setup.window)


class AnyMamba(Mamba):
    def agrees(self, segments):
        return [node.values[MAMBA] is not None for node, _ in segments]


class StatesInside(Unchecked):
    """A state is taken to hold anywhere in its node."""

    def __init__(self, setup: Setup):
        super().__init__(setup)
        if MAMBA in self.components:
            self.components[MAMBA] = AnyMamba(**setup.mamba)


class IgnoresSessions(StandIn):
    """Eviction does not spare what a session refers to."""

    def _value_of(self, driver, node):
        return super()._value_of(driver, node)[1:]


class SessionsMoveWhole(Unchecked):
    """A session whose node goes counts the state at the parent instead."""

    def _delete(self, leaf):
        ends = [s for s in self.sessions.values() if s and s.node is leaf]
        super()._delete(leaf)
        for session in ends:
            session.parts = set(self.components)
            if MAMBA in self.components and leaf.parent is not self.root:
                leaf.parent.sessions[MAMBA] += 1


class ClosedSessionsLive(StandIn):
    """A closed session says that it went on."""

    def recede_session(self, number, length):
        super().recede_session(number, length)
        return True


class LeaksSwaDuplicates(StandIn):
    """Duplicates of SWA are reported as freed, but are not."""

    def insert(self, tokens, slots, namespace=None, **options):
        result = super().insert(tokens, slots, namespace, **options)
        if self.free_slots.get(SWA) is not None:
            self.free_slots[SWA] = self.free_slots[SWA] - set(result.freed[SWA])
        return result


class NeverRecovers(StandIn):
    """A tombstone of SWA stays one; the slots are duplicates."""

    def _gives(self, name, given, node, key_len, lowest):
        old = name == SWA and node.access.get(SWA, 0) > 0
        return [] if old else super()._gives(name, given, node, key_len, lowest)


class CutsTooHigh(StandIn):
    """Where SWA was given up within a page, the whole page is taken for given."""

    def _cuts(self, path, part, present, key_len, lo):
        return super()._cuts(path, part, present, key_len, lo // self.page_size * self.page_size)


class LongTails(StandIn):
    """A long leaf is not cut where its last window begins."""

    def _cuts(self, path, part, present, key_len, lo):
        return [cut for cut in super()._cuts(path, part, present, key_len, lo) if cut - lo < self.page_size]


class StatesTakeWindows(StandIn):
    """Evicting a state of an internal node takes the SWA with it."""

    def _evict_node(self, driver, node):
        return super()._evict_node(SWA if driver == MAMBA and SWA in self.components else driver, node)


class WindowsSpareStates(StandIn):
    """Evicting the SWA of an internal node leaves its state."""

    def _evict_node(self, driver, node):
        freed = super()._evict_node(driver, node)
        if driver == SWA and not self._is_device_leaf(node) and freed.get(MAMBA):
            node.values[MAMBA] = freed.pop(MAMBA)
        return freed


class KeepsAllStates(StandIn):
    """The states of a path are not limited."""

    def _limit_states(self, path):
        return []


class OtherReason(StandIn):
    """Where two components fall short, the one that falls less short is named."""

    def match_prefix(self, tokens, namespace=None):
        result = super().match_prefix(tokens, namespace)
        if result.device_len < result.full_len:
            stop = self.components[max(self.components, key=lambda n: (n != FULL, result.hits[n]))].missing
            return replace(result, stop=stop)
        return result


BROKEN_KINDS = [
    UnlocksTodaysWindow,
    LocksValuesOnly,
    ReleasesTwice,
    ReleasesOnlyOne,
    StatesGoToTheFront,
    NoWindow,
    RefreshesTheInterior,
    StatesInside,
    IgnoresSessions,
    SessionsMoveWhole,
    ClosedSessionsLive,
    LeaksSwaDuplicates,
    NeverRecovers,
    CutsTooHigh,
    LongTails,
    StatesTakeWindows,
    WindowsSpareStates,
    KeepsAllStates,
    OtherReason,
]
