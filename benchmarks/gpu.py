"""Is it right on this device, and what does it cost there: for a GPU; a CPU will do too.

python benchmarks/gpu.py [--quick] [--minutes 5] [--json FILE]

Random calls are compared with the plain-Python oracle of the tests, result by result, through the host handle and
through the batched pure functions. Then batches of requests of 8,192 tokens are timed on a tree of 2,000 sequences:
keys and state stay on the device, which is waited for at the end of each call. Programs compile side by side,
while the comparison runs. What no time is left for is named; figures so far are in the file at any time.
"""

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table

import urc
from urc import ops, view
from urc.ops import parallel
from urc.ops.walk import walk
from urc.state import NodeRef
from urc.tables.packed import CHUNK

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import fuzz
from tests.oracle import OracleCache, OracleFull
from tests.oracle.components import FULL, MAMBA, SWA
from tests.pair import Difference, Pair, errors, same
from tests.setups import SETUPS

NEW = 64  # tokens that a request adds to a stored sequence: a leaf
PAGE = 16


class Plan(NamedTuple):
    """What to measure. `levels`: (tokens of a run, branches) of each level of the tree, as in chat traffic."""

    levels: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    evictions: tuple[int, ...]  # leaves of one call
    setups: tuple[str, ...]  # of the tests, for the handle
    calls: tuple[str, ...]  # moves of the tests
    moves: int
    rounds: int  # of the batched functions against the oracle
    seconds: float  # of one case
    minutes: float
    before: float  # share of them that comparisons and compilations may take before the first case is timed

    @property
    def stored(self) -> int:
        """Tokens of a request that the tree holds."""
        return sum(length for length, _ in self.levels)


CALLS = ("match", "request", "insert_own", "evict", "lock", "unlock")
SETUPS_OF_KINDS = ("p2_lfu_few_nodes", "p2_swa3", "p1_mamba_per_path")  # Full; Full, SWA; Full, Mamba
FULL_PLAN = Plan(
    levels=((4096, 1), (2048, 10), (1472, 10), (512, 20)),
    batches=(64, 256, 1024, 4096),
    evictions=(200, 2000),
    setups=SETUPS_OF_KINDS,
    calls=(*CALLS, "match_many", "probe_many", "again"),
    moves=400,
    rounds=12,
    seconds=2.0,
    minutes=5.0,
    before=0.5,
)
QUICK_PLAN = Plan(
    levels=((1024, 1), (512, 4), (192, 4), (256, 8)),
    batches=(64,),
    evictions=(4, 32),
    setups=SETUPS_OF_KINDS[:1],
    calls=CALLS,
    moves=100,
    rounds=3,
    seconds=1.0,
    minutes=1.3,
    before=0.7,
)

# -- right: the handle -------------------------------------------------------------------------------------------


class Draw(fuzz.Draw):
    """Random moves out of `calls`, each as likely as the others."""

    def __init__(self, setup: Any, rng: np.random.Generator, calls: tuple[str, ...]) -> None:
        super().__init__(setup, rng)
        self.names = list(calls)
        self.edges = np.cumsum(np.full(len(calls), 1 / len(calls)))


def compare_handle(name: str, calls: tuple[str, ...], moves: int) -> int:
    """Plays random moves on a handle and the oracle; returns the number of calls compared. Raises `Difference`."""
    setup, (refused, no_room) = SETUPS[name], errors()
    pair = Pair(setup, setup.cache(), refused=refused, no_room=no_room)
    draw = Draw(setup, np.random.default_rng(0), calls)
    fuzz.play(pair, (draw.step() for _ in range(moves)), every=50)
    return pair.calls


# -- right: the batched functions --------------------------------------------------------------------------------

WINDOW = 6
KINDS: dict[str, tuple[urc.Component, ...]] = {
    "full": (urc.Full(),),
    "full, swa": (urc.Full(), urc.SWA(window=WINDOW)),
    "full, mamba": (urc.Full(), urc.Mamba()),
}
KEYS, WIDTH = 16, 640  # keys of a batch; tokens, so that runs are longer than the chunks that loops take


def batch_config(kind: str) -> urc.CacheConfig:
    """Pages of 2; the caller owns the slots; nodes and arena run out."""
    return urc.CacheConfig(components=KINDS[kind], page_size=2, max_nodes=48, arena_tokens=5000, max_sessions=1)


def batch_round(state: urc.CacheState, asked: dict[str, Any]) -> tuple[urc.CacheState, dict[str, Any]]:
    """Inserts, probes, matches, locks, evicts, unlocks and evicts again, a batch each."""
    room = state.config.pool_room(FULL)

    def take(state: urc.CacheState, node: NodeRef) -> tuple[urc.CacheState, Any]:
        state, receipt, status = ops.lock(state, node)
        return state, (receipt, status)

    def evict(state: urc.CacheState, targets: dict[str, jax.Array]) -> tuple[urc.CacheState, Any]:
        state, evicted = ops.evict(state, targets)
        runs = {name: ops.freed_slots(state, name, run, width=room) for name, run in evicted.freed.items()}
        return state, (evicted.evicted, runs)

    keys, lengths, spaces = asked["inserted"]
    options = {"namespace": spaces, "given": asked["given"], "evicted_len": asked["evicted_len"]}
    state, inserted = ops.inserts(state, keys, lengths, asked["slots"], **options)
    keys, lengths, spaces = asked["looked_up"]
    probed = ops.probes(state, keys, lengths, namespaces=spaces)
    state, matched = ops.match_prefixes(state, keys, lengths, namespaces=spaces)
    state, (receipts, locked) = lax.scan(take, state, matched.node)
    state, first = evict(state, asked["targets"][0])
    state, released = lax.scan(ops.unlock, state, receipts)
    state, second = evict(state, asked["targets"][1])
    evictions, statuses = (first, second), jnp.concatenate([locked, released])
    return state, {"in": inserted, "probed": probed, "matched": matched, "evicted": evictions, "statuses": statuses}


class Batches:
    """Draws what a round asks for, and has the oracle answer it."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.config = batch_config(kind)
        self.names = [component.name for component in self.config.components]
        self.rng = np.random.default_rng(seed)
        self.known = [np.zeros(0, np.int32)]
        self.slot = itertools.count()
        self.oracle = OracleCache(
            page_size=self.config.page_size,
            pools=dict.fromkeys(self.names),
            window=WINDOW,
            max_nodes=self.config.max_nodes,
            arena_tokens=self.config.arena_tokens,
        )

    def key(self) -> np.ndarray:
        """An earlier key up to somewhere, and more; tokens are few, so that keys meet again."""
        rng, old = self.rng, self.known[self.rng.integers(len(self.known))]
        more = rng.integers(0, 2, rng.choice([1, 2, 5, 40, 300])).astype(np.int32)
        key = np.concatenate([old[: rng.integers(len(old) + 1)], more])[:WIDTH]
        self.known.append(key)
        return key

    def keys(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(keys, lengths, namespaces) of a batch."""
        rows, keys = np.zeros((KEYS, WIDTH), np.int32), [self.key() for _ in range(KEYS)]
        for row, key in zip(rows, keys, strict=True):
            row[: len(key)] = key
        return rows, np.array([len(key) for key in keys], np.int32), self.rng.integers(0, 2, KEYS, dtype=np.int32)

    def ask(self) -> dict[str, Any]:
        """A round: some of the keys without a state, or without the first slots of their window."""
        rng, (keys, lengths, spaces) = self.rng, self.keys()
        counts = {FULL: lengths, SWA: lengths, MAMBA: rng.integers(0, 2, KEYS, dtype=np.int32)}
        width = {FULL: WIDTH, SWA: WIDTH, MAMBA: 1}
        fresh = lambda name: np.fromiter(itertools.islice(self.slot, KEYS * width[name]), np.int32)
        given_up = rng.integers(0, lengths + 1).astype(np.int32) * rng.integers(0, 2, KEYS, dtype=np.int32)
        target = lambda name: np.int32(rng.integers(0, 4 if name == MAMBA else 1500))
        return {
            "inserted": (keys, lengths, spaces),
            "slots": {name: fresh(name).reshape(KEYS, width[name]) for name in self.names},
            "given": {name: counts[name] for name in self.names},
            "evicted_len": {SWA: given_up} if SWA in self.names else {},
            "looked_up": self.keys(),
            "targets": [{name: target(name) for name in self.names} for _ in range(2)],
        }

    def _insert(self, asked: dict[str, Any], i: int, got: Any) -> None:
        keys, lengths, spaces = asked["inserted"]
        slots = {name: asked["slots"][name][i][: asked["given"][name][i]].tolist() for name in self.names}
        given_up = {name: int(of[i]) for name, of in asked["evicted_len"].items()}
        status = urc.Status(int(got.status[i]))
        try:
            want = self.oracle.insert(keys[i][: lengths[i]], slots, int(spaces[i]), evicted_len=given_up)
        except OracleFull:
            same(f"insert {i} is refused", status in (urc.Status.NO_FREE_NODE, urc.Status.ARENA_FULL), True)
            return
        same(f"status of insert {i}", status, urc.Status.OK)
        same(f"prefix_len of insert {i}", int(got.prefix_len[i]), want.prefix_len)
        same(f"existed of insert {i}", {n: bool(got.existed[n][i]) for n in self.names}, want.existed)
        freed = {name: int(got.freed[name][1][i]) for name in self.names}
        same(f"slots freed by insert {i}", freed, {name: len(slots) for name, slots in want.freed.items()})

    def _match(self, what: str, got: Any, i: int, want: Any) -> None:
        for name in ("device_len", "full_len", "branching_len"):
            same(f"{name} of {what} {i}", int(getattr(got, name)[i]), getattr(want, name))
        same(f"stop of {what} {i}", urc.Stop(int(got.stop[i])).name, want.stop)
        same(f"hits of {what} {i}", {n: int(hit[i]) for n, hit in got.hits.items()}, want.hits)
        for component in self.config.components:
            held = got.slots[component.name][i][: component.matched(want.device_len)].tolist()
            same(f"slots of {what} {i}", held, want.slots[component.name])

    def answer(self, asked: dict[str, Any], got: dict[str, Any]) -> None:
        """Has the oracle do the same, and raises `Difference` where it comes to another result."""
        for i in range(KEYS):
            self._insert(asked, i, got["in"])
        queries = [(key[:length], int(space)) for key, length, space in zip(*asked["looked_up"], strict=True)]
        for i, (key, space) in enumerate(queries):
            self._match("probe", got["probed"], i, self.oracle.probe(key, space))
        matches = [self.oracle.match_prefix(key, space) for key, space in queries]
        for i, want in enumerate(matches):
            self._match("match", got["matched"], i, want)
        receipts = [self.oracle.lock(want.node) for want in matches]
        same("locks and unlocks", set(got["statuses"].tolist()), {urc.Status.OK})
        for targets, (counts, slots) in zip(asked["targets"], got["evicted"], strict=True):
            want = self.oracle.evict({name: int(n) for name, n in targets.items()})
            same("evicted", {name: int(n) for name, n in counts.items()}, want.evicted)
            freed = {name: sorted(of[: counts[name]].tolist()) for name, of in slots.items()}
            same("slots evicted", freed, {name: sorted(of) for name, of in want.freed.items()})
            for receipt in receipts:
                self.oracle.unlock(receipt)
            receipts = []
        self.oracle.check()


def compare_batches(kind: str, rounds: int) -> int:
    """Compares rounds of the batched functions with the oracle; returns the number of calls compared."""
    batches = Batches(kind)
    state, asked = urc.init(batches.config), batches.ask()
    on_cpu = jax.default_backend() == "cpu"
    options: dict = {"xla_backend_optimization_level": 0} if on_cpu else {}  # compiles in half the time
    call = jax.jit(batch_round, donate_argnums=0).lower(state, asked).compile(compiler_options=options)
    for _ in range(rounds):
        state, got = call(state, asked)
        batches.answer(asked, jax.tree.map(np.asarray, got))
        view.check(state)
        asked = batches.ask()
    return rounds * (5 * KEYS + 2)


# -- fast --------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One row: seconds per call, and how many requests (or leaves) a call has."""

    op: str
    size: int
    compile_seconds: float
    seconds: list[float]

    def summary(self) -> tuple[float, float, float]:
        """Median, tenth and ninetieth percentile of the seconds per call."""
        low, high = np.percentile(self.seconds, [10, 90]).tolist()
        return statistics.median(self.seconds), low, high


class Tree:
    """Sequences that share prefixes, as the runs of a tree: every run begins with a token that no other has."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan, self.rng = plan, np.random.default_rng(seed)
        self.fresh = itertools.count(1_000_000)
        self.runs = 0
        self.sequences = np.stack([np.concatenate(path) for path in self._grow((), plan.levels)])

    def _run(self, length: int) -> np.ndarray:
        run = self.rng.integers(0, 100_000, length, dtype=np.int32)
        run[0] = next(self.fresh)
        return run

    def _grow(self, path: tuple, levels: tuple) -> Iterator[tuple]:
        if not levels:
            yield path
            return
        (length, branches), *below = levels
        for _ in range(branches):
            self.runs += length
            yield from self._grow((*path, self._run(length)), tuple(below))

    def requests(self, count: int) -> np.ndarray:
        """i32[count, tokens]: each a sequence and NEW tokens of its own."""
        known = self.sequences[self.rng.integers(len(self.sequences), size=count)]
        return np.concatenate([known, np.stack([self._run(NEW) for _ in range(count)])], axis=1)

    def config(self) -> urc.CacheConfig:
        """First in, last out: an eviction takes what was inserted last, and leaves the tree as it was."""
        leaves = max(self.plan.batches)
        return urc.CacheConfig(
            page_size=PAGE,
            policy="filo",
            max_nodes=2 * (len(self.sequences) + leaves),
            arena_tokens=2 * (self.runs + NEW * leaves),
            max_key_len=self.plan.stored + NEW,
        )


def _walks(state: urc.CacheState, keys: jax.Array, lengths: jax.Array, *, by_level: bool) -> Any:
    tree = (state.config, state.nodes, state.heads, state.tokens)
    spaces = jnp.zeros_like(lengths)
    if by_level:
        return parallel.walks(*tree, keys, lengths, spaces)
    roomy = jnp.pad(keys, ((0, 0), (0, CHUNK)))  # to read a page and a chunk at its end
    return jax.vmap(lambda *query: walk(*tree, *query))(roomy, lengths, spaces)


def _inserts(state: urc.CacheState, keys: jax.Array, lengths: jax.Array) -> Any:
    slots = jnp.broadcast_to(jnp.arange(keys.shape[1], dtype=jnp.int32), keys.shape)  # the caller's: any will do
    return ops.inserts(state, keys, lengths, {FULL: slots})


def _evict(state: urc.CacheState, slots: jax.Array) -> Any:
    return ops.evict(state, {FULL: slots})


PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {  # whether it changes the state, which it then takes over
    "inserts": (_inserts, True),
    "match_prefixes": (ops.match_prefixes, True),
    "probes": (ops.probes, False),
    "walks by run": (partial(_walks, by_level=False), False),
    "walks by level": (partial(_walks, by_level=True), False),
}


def compiled(call: Callable[..., Any], changes: bool, *shapes: Any) -> tuple[Any, float]:
    """The program for these shapes, and the seconds that it took to get it."""
    start = time.perf_counter()
    program = jax.jit(call, donate_argnums=0 if changes else ()).lower(*shapes).compile()
    return program, time.perf_counter() - start


def timed(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(call(*args))
    return time.perf_counter() - start, result


class Clock:
    """Says what there is time for, and collects what was measured."""

    def __init__(self, plan: Plan, report: Callable[[Case], None] = lambda case: None) -> None:
        self.plan, self.report = plan, report
        self.end = time.monotonic() + 60 * plan.minutes
        self.cases: list[Case] = []
        self.notes: list[str] = []

    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)

    def program(self, name: str, future: Future) -> tuple[Any, float] | None:
        """What was compiled, if it comes in time."""
        try:
            return future.result(self.left())
        except TimeoutError:
            self.notes.append(f"{name}: not compiled in time")
        except Exception as error:
            self.notes.append(f"{name}: {type(error).__name__}: {error}")
        return None

    def fits(self, name: str, op: str, count: int, calls: int = 4) -> bool:
        """Whether `calls` calls end in time, if a request costs what it did in the last batch."""
        before = [case.summary()[0] / case.size for case in self.cases if case.op == op]
        fits = calls * count * (before[-1] if before else 0.0) < self.left() and self.left() > 0
        if not fits:
            self.notes.append(f"{name}: no time left")
        return fits

    def rounds(self) -> Iterator[int]:
        """-1 warms up; then at least 3, at most 30, within the seconds of a case and what is left."""
        end = min(time.monotonic() + self.plan.seconds, self.end)
        for number in range(-1, 30):
            if number >= 3 and time.monotonic() > end:
                return
            yield number

    def add(self, case: Case) -> None:
        self.cases.append(case)
        self.report(case)


def compile_all(plan: Plan, tree: Tree, workers: ThreadPoolExecutor) -> dict[tuple[str, int], Future]:
    """(operation, batch) -> its program, being compiled; the smallest batches first."""
    state = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), urc.init(tree.config()))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    futures = {("evict", 1): workers.submit(compiled, _evict, True, state, number)}
    for batch in plan.batches:
        keys = jax.ShapeDtypeStruct((batch, plan.stored + NEW), jnp.int32)
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
        for op, (call, changes) in PROGRAMS.items():
            futures[op, batch] = workers.submit(compiled, call, changes, state, keys, lengths)
    return futures


def build(tree: Tree, insert: Any, batch: int) -> urc.CacheState:
    """The tree, inserted a batch at a time."""
    state, count = urc.init(tree.config()), len(tree.sequences)
    keys = np.pad(tree.sequences, ((0, -count % batch), (0, NEW)), mode="edge")
    lengths = jnp.full(batch, tree.plan.stored, jnp.int32)
    for first in range(0, len(keys), batch):
        state, inserted = insert(state, jax.device_put(keys[first : first + batch]), lengths)
        same("status", bool(jnp.all(inserted.status == urc.Status.OK)), True)
    return state


def measure(plan: Plan, tree: Tree, futures: dict[tuple[str, int], Future], clock: Clock) -> None:
    """Times every program on the same tree. The state stays on the device."""
    first = clock.program("the tree", futures["inserts", plan.batches[0]])
    evict = clock.program("evict", futures["evict", 1])
    if not first or not evict:
        return
    state = build(tree, first[0], plan.batches[0])
    gc.collect()
    gc.disable()
    for batch in plan.batches:
        keys, lengths = jax.device_put(tree.requests(batch)), jnp.full(batch, plan.stored + NEW, jnp.int32)
        answers = {}
        for op in [op for op in PROGRAMS if op != "inserts"]:
            name = f"{op}, {batch}"
            got = clock.fits(name, op, batch) and clock.program(name, futures[op, batch])
            if not got:
                continue
            times = []
            for number in clock.rounds():
                seconds, result = timed(got[0], state, keys, lengths)
                state, answers[op] = result if PROGRAMS[op][1] else (state, result)
                times += [seconds] if number >= 0 else []
            found = answers[op].length if op.startswith("walks") else answers[op].device_len
            same(f"length found by {name}", bool(jnp.all(found == plan.stored)), True)
            clock.add(Case(op, batch, got[1], times))
        if {"walks by run", "walks by level"} <= set(answers):
            equal = jax.tree.map(jnp.array_equal, answers["walks by run"], answers["walks by level"])
            same("the two walks", all(map(bool, jax.tree.leaves(equal))), True)
        del answers
        state = measure_inserts(plan, batch, (state, keys, lengths), futures, evict, clock)
    gc.enable()


def measure_inserts(
    plan: Plan, batch: int, given: tuple, futures: dict[tuple[str, int], Future], evict: tuple[Any, float], clock: Clock
) -> urc.CacheState:
    """Times inserts of a batch, each undone by evictions; of the largest batch, these are timed too."""
    state, keys, lengths = given
    name, times = f"inserts, {batch}", []
    got = clock.fits(name, "inserts", batch, calls=8) and clock.program(name, futures["inserts", batch])
    if not got:
        return state
    large, taken = batch == max(plan.batches), {leaves: [] for leaves in plan.evictions}
    for number in clock.rounds():
        seconds, (state, inserted) = timed(got[0], state, keys, lengths)
        times += [seconds] if number >= 0 else []
        known = jnp.all((inserted.prefix_len == plan.stored) & (inserted.status == urc.Status.OK))
        same("length found by inserts", bool(known), True)
        left = batch
        for leaves in sorted(plan.evictions, reverse=True) if large else ():
            for _ in range(min(left // leaves, 1 if leaves == max(plan.evictions) else 8)):
                seconds, (state, evicted) = timed(evict[0], state, jnp.int32(NEW * leaves))
                same("slots evicted", int(evicted.evicted[FULL]), NEW * leaves)
                taken[leaves] += [seconds] if number >= 0 else []
                left -= leaves
        state, evicted = evict[0](state, jnp.int32(NEW * left))
        same("slots evicted at last", int(evicted.evicted[FULL]), NEW * left)
    clock.add(Case("inserts", batch, got[1], times))
    for leaves, seconds in taken.items() if large else ():
        clock.add(Case("evict", leaves, evict[1], seconds))
    return state


# -- said --------------------------------------------------------------------------------------------------------


def facts() -> dict[str, str | int]:
    """What was measured on."""
    device, driver = jax.devices()[0], Path("/proc/driver/nvidia/version")
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "runtime": device.client.platform_version.replace("\n", "; "),
        "driver": driver.read_text().splitlines()[0] if driver.exists() else "none",
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 0,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def compare_all(plan: Plan, workers: ThreadPoolExecutor) -> dict[str, Future]:
    """The comparisons with the oracle, under way: each comes to the number of calls compared."""
    handles = {f"handle, {name}": workers.submit(compare_handle, name, plan.calls, plan.moves) for name in plan.setups}
    return handles | {f"batches, {kind}": workers.submit(compare_batches, kind, plan.rounds) for kind in KINDS}


def table(cases: list[Case]) -> Table:
    result = Table(title="milliseconds a call, median (p10 - p90)", title_justify="left")
    for name in ("operation", "requests or leaves", "ms a call", "us each", "calls", "compile s"):
        result.add_column(name, justify="left" if name == "operation" else "right", no_wrap=True)
    for case in sorted(cases, key=lambda case: case.op):
        mid, low, high = (1e3 * value for value in case.summary())
        numbers = (f"{mid:.3f} ({low:.3f} - {high:.3f})", f"{1e3 * mid / case.size:.2f}", str(len(case.seconds)))
        result.add_row(case.op, f"{case.size:,}", *numbers, f"{case.compile_seconds:.1f}")
    return result


def document(plan: Plan, compared: dict[str, int | str], cases: list[Case], notes: list[str]) -> dict[str, Any]:
    """`compared`: calls that agree with the oracle, or what was different."""
    rows = [
        {
            "op": case.op,
            "size": case.size,
            "calls": len(case.seconds),
            "seconds_per_call": dict(zip(("median", "p10", "p90"), case.summary(), strict=True)),
            "compile_seconds": case.compile_seconds,
        }
        for case in cases
    ]
    tokens = {"tokens": plan.stored + NEW, "page_size": PAGE}
    return {**facts(), **tokens, "compared": compared, "cases": rows, "notes": notes}


def collect(comparisons: dict[str, Future], seconds: float, compared: dict[str, int | str], console: Console) -> None:
    """Waits for comparisons and moves those that are done into `compared`: the calls, or what was different."""
    wait(comparisons.values(), seconds)
    for name in [name for name, future in comparisons.items() if future.done()]:
        future = comparisons.pop(name)
        if error := future.exception():
            compared[name] = f"{type(error).__name__}: {error}"
            traceback.print_exception(error)
        else:
            compared[name] = future.result()
            console.print(f"{name}: {compared[name]:,} calls as the oracle has them")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short keys, one batch, few comparisons: for a CPU")
    parser.add_argument("--minutes", type=float, help="no case begins after that; default 5, or 1.3 if quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    arguments = parser.parse_args()
    plan = QUICK_PLAN if arguments.quick else FULL_PLAN
    plan = plan._replace(minutes=arguments.minutes or plan.minutes)
    console, compared = Console(highlight=False), {}
    console.width = console.width if console.is_terminal else 120
    for name, value in facts().items():
        console.print(f"{name}: {value}")

    def save() -> None:
        if arguments.json:
            found = document(plan, compared, clock.cases, clock.notes)
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")

    def report(case: Case) -> None:
        mid = case.summary()[0]
        console.print(f"{case.op}, {case.size:,}: {1e3 * mid:.3f} ms, {1e6 * mid / case.size:.2f} us each")
        save()

    clock, tree = Clock(plan, report), Tree(plan)
    checkers = ThreadPoolExecutor(len(plan.setups) + len(KINDS))
    compilers = ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2))
    comparisons, programs = compare_all(plan, checkers), compile_all(plan, tree, compilers)
    wait([*comparisons.values(), *programs.values()], plan.before * clock.left())
    collect(comparisons, 0.0, compared, console)
    busy = [*comparisons, *(f"{op}, {batch}" for (op, batch), future in programs.items() if not future.done())]
    if busy:
        clock.notes.append(f"not quiet when the first case was timed, as these went on: {'; '.join(busy)}")
    try:
        measure(plan, tree, programs, clock)
    except Difference as error:
        compared["the calls measured"] = str(error)
        traceback.print_exception(error)
    collect(comparisons, clock.left(), compared, console)
    clock.notes += [f"{name}: not compared in time" for name in comparisons]
    save()
    console.print(table(clock.cases))
    for line in clock.notes:
        console.print(f"note: {line}")
    return int(any(isinstance(what, str) for what in compared.values()))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what still compiles must not hold the end up
