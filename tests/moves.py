"""What a serving system does with a cache, right and wrong, as moves with plain arguments.

A move is a total function: any arguments are fine in any state, so that a failing list of moves can be
thinned out. The annotations tell a driver (the state machines, the long run) how to draw each argument.
"""

from typing import NewType, get_type_hints

from tests.malformed import malformed_calls
from tests.oracle.components import FULL, MAMBA, SWA
from tests.pair import NO_ROOM, OK, REFUSED, Pair, same

Key = NewType("Key", tuple)  # tokens
Space = NewType("Space", int)  # which namespace
Amount = NewType("Amount", int)  # of tokens, 0 to a few more than there are slots
Pick = NewType("Pick", int)  # which one of whatever there is to choose from
Flag = NewType("Flag", bool)
Priority = NewType("Priority", int)


class Moves:
    def __init__(self, pair: Pair):
        self.pair = pair
        self.setup = pair.setup
        self.saved = None  # a snapshot

    @classmethod
    def signatures(cls) -> dict[str, dict[str, type]]:
        """Move -> the kinds of its arguments."""
        public = {name: f for name, f in vars(cls).items() if callable(f) and not name.startswith("_")}
        return {name: get_type_hints(f) for name, f in public.items()}

    def _space(self, i: int):
        return self.setup.namespaces[i % len(self.setup.namespaces)]

    def _name(self, i: int) -> str:
        return self.setup.names[i % len(self.setup.names)]

    def _pages(self, n: int) -> int:
        return n // self.setup.page_size * self.setup.page_size

    def _whole(self, n: int) -> int:
        """`n`, cut down to whole pages where the setup deals in nothing else."""
        return n if self.setup.tails else self._pages(n)

    def _present(self, key, space) -> int:
        return self.pair.oracle.probe(key, space).full_len

    def _node(self, i: int) -> int:
        nodes = [0, *(n.number for n in self.pair.oracle.nodes())]
        return nodes[i % len(nodes)]

    def _take(self, wanted: dict[str, int]) -> dict[str, list[int]] | None:
        """The first slots that requests hold, allocating and evicting for those that are missing."""
        pair = self.pair
        for name, n in wanted.items():
            missing = n - len(pair.held[name])
            if missing > 0 and pair.alloc(name, missing) is None:
                pair.evict({name: missing})
                if pair.alloc(name, missing) is None:
                    return None
        return {name: pair.held[name][:n] for name, n in wanted.items()}

    def _slots(self, length: int, prev: int, given_up: int, state: bool, junk: int = -1):
        """(slots, evicted_len) of a request that has `length` tokens and shares the first `prev` with the tree.

        `junk` stands where nothing is the request's own: below `prev`, and where it gave SWA up, which may be left
        out. None where there are not enough slots.
        """
        names, lo = self.setup.names, max(prev, given_up)
        swa_length = self._pages(length) if state else length  # either will do
        wanted = {FULL: length - prev, SWA: max(swa_length - lo, 0), MAMBA: int(state)}
        slots = self._take({name: wanted[name] for name in names})
        if slots is None:
            return None
        slots[FULL] = [junk] * prev + slots[FULL]
        if SWA in names:
            left_out = not slots[SWA] and length % 2
            slots[SWA] = [] if left_out else ([junk] * lo)[:swa_length] + slots[SWA]
        return slots, {SWA: given_up} if SWA in names else {}

    # Reading

    def match(self, key: Key, space: Space):
        self.pair.match(key, self._space(space))

    def probe(self, key: Key, space: Space):
        self.pair.probe(key, self._space(space))

    def match_many(self, key: Key, other: Key, third: Key, space: Space, other_space: Space):
        spaces = [self._space(space), self._space(other_space), self._space(space)]
        self.pair.match_many([key, other, third], spaces)

    def probe_many(self, key: Key, other: Key, third: Key, space: Space, other_space: Space):
        spaces = [self._space(space), self._space(other_space), self._space(space)]
        self.pair.probe_many([key, other, third], spaces)

    # Slots

    def alloc(self, which: Pick, n: Amount):
        self.pair.alloc(self._name(which), self._whole(n))

    def free(self, which: Pick, n: Amount, at: Pick):
        name = self._name(which)
        at = self._whole(at % (len(self.pair.held[name]) + 1))
        self.pair.free(name, self.pair.held[name][at : at + self._whole(n)])

    # Requests

    def request(
        self,
        key: Key,
        space: Space,
        hold: Flag,
        tail: Flag,
        inserted: Pick,
        priority: Priority,
        junk: Flag,
        given_up: Pick,
        state: Flag,
    ):
        """A request from start to finish. `hold`: its prefix is locked; `junk`: below it are no slots."""
        pair, name = self.pair, self._space(space)
        hit = pair.match(key, name)
        if hold:
            pair.lock(hit.node)
        length, prev = len(key) if tail else self._pages(len(key)), hit.device_len
        fresh = self._slots(length, prev, given_up % (len(key) + 2), state)
        if fresh is not None:
            slots, evicted_len = fresh
            if not junk:
                slots = {
                    of: (hit.slots[of] + s[prev:] if len(s) >= prev and of != MAMBA else s) for of, s in slots.items()
                }
            outcome, _ = pair.insert(
                key,
                slots,
                name,
                prev_prefix_len=prev,
                inserted_len=inserted % (len(key) + 1),
                evicted_len=evicted_len,
                priority=priority,
            )
            # Without a lock the prefix may have been evicted to make room.
            allowed = (OK, NO_ROOM) if hold else (OK, NO_ROOM, REFUSED)
            same("an honest insert goes through", outcome in allowed, True)
        if hold:
            pair.unlock(len(pair.receipts) - 1)

    def chunked(self, key: Key, space: Space, cut: Pick, given_up: Pick, state: Flag, early: Flag, keep: Flag):
        """A request that inserts twice, its lock moving along; `keep`: it is still running at the end.

        By its second chunk it has given up some SWA, and maybe the lock of what it gave up (`early`).
        """
        pair, name = self.pair, self._space(space)
        cut = self._pages(cut % (len(key) + 1))
        first = self._slots(cut, 0, 0, state)
        if first is None:
            return
        outcome, result = pair.insert(key[:cut], first[0], name)
        if outcome != OK:
            return
        pair.lock(result.node)
        hit = pair.match(key[:cut], name)
        same("what a request inserted is there", hit.full_len, cut)
        if state or MAMBA not in self.setup.names:
            same("a request can resume where it inserted", hit.device_len, cut)
        if early and SWA in self.setup.names:
            same("an early release", pair.release_early(len(pair.receipts) - 1, SWA), OK)
        rest = self._slots(len(key), cut, given_up % (len(key) + 2), state)
        if rest is not None:
            slots, evicted_len = rest
            options = {"prev_prefix_len": cut, "inserted_len": cut, "evicted_len": evicted_len}
            outcome, result = pair.insert(key, slots, name, **options)
            same("what is locked stays", outcome in (OK, NO_ROOM), True)
            if outcome == OK and keep:
                pair.lock(result.node)
                pair.unlock(len(pair.receipts) - 2)
                return
        pair.unlock(len(pair.receipts) - 1)

    def insert_own(
        self, key: Key, space: Space, prev: Pick, inserted: Pick, priority: Priority, given_up: Pick, state: Flag
    ):
        """Slots for every token are the caller's own, or from `prev` on."""
        name = self._space(space)
        # Taking slots may evict what is present, so the caller takes for the whole key, and then sees.
        given_up = given_up % (len(key) + 2)
        if self._slots(len(key), 0, given_up, state) is None:
            return
        prev = self._whole(prev % (self._present(key, name) + 1))
        slots, evicted_len = self._slots(len(key), prev, given_up, state)
        options = {"inserted_len": inserted % (len(key) + 1), "priority": priority, "evicted_len": evicted_len}
        outcome, _ = self.pair.insert(key, slots, name, prev_prefix_len=prev, **options)
        same("an honest insert goes through", outcome in (OK, NO_ROOM), True)

    def again(self, at: Pick, less: Pick, given_up: Pick, state: Flag):
        """The key of a node once more, or of its first pages: tombstones recover, states come to lie inside."""
        node = self.pair.oracle.find(self._node(at))
        key = node.prefix[: len(node.prefix) - self._pages(less % (len(node.key) + 1))]
        fresh = self._slots(len(key), 0, given_up % (len(key) + 2), state)
        if fresh is not None:
            outcome, _ = self.pair.insert(key, fresh[0], node.namespace, evicted_len=fresh[1])
            same("an honest insert goes through", outcome in (OK, NO_ROOM), True)

    def branch(self, key: Key, space: Space):
        """A request that inserts at its branching point first: the next one resumes there."""
        pair, name = self.pair, self._space(space)
        hit = pair.match(key, name)
        if not hit.branching_len:
            return
        pair.lock(hit.node)
        key = key[: hit.branching_len]
        fresh = self._slots(len(key), hit.device_len, 0, True)
        if fresh is not None:
            outcome, _ = pair.insert(key, fresh[0], name, prev_prefix_len=hit.device_len)
            same("an insert at the branching point goes through", outcome in (OK, NO_ROOM), True)
            if outcome == OK:
                same("the hit at the branching point", pair.match(key, name).device_len, len(key))
        pair.unlock(len(pair.receipts) - 1)

    # Eviction and locks

    def evict(self, n: Amount, swa: Amount, mamba: Amount):
        wanted = {FULL: n, SWA: swa, MAMBA: mamba}
        self.pair.evict({name: wanted[name] for name in self.setup.names})

    def evict_one(self, which: Pick, n: Amount):
        self.pair.evict({self._name(which): n})

    def lock(self, at: Pick):
        self.pair.lock(self._node(at))

    def unlock(self, at: Pick):
        if self.pair.receipts:
            self.pair.unlock(at % len(self.pair.receipts))

    def release_early(self, at: Pick, which: Pick):
        """Also what must be refused: Full, no component, and what was released already."""
        names = [*self.setup.names[1:], FULL, *self.setup.names[1:], "none"]
        if not self.pair.receipts:
            self.lock(at)
        self.pair.release_early(at % len(self.pair.receipts), names[which % len(names)])

    # Sessions

    def _session(self, i: int) -> int:
        """One of the last few, so that most are open."""
        if not self.pair.sessions:
            self.pair.open_session()
        n = len(self.pair.sessions)
        return n - 1 - i % min(n, self.setup.max_sessions + 1)

    def open_session(self):
        self.pair.open_session()

    def advance_session(self, at: Pick, node: Pick):
        self.pair.advance_session(self._session(at), self._node(node))

    def turn(self, key: Key, space: Space, at: Pick):
        """A session goes on to where its next request has matched."""
        hit = self.pair.match(key, self._space(space))
        self.pair.advance_session(self._session(at), hit.node)

    def recede_session(self, at: Pick, length: Pick):
        self.pair.recede_session(self._session(at), length)

    def close_session(self, at: Pick):
        self.pair.close_session(self._session(at))

    # Time

    def save(self):
        self.saved = self.pair.snapshot()

    def roll_back(self):
        if self.saved:
            self.pair.restore(self.saved)

    def reset(self, at: Pick):
        """Now and then."""
        if at % 8 == 5:
            self.pair.reset()
            self.saved = None

    def twice(self, key: Key, space: Space, n: Amount, given_up: Pick):
        """The same from the same state gives the same, bit for bit."""
        before = self.pair.snapshot()
        ends = []
        for _ in range(2):
            self.pair.restore(before)
            self.pair.match(key, self._space(space))
            self.evict(n, n, n)
            self.insert_own(key, space, 0, 0, 0, given_up, True)
            ends.append(self.pair.bits(self.pair.cache))
        same("the end from the same start", ends[0] == ends[1], True)

    # Wrong calls: each must be refused and change nothing

    def _wrong_slots(self, name: str, others: list[int]) -> list[int]:
        """Slots that a caller with `others` in his list must not give."""
        oracle = self.pair.oracle
        wrong = [-1, *others[:1], *oracle.tree_slots(name)[:2]]
        if name not in self.setup.callers:
            wrong += [self.setup.pools[name], *sorted(oracle.free_slots[name])[:1]]
        return wrong

    def bad_free(self, of: Pick, n: Amount, at: Pick, which: Pick):
        name = self._name(of)
        if name in self.setup.callers:
            return
        slots = self.pair.held[name][: n % 4]
        wrong = self._wrong_slots(name, slots)
        at = at % (len(slots) + 1)
        outcome = self.pair.free(name, [*slots[:at], wrong[which % len(wrong)], *slots[at:]])
        same("freeing what is not one's own", outcome, REFUSED)

    def bad_slot(self, key: Key, space: Space, prev: Pick, of: Pick, at: Pick, which: Pick):
        """One slot of one component is not the caller's, or he names it twice."""
        name, space = self._name(of), self._space(space)
        prev = prev % (self._present(key, space) + 1)
        own = {of: 1 if of == MAMBA else len(key) - prev for of in {FULL, name}}
        slots = {of: self.pair.held[of][:n] for of, n in own.items()}
        if not own[name] or any(len(slots[of]) < n for of, n in own.items()):
            return
        at = at % own[name]
        wrong = self._wrong_slots(name, slots[name][:at] + slots[name][at + 1 :])
        slots[name][at] = wrong[which % len(wrong)]
        slots = {of: s if of == MAMBA else [-1] * prev + s for of, s in slots.items()}
        outcome, _ = self.pair.insert(key, slots, space, prev_prefix_len=prev)
        same("inserting what is not one's own", outcome, REFUSED)

    def bad_length(self, key: Key, space: Space, which: Pick):
        name, size = self._space(space), self.setup.page_size
        slots = self.pair.held[FULL][: len(key)]
        if len(slots) < len(key):
            return
        present, short = self._present(key, name), len(key) - 1 not in (len(key) // size * size, -1)
        junk = lambda n: {FULL: slots, SWA: [-1] * n}
        calls = [
            ({FULL: slots}, {"prev_prefix_len": present + 1}),
            ({FULL: slots}, {"prev_prefix_len": len(key) + 1}),
            ({FULL: slots}, {"prev_prefix_len": -1}),
            ({FULL: slots}, {"inserted_len": -1}),
            ({FULL: [*slots, self.setup.slots]}, {}),
            ({FULL: slots}, {"evicted_len": {FULL: 1}}),
            ({FULL: slots}, {"evicted_len": {MAMBA: 1}}),
            ({FULL: slots}, {"evicted_len": {SWA: -1}}),
            ({FULL: slots}, {"evicted_len": {"none": 1}}),
            ({FULL: slots, MAMBA: [0, 1]}, {}),
            (junk(len(key) + 1), {"evicted_len": {SWA: len(key) + 1}}),
            *([({FULL: slots[:-1]}, {})] if short else []),
            *([(junk(len(key) - 1), {"evicted_len": {SWA: len(key)}})] if short and len(key) > 1 else []),
        ]
        given, options = calls[which % len(calls)]
        outcome, _ = self.pair.insert(key, given, name, **options)
        same("a wrong length", outcome, REFUSED)

    def bad_node(self, at: Pick, session: Pick):
        """A node that is gone can be neither locked nor returned to."""
        pair = self.pair
        if not pair.stale:
            return
        handle = pair.stale[at % len(pair.stale)]
        pair.refuses(f"a lock of the dead node {handle}", lambda: pair.cache.lock(handle))
        alive = [mine for mine, theirs in pair.sessions if pair.oracle.sessions[theirs]]
        if alive:
            mine = alive[session % len(alive)]
            pair.refuses(f"a session at the dead node {handle}", lambda: pair.cache.advance_session(mine, handle))

    def bad_receipt(self, at: Pick, which: Pick):
        if self.pair.spent:
            receipt, _ = self.pair.spent[at % len(self.pair.spent)]
            cache, name = self.pair.cache, self._name(which)
            self.pair.refuses(f"the spent receipt {receipt}", lambda: cache.unlock(receipt))
            self.pair.refuses(f"early, the spent receipt {receipt}", lambda: cache.release_early(receipt, name))

    def malformed(self, which: Pick):
        calls = malformed_calls(self.pair.cache, self.setup)
        what = sorted(calls)[which % len(calls)]
        self.pair.refuses(what, calls[what])
