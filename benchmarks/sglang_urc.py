"""What benchmarks/sglang.py measures of `urc`: the same operations as sglang_peer.Subject, and the same undoing."""

import gc
import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from workload import BATCH, LEAVES, NEW, STEP, WINDOW, Tree, undisturbed

import urc
from urc.replay import engine
from urc.replay.trace import Trace

try:
    from urc.replay.scan import replay_all
except ImportError:  # a version of `urc` whose only replay is the handle's
    replay_all = None

COMPILED = replay_all is not None
KINDS = {"full": urc.Full(), "swa": urc.SWA(window=WINDOW), "mamba": urc.Mamba()}
MAX_NODES = 8192  # with SWA a leaf is two nodes


def pools_of(tree: Tree, names: list[str]) -> dict[str, int]:
    """Slots of each pool, on all sides: the tree, and whatever an operation puts beside it."""
    tokens = tree.stored + max(BATCH * NEW, LEAVES * tree.levels[-1][0])
    return {name: len(tree.sequences) + max(BATCH, LEAVES) if name == "mamba" else tokens for name in names}


class Subject:
    """A cache that holds the tree; each operation prepares, is timed, and is undone. Returns (seconds, answers)."""

    def __init__(self, tree: Tree, pools: dict[str, int], page: int) -> None:
        gc.unfreeze()
        self.tree, self.known, self.names = tree, tree.tokens - NEW, list(pools)
        config = urc.CacheConfig(
            components=tuple(KINDS[name] for name in pools),
            page_size=page,
            pools=pools,
            policy="filo",
            max_nodes=MAX_NODES,
            max_key_len=tree.tokens,
        )
        self.cache: Any = urc.UnifiedRadixCache(config)  # some of its calls may be missing: see `has`
        self.running: list[tuple] = []
        self._fill(tree.inserts())
        self.free = self.cache.sizes()["full"].free
        gc.collect()
        gc.freeze()  # what stands needs no more looking at, so that the collection before each round is short

    def has(self, op: str) -> bool:
        """Whether this version of `urc` has the calls."""
        calls = {"insert_all": "insert_all", "lock_all": "lock_all", "step": "step"}
        return op not in calls or hasattr(self.cache, calls[op])

    def _fill(self, keys: Iterable[tuple[np.ndarray, int]]) -> None:
        """Inserts keys of which so many tokens are in the tree, or in a key before."""
        keys = iter(keys)
        while some := list(itertools.islice(keys, BATCH)):
            given = self._slots([(len(key), shared) for key, shared in some])
            if hasattr(self.cache, "insert_all"):
                known = [shared for _, shared in some]
                self.cache.insert_all([key for key, _ in some], given, prev_prefix_lens=known)
                continue
            for (key, shared), slots in zip(some, given, strict=True):
                self.cache.insert(key, slots, prev_prefix_len=shared)

    def _slots(self, wanted: list[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
        """Slots for keys, each of so many tokens; those of its first ones are the tree's and are not looked at."""
        counts = np.array([length - known for length, known in wanted])
        fresh = {n: self.cache.alloc(n, len(wanted) if n == "mamba" else int(counts.sum())) for n in self.names}
        ends, given = np.cumsum(counts), []
        for i, (_, known) in enumerate(wanted):
            slots = {}
            for name, held in fresh.items():
                own = held[ends[i] - counts[i] : ends[i]]
                slots[name] = held[i : i + 1] if name == "mamba" else np.concatenate([np.zeros(known, np.int32), own])
            given.append(slots)
        return given

    def _undo(self, tokens: int) -> None:
        """Takes out the newest leaves, of so many tokens."""
        if tokens:
            self.cache.evict({"full": tokens})
        if self.cache.sizes()["full"].free != self.free:
            raise RuntimeError("a round was not undone")

    def match(self, number: int) -> tuple[float, list[int]]:
        keys, match = self.tree.round(number, BATCH), self.cache.match_prefix
        seconds, found = undisturbed(lambda: [match(key) for key in keys])
        return seconds, [match.device_len for match in found]

    def match_all(self, number: int) -> tuple[float, list[int]]:
        keys = self.tree.round(number, BATCH)

        def match() -> tuple[np.ndarray, ...]:
            found = self.cache.match_prefixes(keys)
            return found.device_len, found.nodes, [found.slots(name) for name in self.names]

        seconds, (lengths, *_) = undisturbed(match)
        return seconds, lengths.tolist()

    def insert(self, number: int) -> tuple[float, list[int]]:
        keys, insert = self.tree.round(number, BATCH), self.cache.insert
        given = list(zip(keys, self._slots([(len(key), self.known) for key in keys]), strict=True))
        seconds, done = undisturbed(lambda: [insert(key, slots, prev_prefix_len=self.known) for key, slots in given])
        self._undo(BATCH * NEW)
        return seconds, [result.prefix_len for result in done]

    def insert_all(self, number: int) -> tuple[float, list[int]]:
        keys = self.tree.round(number, BATCH)
        slots = self._slots([(len(key), self.known) for key in keys])

        def insert() -> tuple[np.ndarray, ...]:
            done = self.cache.insert_all(keys, slots, prev_prefix_lens=[self.known] * BATCH)
            return done.prefix_len, done.nodes

        seconds, (lengths, _) = undisturbed(insert)
        self._undo(BATCH * NEW)
        return seconds, lengths.tolist()

    def _leaves(self, number: int, count: int) -> int:
        """Puts in leaves like the tree's, for an eviction to take out. Returns the tokens of each."""
        leaf = self.tree.levels[-1][0]
        self._fill((key, len(key) - leaf) for key in self.tree.round(number, count, leaves=True))
        return leaf

    def evict(self, number: int) -> tuple[float, list[int]]:
        leaf, evict = self._leaves(number, BATCH), self.cache.evict
        seconds, done = undisturbed(lambda: [evict({"full": 1}) for _ in range(BATCH)])
        answers = [result.evicted["full"] for result in done]
        self._undo(BATCH * leaf - sum(answers))
        return seconds, answers

    def evict_many(self, number: int) -> tuple[float, list[int]]:
        leaf = self._leaves(number, LEAVES)
        seconds, done = undisturbed(partial(self.cache.evict, {"full": LEAVES * leaf}))
        self._undo(LEAVES * leaf - done.evicted["full"])
        return seconds, [done.evicted["full"]]

    def _matched(self, number: int) -> tuple[list[int], list[int]]:
        found = [self.cache.match_prefix(key) for key in self.tree.round(number, BATCH)]
        return [match.node for match in found], [match.device_len for match in found]

    def lock(self, number: int) -> tuple[float, list[int]]:
        (nodes, lengths), lock, unlock = self._matched(number), self.cache.lock, self.cache.unlock

        def pairs() -> None:
            for receipt in [lock(node) for node in nodes]:
                unlock(receipt)

        return undisturbed(pairs)[0], lengths

    def lock_all(self, number: int) -> tuple[float, list[int]]:
        nodes, lengths = self._matched(number)
        return undisturbed(lambda: self.cache.unlock_all(self.cache.lock_all(nodes)))[0], lengths

    def start_steps(self) -> None:
        """Holds all free slots but those of one step, so that each step has to evict what it needs."""
        self.cache.alloc("full", self.free - STEP * NEW)

    def step(self, number: int) -> tuple[float, list[int]]:
        keys = self.tree.round(number, STEP)

        def act() -> tuple[Any, np.ndarray]:
            step = self.cache.step(finish=self.running, begin=keys)
            return step, step.finished.prefix_len

        seconds, (step, lengths) = undisturbed(act)
        self.running = list(zip(step.begun, keys, strict=True))
        known = [request.match.device_len for request in step.begun]
        free = self.cache.sizes()["full"].free  # none: so the next step has to evict
        return seconds, [*lengths.tolist(), *known, free]


def replay(trace: Trace, capacity: int, page: int) -> tuple[float, list[int]]:
    """Of one trace under LRU: (seconds, [input blocks matched, blocks evicted, calls that evicted, refused])."""
    if replay_all is not None:
        plan = [(capacity, "lru")]
        run = undisturbed(partial(replay_all, trace, plan, slots=capacity, page_size=page))[1][0]
        seconds = run.seconds - (run.compile_seconds or 0.0)  # it compiles again each time
    else:
        options = {"capacity": capacity, "policy": "lru", "page_size": page}
        cache = engine.open_cache(slots=capacity, **options)
        seconds, run = undisturbed(partial(engine.replay, trace, cache, **options))
    return seconds, [run.rate.matched_blocks, run.evicted, run.evict_calls, run.refused]
