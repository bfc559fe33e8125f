"""What size costs: nodes in the tree, nodes on a path, victims in a large order, bytes, and calls in the long run.

python benchmarks/scale.py [--quick] [--json FILE] [--plot FILE]

All but the bytes are ratios of times within this run, round by round, large and small in turn. The trees are forests of
one shape, families of 100 nodes of 10 tokens, four deep: a larger tree has more families, and nothing else differs.
"""

import argparse
import dataclasses
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from output import environment, show  # benchmarks/output.py
from rich.console import Console
from rich.table import Table
from sglang_report import Spread, number, spread  # benchmarks/sglang_report.py
from workload import BATCH, timed  # benchmarks/workload.py

import urc
from urc import ops
from urc.policies import POLICIES
from urc.state import CacheState, init, key_of
from urc.tables import victims

RUN = 10  # tokens of a node
BRANCHES = (1, 3, 4, 7)  # children at each level of a family: 1 + 3 + 12 + 84 nodes
KNOWN = RUN * len(BRANCHES)  # tokens of a path; a request is one and RUN more
WIDTH = 64
PATH_TOKENS, DEPTHS = 640, (1, 8, 64)
GOAL_SIZE, GOAL_NODE = 1.3, 0.5e-6  # times with a large tree / with a small one; seconds per extra node of a path
POOL, STATES = 10_000_000, 10_000  # of the bytes: tokens, and Mamba states
PARTS = ("node table", "heads", "tokens", "slots", "pools", "victim orders", "other")
QUANTILES = (0.5, 0.99, 0.999, 1.0)
SHARED, NEW, PROMPTS = 256, 256, 64  # of the calls in the long run: a system prompt, what follows it, how many prompts
KINDS = {
    "Full": (urc.Full(),),
    "Full+SWA+Mamba": (urc.Full(), urc.SWA(window=16), urc.Mamba()),
}


class Cost(NamedTuple):
    """How long to measure a case, and on what."""

    seconds: float
    least: int
    sizes: tuple[int, int]  # nodes of the two trees
    policies: tuple[str, ...]
    pools: tuple[int, ...]  # tokens, of the calls in the long run
    calls: int


FULL = Cost(1.5, 15, (10_000, 1_000_000), tuple(POLICIES), (100_000, 1_000_000), 8_000)
QUICK = Cost(0.5, 7, (10_000, 100_000), ("lru", "lfu"), (50_000,), 2_000)


class Ratio(NamedTuple):
    """One measured figure, of so many rounds."""

    part: str
    kinds: str
    what: str
    mode: str
    unit: str  # what the figure is in
    value: Spread
    rounds: int
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.value.median <= self.goal


# -- the trees -------------------------------------------------------------------------------------------------------


class Forest:
    """Families of nodes that share no tokens: node = family * (nodes of a family) + place, parents before children."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.sizes = np.cumprod(BRANCHES)  # nodes of each level of a family
        self.family = int(self.sizes.sum())
        self.families = nodes // self.family
        self.nodes = self.families * self.family
        starts = np.cumsum(self.sizes) - self.sizes
        self.paths = np.full((self.family, len(BRANCHES)), -1)  # places from the family's root down
        for level, (start, size) in enumerate(zip(starts, self.sizes, strict=True)):
            for i in range(size):
                if level:
                    self.paths[start + i] = self.paths[starts[level - 1] + i // BRANCHES[level]]
                self.paths[start + i, level] = start + i
        self.levels = np.count_nonzero(self.paths >= 0, axis=1)  # nodes of the path to each place
        self.leaves = np.flatnonzero(self.levels == len(BRANCHES))
        self.rng = np.random.default_rng(seed)
        self.runs = self.rng.integers(0, 100_000, (self.nodes, RUN), dtype=np.int32)
        self.runs[:, 0] = np.arange(self.nodes)  # no two siblings begin alike

    def keys(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(i32[n, WIDTH], i32[n] tokens) of the paths that end at `nodes`; zeros behind."""
        family, place = np.divmod(nodes, self.family)
        path = self.paths[place]
        tokens = np.where((path >= 0)[..., None], self.runs[family[:, None] * self.family + np.maximum(path, 0)], 0)
        keys = np.zeros((len(nodes), WIDTH), np.int32)
        keys[:, :KNOWN] = tokens.reshape(len(nodes), KNOWN)
        return keys, (self.levels[place] * RUN).astype(np.int32)

    def order(self) -> Iterator[np.ndarray]:
        """The nodes of each level, as they are put in: in random order."""
        for level in range(1, len(BRANCHES) + 1):
            places = np.flatnonzero(self.levels == level)
            nodes = (np.arange(self.families)[:, None] * self.family + places).ravel()
            yield self.rng.permutation(nodes)

    def visits(self) -> np.ndarray:
        """Leaves in the order of their later use: all, then a tenth as many again, some of them twice."""
        nodes = (np.arange(self.families)[:, None] * self.family + self.leaves).ravel()
        return np.concatenate([self.rng.permutation(nodes), self.rng.choice(nodes, len(nodes) // 10)])

    def requests(self, round_: int, among: int = 0) -> np.ndarray:
        """Keys i32[BATCH, WIDTH] of a round: a path of KNOWN tokens, then RUN that begin no stored run.

        `among`: only paths of so many families; 0: of all.
        """
        rng = np.random.default_rng([self.families, round_ + 2])
        family, leaf = rng.integers(among or self.families, size=BATCH), rng.choice(self.leaves, BATCH)
        keys = self.keys(family * self.family + leaf)[0]
        keys[:, KNOWN : KNOWN + RUN] = rng.integers(0, 100_000, (BATCH, RUN))
        keys[:, KNOWN] = 10_000_000 + np.arange(BATCH)
        return keys


def config_of(nodes: int, kinds: str) -> urc.CacheConfig:
    """Full pools; the node tables of all sizes equally full; an arena in which no compaction falls into the rounds."""
    tokens, names = (nodes + BATCH) * RUN, [component.name for component in KINDS[kinds]]
    return urc.CacheConfig(
        components=KINDS[kinds],
        pools={name: nodes + BATCH if name == "mamba" else tokens for name in names},
        policy="filo",  # so that an eviction takes out what a round has put in, and nothing else
        max_nodes=nodes + max(nodes * 48_576 // 1_000_000, BATCH + 1),
        arena_tokens=tokens + tokens // 2 + 2**21,
        max_key_len=WIDTH,
    )


def fresh_slots(
    state: CacheState, known: jax.Array, count: jax.Array
) -> tuple[CacheState, dict[str, jax.Array], dict[str, jax.Array]]:
    """Slots (i32[B, n] per component) for the RUN tokens after `known` (i32[B]) of the first `count` keys; `given`."""
    batch, slots, given = len(known), {}, {}
    has = jnp.arange(batch) < count
    for component in state.config.components:
        each = 1 if component.copies_on_write else RUN
        state, own, _ = ops.alloc(state, component.name, count * each, width=batch * each)
        own = own.reshape(batch, each)
        if each > 1:
            at = known[:, None] + jnp.arange(RUN)
            own = jnp.zeros((batch, WIDTH), jnp.int32).at[jnp.arange(batch)[:, None], at].set(own)
        slots[component.name] = own
        given[component.name] = jnp.where(has, known + RUN if each > 1 else 1, 0)
    return state, slots, given


def put(
    state: CacheState, keys: jax.Array, lengths: jax.Array, count: jax.Array, priority: jax.Array
) -> tuple[CacheState, jax.Array]:
    """Inserts keys (i32[B, WIDTH]; i32[B]): the first `count` add RUN tokens, the others nothing. Returns how many
    were refused.
    """
    known = jnp.where(jnp.arange(len(keys)) < count, lengths - RUN, lengths)
    state, slots, given = fresh_slots(state, known, count)
    state, done = ops.inserts(state, keys, lengths, slots, given=given, prev_prefix_len=known, priority=priority)
    return state, jnp.sum(done.status != urc.Status.OK)


PUT = ops.donating(put)


def build(forest: Forest, config: urc.CacheConfig, chunk: int = 4096) -> CacheState:
    """A state that holds the forest, its leaves used in an order that is not that of their rows."""
    state, rng = init(config), np.random.default_rng(1)
    plan = [*((nodes, True) for nodes in forest.order()), (forest.visits(), False)]
    for nodes, new in plan:
        for start in range(0, len(nodes), chunk):
            part = nodes[start : start + chunk]
            keys, lengths = forest.keys(part)
            padding = chunk - len(part)
            keys, lengths = np.pad(keys, ((0, padding), (0, 0))), np.pad(lengths, (0, padding))
            priority = rng.integers(0, 10, chunk, dtype=np.int32)
            state, refused = PUT(state, keys, lengths, np.int32(len(part) if new else 0), priority)
            if int(refused):
                raise RuntimeError(f"{int(refused)} keys did not fit")
    return state


# -- rounds ----------------------------------------------------------------------------------------------------------


def measure(calls: dict[Any, Callable[[int], float]], cost: Cost) -> dict[Any, list[float]]:
    """Seconds of each round of each call, in turn, without garbage collection; two rounds warm up."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    order, end, round_ = list(calls.items()), 0.0, -2
    gc.collect()
    gc.disable()
    try:
        while round_ < cost.least or time.monotonic() < end:
            if round_ == 0:
                end = time.monotonic() + cost.seconds
            for name, call in order if round_ % 2 else order[::-1]:
                seconds = call(round_)
                if round_ >= 0:
                    times[name].append(seconds)
            round_ += 1
    finally:
        gc.enable()
    return times


def over(large: list[float], small: list[float]) -> Spread:
    return spread([a / b for a, b in zip(large, small, strict=True)])


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, with what it dispatched, and its result."""
    return timed(lambda: jax.block_until_ready(call()))


def answered(calls: Callable[[], list]) -> tuple[float, list[Any]]:
    """Seconds of calls of the handle, whose results are on the host, and these."""
    start = time.perf_counter()
    results = calls()
    return time.perf_counter() - start, results


def demand(found: list[int], expected: int) -> None:
    if any(one != expected for one in found):
        raise RuntimeError(f"expected {expected} from each call, got {sorted(set(found))}")


MATCH, INSERT, EVICT = ops.donating(ops.match_prefixes), ops.donating(ops.inserts), ops.donating(ops.evict)
FRESH = ops.donating(lambda state: fresh_slots(state, jnp.full(BATCH, KNOWN, jnp.int32), jnp.int32(BATCH)))
LENGTHS = np.full(BATCH, KNOWN + RUN, np.int32)


class Subject:
    """A cache that holds a forest: rounds of BATCH requests, as pure functions first and then through the handle."""

    def __init__(self, forest: Forest, state: CacheState) -> None:
        self.forest, self.state, self.cache = forest, cast(Any, state), cast(Any, None)

    def match_all(self, round_: int, among: int = 0) -> float:
        keys = jax.device_put(self.forest.requests(round_, among))
        seconds, (self.state, match) = clocked(lambda: MATCH(self.state, keys, LENGTHS))
        demand(np.asarray(match.device_len).tolist(), KNOWN)
        return seconds

    def insert_all(self, round_: int, among: int = 0) -> float:
        keys = jax.device_put(self.forest.requests(round_, among))
        self.state, slots, given = jax.block_until_ready(FRESH(self.state))
        known = np.full(BATCH, KNOWN, np.int32)
        options = {"given": given, "prev_prefix_len": known}
        seconds, (self.state, done) = clocked(lambda: INSERT(self.state, keys, LENGTHS, slots, **options))
        demand(np.asarray(done.status).tolist(), urc.Status.OK)
        demand(np.asarray(done.prefix_len).tolist(), KNOWN)
        self.state, out = EVICT(self.state, {"full": np.int32(BATCH * RUN)})
        demand([int(out.evicted["full"])], BATCH * RUN)
        return seconds

    def open(self) -> None:
        """From here on through the handle."""
        self.cache = urc.UnifiedRadixCache(self.state.config)
        self.cache.state, self.state = self.state, None

    def match(self, round_: int) -> float:
        keys = [key[: KNOWN + RUN] for key in self.forest.requests(round_)]
        seconds, found = answered(lambda: [self.cache.match_prefix(key) for key in keys])
        demand([match.device_len for match in found], KNOWN)
        return seconds

    def insert(self, round_: int) -> float:
        keys, names = self.forest.requests(round_), [c.name for c in self.cache.config.components]
        own: dict[str, Any] = {n: self.cache.alloc(n, BATCH if n == "mamba" else BATCH * RUN) for n in names}
        own = {n: slots.reshape(BATCH, -1) for n, slots in own.items()}
        held = {n: own[n] if n == "mamba" else np.pad(own[n], ((0, 0), (KNOWN, 0))) for n in names}
        given = [(key[: KNOWN + RUN], {n: held[n][i] for n in names}) for i, key in enumerate(keys)]
        insert = self.cache.insert
        seconds, done = answered(lambda: [insert(key, slots, prev_prefix_len=KNOWN) for key, slots in given])
        demand([result.prefix_len for result in done], KNOWN)
        demand([self.cache.evict({"full": BATCH * RUN}).evicted["full"]], BATCH * RUN)
        return seconds


# -- 1, 3: nodes in the tree -----------------------------------------------------------------------------------------


def victims_of(state: CacheState, policy: str) -> Callable[[int], float]:
    """A call that evicts BATCH leaves, one round after the other, from a copy of the state with another policy."""
    config = dataclasses.replace(state.config, policy=policy)
    keys = [key_of(component, config) for component in config.components]
    orders = jax.jit(lambda table: victims.rebuild(table, keys))(state.nodes)
    state = jax.tree.map(jnp.copy, state.replace(config=config, victims=orders))

    def call(round_: int) -> float:
        nonlocal state
        seconds, (state, out) = clocked(lambda: EVICT(state, {"full": np.int32(BATCH * RUN)}))
        demand([int(out.evicted["full"])], BATCH * RUN)
        return seconds

    return call


def by_size(cost: Cost, say: Callable[[str], None]) -> list[Ratio]:
    """Match, insert and evict in a large tree, over the same in a small one."""
    small, large = cost.sizes
    forests, found = {nodes: Forest(nodes) for nodes in cost.sizes}, []
    unit = f"{large:,} nodes / {small:,} nodes"
    for kinds in KINDS:
        subjects = {}
        for nodes, forest in forests.items():
            seconds, state = clocked(lambda f=forest, n=nodes, k=kinds: build(f, config_of(n, k)))
            say(f"{kinds}: {nodes:,} nodes built in {seconds:.0f} s")
            subjects[nodes] = Subject(forest, state)

        def case(what: str, mode: str, calls: dict, kinds: str = kinds) -> None:
            times = measure(calls, cost)
            ratio = over(times[large], times[small])
            found.append(Ratio("nodes", kinds, what, mode, unit, ratio, len(times[large]), GOAL_SIZE))
            say(f"{kinds}: {what}, {mode}: {number(ratio.median)}")

        at_once = f"{BATCH} in one scan"
        case("match", at_once, {n: s.match_all for n, s in subjects.items()})
        case("insert", at_once, {n: s.insert_all for n, s in subjects.items()})
        # Of one family all is in the CPU's caches, however large the tree: what is left are the levels of the orders.
        one = f"of one family of {forests[small].family} nodes"
        case(f"match, {one}", at_once, {n: partial(s.match_all, among=1) for n, s in subjects.items()})
        case(f"insert, {one}", at_once, {n: partial(s.insert_all, among=1) for n, s in subjects.items()})
        short = cost._replace(seconds=0.0, least=25)  # what is evicted is gone: a small tree stands few rounds
        for policy in cost.policies if kinds == "Full" else cost.policies[:1]:
            calls = {n: victims_of(s.state, policy) for n, s in subjects.items()}
            times = measure(calls, short)
            ratio = over(times[large], times[small])
            found.append(Ratio("eviction", kinds, policy, "per victim", unit, ratio, short.least, GOAL_SIZE))
            say(f"{kinds}: evict, {policy}: {number(ratio.median)}")
        for subject in subjects.values():
            subject.open()
        case("match", "handle", {n: s.match for n, s in subjects.items()})
        case("insert", "handle", {n: s.insert for n, s in subjects.items()})
    return found


# -- 2: nodes on the path --------------------------------------------------------------------------------------------


def chains(kinds: str, seed: int = 2) -> tuple[CacheState, dict[int, np.ndarray]]:
    """A state with BATCH paths of each depth, all of PATH_TOKENS tokens, and their keys (i32[BATCH, PATH_TOKENS])."""
    parts = tuple(urc.SWA(window=PATH_TOKENS) if c.name == "swa" else c for c in KINDS[kinds])  # no cut of its own
    config, rng = (
        urc.CacheConfig(components=parts, max_nodes=2**14, max_key_len=PATH_TOKENS),
        np.random.default_rng(seed),
    )
    state, keys, used = init(config), {}, 0
    for depth in DEPTHS:
        keys[depth] = rng.integers(0, 100_000, (BATCH, PATH_TOKENS), dtype=np.int32)
        keys[depth][:, 0] = 1_000_000 * depth + np.arange(BATCH)
        run = PATH_TOKENS // depth
        for known in range(0, PATH_TOKENS, run):
            own = used + np.arange(BATCH * PATH_TOKENS, dtype=np.int32).reshape(BATCH, -1)
            used += own.size
            slots = {c.name: own[:, :1] if c.copies_on_write else own for c in parts}
            lengths = np.full(BATCH, known + run, np.int32)
            state, done = INSERT(state, keys[depth], lengths, slots, prev_prefix_len=np.full(BATCH, known, np.int32))
            demand(np.asarray(done.status).tolist(), urc.Status.OK)
            demand(np.asarray(done.prefix_len).tolist(), known)
    return state, keys


def extra(times: dict[int, list[float]], deep: int) -> list[float]:
    """Seconds of each round that one more node on the path costs one request, between 1 node and `deep`."""
    return [(b - a) / (deep - 1) / BATCH for a, b in zip(times[1], times[deep], strict=True)]


def by_path(cost: Cost, say: Callable[[str], None]) -> list[Ratio]:
    """What one more node on the path costs: of a lone match (through the handle) on a path of one, and of 0.5 us."""
    found = []
    for kinds in KINDS:
        state, keys = chains(kinds)
        lengths = np.full(BATCH, PATH_TOKENS, np.int32)

        def match_all(depth: int, round_: int, keys: dict = keys, lengths: np.ndarray = lengths) -> float:
            nonlocal state
            given = jax.device_put(np.random.default_rng(round_ + 2).permutation(keys[depth]))
            seconds, (state, match) = clocked(lambda: MATCH(state, given, lengths))
            demand(np.asarray(match.device_len).tolist(), PATH_TOKENS)
            return seconds

        at_once = measure(
            {depth: partial(match_all, depth) for depth in DEPTHS}, cost._replace(seconds=2 * cost.seconds)
        )
        cache = urc.UnifiedRadixCache(state.config)
        cache.state = state

        def match(depth: int, round_: int, keys: dict = keys, cache: Any = cache) -> float:
            given = np.random.default_rng(round_ + 2).permutation(keys[depth])
            seconds, done = answered(lambda: [cache.match_prefix(key) for key in given])
            demand([match.device_len for match in done], PATH_TOKENS)
            return seconds

        lone = measure({depth: partial(match, depth) for depth in DEPTHS}, cost)
        one = statistics.median(lone[1]) / BATCH
        for mode, times in ((f"{BATCH} in one scan", at_once), ("handle", lone)):
            for deep in DEPTHS[1:]:
                seconds, what = extra(times, deep), f"one more node, of {deep}"
                rounds = len(seconds)
                of_goal = spread([s / GOAL_NODE for s in seconds])
                of_one = spread([s / one for s in seconds])
                found.append(Ratio("path", kinds, what, mode, "0.5 us", of_goal, rounds, 1.0))
                found.append(Ratio("path", kinds, what, mode, "a lone match of one node", of_one, rounds))
                say(f"{kinds}: {what}, {mode}: {number(of_goal.median)} x 0.5 us")
    return found


# -- 4: bytes --------------------------------------------------------------------------------------------------------


def sizes_of(config: urc.CacheConfig) -> dict[str, int]:
    """Bytes of each of PARTS of a state, which is not made."""
    state = jax.eval_shape(lambda: init(config))
    size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    slots = sum(size(store.slots) for store in state.stores.values() if hasattr(store, "slots"))
    known = [size(state.nodes), size(state.heads), size(state.tokens), slots, size(state.stores) - slots]
    known.append(size(state.victims))
    return dict(zip(PARTS, [*known, size(state) - sum(known)], strict=True))


def by_byte(tokens: int = POOL, states: int = STATES) -> list[dict[str, Any]]:
    """Bytes per cached token if the pool of Full is full, by array: at default sizes, and with less room to spare."""
    found = []
    small = {"arena_tokens": tokens * 11 // 10, "max_nodes": tokens // 64}
    for (kinds, components), page, small_one in itertools.product(KINDS.items(), (1, 16, 64), (False, True)):
        pools = {c.name: states if c.name == "mamba" else tokens for c in components}
        config = urc.CacheConfig(components=components, page_size=page, pools=pools, **small if small_one else {})
        each = {part: size / tokens for part, size in sizes_of(config).items()}
        sizes = {"max_nodes": config.max_nodes, "arena_tokens": config.arena_tokens}
        found.append({"kinds": kinds, "page": page, **sizes, "bytes": each, "all": sum(each.values())})
    return found


# -- 5: calls in the long run ----------------------------------------------------------------------------------------


class Calls(NamedTuple):
    """One kind of call in a cache at its limits."""

    kinds: str
    pool: int
    call: str
    seconds: np.ndarray  # of each call
    compacted: np.ndarray  # bool: whether the arena was compacted in it

    def quantile(self, q: float | np.ndarray) -> Any:
        """In medians."""
        return np.quantile(self.seconds, q) / np.median(self.seconds)

    @property
    def compacting(self) -> float | None:
        """The median of the calls in which the arena was compacted, in medians of all."""
        if not self.compacted.any():
            return None
        return float(np.median(self.seconds[self.compacted]) / np.median(self.seconds))


class Server:
    """Requests one after the other on a cache: a system prompt, NEW tokens after it; what it needs is evicted."""

    def __init__(self, kinds: str, pool: int, seed: int = 3) -> None:
        pools = {c.name: 2 * pool // NEW if c.name == "mamba" else pool for c in KINDS[kinds]}
        config = urc.CacheConfig(components=KINDS[kinds], pools=pools, page_size=16, max_key_len=SHARED + NEW)
        self.cache, self.rng, self.evicted = urc.UnifiedRadixCache(config), np.random.default_rng(seed), 0
        self.prompts = self.rng.integers(0, 100_000, (PROMPTS, SHARED), dtype=np.int32)
        self.top = 0  # tokens of the arena that are in use, holes included

    def step(self) -> tuple[float, float, bool]:
        """Seconds of the insert and of the whole step; whether the insert compacted the arena."""
        cache = self.cache
        tail = self.rng.integers(0, 100_000, NEW, dtype=np.int32)
        key = np.concatenate([self.prompts[self.rng.integers(PROMPTS)], tail])
        start = time.perf_counter()
        found = cache.match_prefix(key)
        receipt, known, slots = cache.lock(found.node), found.device_len, {}
        for component in cache.config.components:
            name = component.name
            count = 1 if component.copies_on_write else len(key) - known
            own = cache.alloc(name, count)
            if own is None:
                cache.evict({name: count})
                self.evicted += 1
                own = cast(np.ndarray, cache.alloc(name, count))
            slots[name] = own if component.copies_on_write else np.concatenate([np.zeros(known, np.int32), own])
        before = time.perf_counter()
        result = cache.insert(key, slots, prev_prefix_len=known)
        after = time.perf_counter()
        cache.unlock(receipt)
        end = time.perf_counter()
        full = cache.sizes()["full"]
        made = len(key) - result.prefix_len
        compacted = made > cache.config.arena_tokens - self.top
        self.top = full.evictable + full.protected if compacted else self.top + made
        return after - before, end - start, compacted


def in_the_long_run(cost: Cost, say: Callable[[str], None]) -> list[Calls]:
    found = []
    for kinds, pool in itertools.product(KINDS, cost.pools):
        server = Server(kinds, pool)
        while not server.evicted:
            server.step()
        gc.collect()
        gc.disable()
        try:
            steps = [server.step() for _ in range(cost.calls)]
        finally:
            gc.enable()
        inserts, wholes, compacted = map(np.array, zip(*steps, strict=True))
        found += [
            Calls(kinds, pool, "insert", inserts, compacted),
            Calls(kinds, pool, "match to unlock", wholes, compacted),
        ]
        say(f"{kinds}, pool of {pool:,}: {compacted.sum()} compactions in {cost.calls:,} inserts")
    return found


# -- showing ---------------------------------------------------------------------------------------------------------


def grid(title: str, left: tuple[str, ...], right: tuple[str, ...], rows: list[list[str]]) -> Table:
    """A table of texts, then figures."""
    table = Table(title=title, title_justify="left")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def tables(ratios: list[Ratio], rows: list[dict[str, Any]], calls: list[Calls]) -> list[Table]:
    marks = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}
    times = []
    for ratio in ratios:
        value, goal = ratio.value, "" if ratio.goal is None else f"{ratio.goal:g}"
        figure = f"{number(value.median)} ({number(value.p10)} - {number(value.p90)})"
        times.append([ratio.part, ratio.kinds, ratio.what, ratio.mode, ratio.unit, figure, goal, marks[ratio.met]])
    sizes = []
    for row in rows:
        each = [f"{row['bytes'][part]:.2f}" for part in PARTS]
        counts = [f"{row['max_nodes']:,}", f"{row['arena_tokens']:,}"]
        sizes.append([row["kinds"], str(row["page"]), *counts, *each, f"{row['all']:.1f}"])
    delays = []
    for one in calls:
        values = [*(one.quantile(q) for q in QUANTILES), one.compacting]
        cells = ["-" if value is None else number(float(value)) for value in values]
        counts = [f"{len(one.seconds):,}", str(int(one.compacted.sum()))]
        delays.append([one.kinds, one.call, f"{one.pool:,}", *counts, *cells])
    quantiles = (*(f"p{100 * q:g}" for q in QUANTILES[:-1]), "worst")
    return [
        grid(
            "times: median (p10 - p90) of the rounds",
            ("what costs", "components", "operation", "mode", "in units of"),
            ("figure", "goal", ""),
            times,
        ),
        grid(
            f"bytes per cached token of a full pool of {POOL:,}",
            ("components",),
            ("page", "max_nodes", "arena_tokens", *PARTS, "all"),
            sizes,
        ),
        grid(
            "time of a call / its median, in a cache at its limits",
            ("components", "call"),
            ("pool", "calls", "compactions", *quantiles, "one that compacts"),
            delays,
        ),
    ]


def document(ratios: list[Ratio], rows: list[dict[str, Any]], calls: list[Calls]) -> dict[str, Any]:
    shape = lambda one: {str(q): float(one.quantile(q)) for q in QUANTILES} | {"compacting": one.compacting}
    name = lambda one: {"kinds": one.kinds, "pool": one.pool, "call": one.call, "calls": len(one.seconds)}
    return {
        **environment(),
        "ratios": [{**ratio._asdict(), "value": ratio.value._asdict(), "met": ratio.met} for ratio in ratios],
        "bytes_per_token": rows,
        "calls": [{**name(one), "compactions": int(one.compacted.sum()), "medians": shape(one)} for one in calls],
    }


def plot(calls: list[Calls], path: Path) -> None:
    """Quantiles of the latency: how many calls take longer than so many medians."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(one.call for one in calls))
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        for one in calls:
            if one.call == name:
                beyond = np.geomspace(0.5, 1 / len(one.seconds), 400)
                axes.plot(beyond, one.quantile(1 - beyond), label=f"{one.kinds}, pool of {one.pool:,}", linewidth=1.2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.invert_xaxis()
        axes.set_xticks([0.5, 0.1, 0.01, 0.001], ["p50", "p90", "p99", "p99.9"])
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("quantile of the calls")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.axes[0].set_ylabel("time / median of the calls")
    figure.savefig(path, dpi=150)


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the guide tells a scheduler to
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 nodes, two policies, few rounds: about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies into this one")
    arguments = parser.parse_args()
    cost = QUICK if arguments.quick else FULL
    messages, start = Console(stderr=True), time.monotonic()
    say = lambda text: messages.print(f"{time.monotonic() - start:5.0f} s  {text}", highlight=False)
    rows = by_byte()
    ratios = by_path(cost, say) + by_size(cost, say)
    calls = in_the_long_run(cost, say)
    show(*tables(ratios, rows, calls), width=180)
    if arguments.json:
        arguments.json.write_text(json.dumps(document(ratios, rows, calls), indent=2) + "\n")
    if arguments.plot:
        plot(calls, arguments.plot)


if __name__ == "__main__":
    main()
