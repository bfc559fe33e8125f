"""What a serving system does with a cache, right and wrong, as moves with plain arguments.

A move is a total function: any arguments are fine in any state, so that a failing list of moves can be
thinned out. The annotations tell a driver (the state machines, the long run) how to draw each argument.
"""

from typing import NewType, get_type_hints

from tests.pair import FULL, NO_ROOM, OK, REFUSED, Pair, same

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

    def _whole(self, n: int) -> int:
        """`n`, cut down to whole pages where the setup deals in nothing else."""
        return n if self.setup.tails else n // self.setup.page_size * self.setup.page_size

    def _present(self, key, space) -> int:
        return self.pair.oracle.probe(key, space).device_len

    def _take(self, n: int) -> list[int] | None:
        """The first `n` slots that requests hold, allocating and evicting for those that are missing."""
        pair = self.pair
        missing = n - len(pair.held)
        if missing > 0 and pair.alloc(missing) is None:
            pair.evict(missing)
            if pair.alloc(missing) is None:
                return None
        return pair.held[:n]

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

    def alloc(self, n: Amount):
        self.pair.alloc(self._whole(n))

    def free(self, n: Amount, at: Pick):
        at = self._whole(at % (len(self.pair.held) + 1))
        self.pair.free(self.pair.held[at : at + self._whole(n)])

    # Requests

    def request(self, key: Key, space: Space, hold: Flag, tail: Flag, inserted: Pick, priority: Priority, junk: Flag):
        """A request from start to finish. `hold`: its prefix is locked; `junk`: below it are no slots."""
        pair, name = self.pair, self._space(space)
        hit = pair.match(key, name)
        if hold:
            pair.lock(hit.node)
        length = len(key) if tail else len(key) // self.setup.page_size * self.setup.page_size
        fresh = self._take(length - hit.device_len)
        if fresh is not None:
            prefix = [-1] * hit.device_len if junk else hit.slots[FULL]
            outcome, _ = pair.insert(
                key,
                prefix + fresh,
                name,
                prev_prefix_len=hit.device_len,
                inserted_len=inserted % (len(key) + 1),
                priority=priority,
            )
            # Without a lock the prefix may have been evicted to make room.
            allowed = (OK, NO_ROOM) if hold else (OK, NO_ROOM, REFUSED)
            same("an honest insert goes through", outcome in allowed, True)
        if hold:
            pair.unlock(len(pair.receipts) - 1)

    def chunked(self, key: Key, space: Space, cut: Pick, keep: Flag):
        """A request that inserts twice, its lock moving along; `keep`: it is still running at the end."""
        pair, name, size = self.pair, self._space(space), self.setup.page_size
        cut = cut % (len(key) + 1) // size * size
        first = self._take(cut)
        if first is None:
            return
        outcome, result = pair.insert(key[:cut], first, name)
        if outcome != OK:
            return
        pair.lock(result.node)
        hit = pair.match(key[:cut], name)
        same("what a request inserted is there", hit.device_len, cut)
        rest = self._take(len(key) - cut)
        if rest is not None:
            options = {"prev_prefix_len": cut, "inserted_len": cut}
            outcome, result = pair.insert(key, hit.slots[FULL] + rest, name, **options)
            if outcome == OK and keep:
                pair.lock(result.node)
                pair.unlock(len(pair.receipts) - 2)
                return
        pair.unlock(len(pair.receipts) - 1)

    def insert_own(self, key: Key, space: Space, prev: Pick, inserted: Pick, priority: Priority):
        """Slots for every token are the caller's own, or from `prev` on."""
        name = self._space(space)
        slots = self._take(len(key))
        if slots is None:
            return
        prev = self._whole(prev % (self._present(key, name) + 1))
        used = slots[: len(key) - prev]
        options = {"prev_prefix_len": prev, "inserted_len": inserted % (len(key) + 1), "priority": priority}
        outcome, _ = self.pair.insert(key, [-1] * prev + used, name, **options)
        same("an honest insert goes through", outcome in (OK, NO_ROOM), True)

    # Eviction and locks

    def evict(self, n: Amount):
        self.pair.evict(n)

    def lock(self, at: Pick):
        nodes = [0, *(n.number for n in self.pair.oracle.nodes())]
        self.pair.lock(nodes[at % len(nodes)])

    def unlock(self, at: Pick):
        if self.pair.receipts:
            self.pair.unlock(at % len(self.pair.receipts))

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

    def twice(self, key: Key, space: Space, n: Amount):
        """The same from the same state gives the same, bit for bit."""
        before = self.pair.snapshot()
        ends = []
        for _ in range(2):
            self.pair.restore(before)
            self.pair.match(key, self._space(space))
            self.pair.evict(n)
            self.insert_own(key, space, 0, 0, 0)
            ends.append(self.pair.bits(self.pair.cache))
        same("the end from the same start", ends[0] == ends[1], True)

    # Wrong calls: each must be refused and change nothing

    def _wrong_slots(self, others: list[int]) -> list[int]:
        """Slots that a caller with `others` in his list must not give."""
        oracle = self.pair.oracle
        wrong = [-1, *others[:1], *oracle.tree_slots()[:2]]
        if self.setup.owned:
            wrong += [self.setup.slots, *sorted(oracle.free_slots)[:1]]
        return wrong

    def bad_free(self, n: Amount, at: Pick, which: Pick):
        if not self.setup.owned:
            return
        slots = self.pair.held[: n % 4]
        wrong = self._wrong_slots(slots)
        at = at % (len(slots) + 1)
        outcome = self.pair.free([*slots[:at], wrong[which % len(wrong)], *slots[at:]])
        same("freeing what is not one's own", outcome, REFUSED)

    def bad_slot(self, key: Key, space: Space, prev: Pick, at: Pick, which: Pick):
        name = self._space(space)
        prev = prev % (self._present(key, name) + 1)
        slots = self.pair.held[: len(key) - prev]
        if len(slots) < len(key) - prev or not slots:
            return
        at = at % len(slots)
        wrong = self._wrong_slots(slots[:at] + slots[at + 1 :])
        slots[at] = wrong[which % len(wrong)]
        outcome, _ = self.pair.insert(key, [-1] * prev + slots, name, prev_prefix_len=prev)
        same("inserting what is not one's own", outcome, REFUSED)

    def bad_length(self, key: Key, space: Space, which: Pick):
        name, size = self._space(space), self.setup.page_size
        slots = self.pair.held[: len(key)]
        if len(slots) < len(key):
            return
        options, present = {}, self._present(key, name)
        match which % 5:
            case 0:
                options["prev_prefix_len"] = present + 1
            case 1:
                options["prev_prefix_len"] = len(key) + 1
            case 2:
                options["prev_prefix_len"] = -1
            case 3:
                slots = [*slots, self.setup.slots]
            case 4 if key and len(key) - 1 != len(key) // size * size:
                slots = slots[:-1]
            case _:
                options["inserted_len"] = -1
        outcome, _ = self.pair.insert(key, slots, name, **options)
        same("a wrong length", outcome, REFUSED)

    def bad_lock(self, at: Pick):
        if self.pair.stale:
            handle = self.pair.stale[at % len(self.pair.stale)]
            self.pair.refuses(f"a lock of the dead node {handle}", lambda: self.pair.cache.lock(handle))

    def bad_unlock(self, at: Pick):
        if self.pair.spent:
            receipt, _ = self.pair.spent[at % len(self.pair.spent)]
            self.pair.refuses(f"the spent receipt {receipt}", lambda: self.pair.cache.unlock(receipt))

    def malformed(self, which: Pick):
        calls = malformed_calls(self.pair.cache, self.setup)
        what = sorted(calls)[which % len(calls)]
        self.pair.refuses(what, calls[what])


def malformed_calls(c, setup) -> dict:
    """Calls that no state of the cache can make right."""
    import numpy as np

    bad_tokens = {
        "negative": [0, -1],
        "float": [1.5],
        "float array": np.zeros(4),
        "two dimensions": [[1, 2]],
        "beyond int32": [2**31],
        "text": "abc",
        "list of text": ["a"],
        "none": None,
        "too long": [0] * (setup.max_key_len + 1),
    }
    calls = {}
    for what, tokens in bad_tokens.items():
        calls[f"match, tokens: {what}"] = lambda t=tokens: c.match_prefix(t)
        calls[f"probe, tokens: {what}"] = lambda t=tokens: c.probe(t)
        calls[f"insert, tokens: {what}"] = lambda t=tokens: c.insert(t, {FULL: [0]})
        calls[f"match many, tokens: {what}"] = lambda t=tokens: c.match_prefixes([[0, 0, 0, 0], t])
    for what, space in {"float": 1.5, "list": ["a"], "object": object()}.items():
        calls[f"match, namespace: {what}"] = lambda s=space: c.match_prefix([0], namespace=s)
        calls[f"insert, namespace: {what}"] = lambda s=space: c.insert([], {FULL: []}, namespace=s)
    calls |= {
        "probes, namespaces of another number": lambda: c.probes([[0]], namespaces=[None, None]),
        "insert, no slots": lambda: c.insert([0] * setup.page_size, {}),
        "insert, slots of no component": lambda: c.insert([], {FULL: [], "none": []}),
        "insert, float slots": lambda: c.insert([0], {FULL: [0.5]}),
        "insert, priority beyond int32": lambda: c.insert([], {FULL: []}, priority=2**31),
        "evict, negative": lambda: c.evict({FULL: -1}),
        "evict, no component": lambda: c.evict({"none": 1}),
        "evict, float": lambda: c.evict({FULL: 1.5}),
        "alloc, negative": lambda: c.alloc(FULL, -1),
        "alloc, no component": lambda: c.alloc("none", 1),
        "free, no component": lambda: c.free("none", []),
        "lock, negative": lambda: c.lock(-1),
        "lock, never given": lambda: c.lock(2**62),
        "lock, text": lambda: c.lock("0"),
        "unlock, none": lambda: c.unlock(None),
        "unlock, a node": lambda: c.unlock(0),
    }
    if not setup.owned:
        calls["alloc, the caller's pool"] = lambda: c.alloc(FULL, 1)
        calls["free, the caller's pool"] = lambda: c.free(FULL, [0])
    return calls
