"""How fast match and insert are, as ratios to the plain-Python oracle of the tests.

python benchmarks/ops.py [--quick] [--json FILE]

A tree of 2,000 sequences shares prefixes as chat traffic does: a system prompt that all have, then branches. A request
is one of the sequences and 64 new tokens. Both sides answer the same requests in the same run, in turn, and their
answers are compared. A ratio is the oracle's time over urc's of one round: above 1, urc is faster.
"""

import argparse
import gc
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from output import environment, show  # benchmarks/output.py
from rich.console import Console
from rich.progress import track
from rich.table import Table
from workload import BATCH, LEVELS, NEW, Tree, timed  # benchmarks/workload.py

import urc
from urc import ops

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.oracle import OracleCache

PAGES = (1, 16, 64)
BUILD_PAGE = 64  # all runs are multiples of it, so the tree is the same for each page size
MAX_NODES = 4096


class Cost(NamedTuple):
    """How long to measure: seconds a case, and rounds."""

    seconds: float
    least: int
    most: int


class Case(NamedTuple):
    """Times of the rounds of one case, in seconds; each round is BATCH requests."""

    op: str
    batch: int
    tokens: int
    page_size: int
    urc: list[float]
    oracle: list[float]

    def ratios(self) -> tuple[float, float, float]:
        """Median, tenth and ninetieth percentile."""
        ratios = [slow / fast for slow, fast in zip(self.oracle, self.urc, strict=True)]
        low, *_, high = statistics.quantiles(ratios, n=10, method="inclusive")
        return statistics.median(ratios), low, high


class Oracle(OracleCache):
    """Without its check of who holds a slot: it scans the whole tree, which would hide all other costs."""

    def _check_held(self, slots: list[int]) -> None:
        pass

    def take_out(self, tokens: tuple) -> None:
        """Undoes the insert of `tokens`, whose end node is a leaf."""
        leaf = self._walk(None, tokens)[0][-1]
        leaf.parent.children.remove(leaf)


def oracle_of(tree: Tree) -> Oracle:
    oracle, slots = Oracle(page_size=BUILD_PAGE, policy="filo"), itertools.count()
    for key, shared in tree.inserts():
        held = [0] * shared + list(itertools.islice(slots, len(key) - shared))
        oracle.insert(key.tolist(), {"full": held}, prev_prefix_len=shared)
    return oracle


def cache_of(tree: Tree, page_size: int) -> urc.UnifiedRadixCache:
    """First in, last out: so that an eviction takes out what a round has put in, and nothing else."""
    config = urc.CacheConfig(
        page_size=page_size,
        pools={"full": tree.stored + NEW * BATCH},
        policy="filo",
        max_nodes=MAX_NODES,
        max_key_len=tree.tokens,
    )
    cache = urc.UnifiedRadixCache(config)
    for key, shared in tree.inserts():
        cache.insert(key, slots_of(key, cache.alloc("full", len(key) - shared)), prev_prefix_len=shared)
    return cache


def slots_of(key: np.ndarray, fresh: np.ndarray) -> dict[str, np.ndarray]:
    """Slots for a whole key; those below the fresh ones are the tree's own and are not looked at."""
    return {"full": np.concatenate([np.zeros(len(key) - len(fresh), np.int32), fresh])}


class Side(NamedTuple):
    """What one side does with the requests of a round: `call` is timed, `undo` is not."""

    call: Callable[[list], list[int]]  # requests -> the lengths found
    undo: Callable[[list], None] = lambda requests: None


def measure(tree: Tree, mine: Side, theirs: Side, cost: Cost) -> tuple[list[float], list[float]]:
    """Rounds of both sides in turn, on the same new requests, without garbage collection; two rounds warm up."""
    times: tuple[list[float], list[float]] = ([], [])
    end = math.inf
    gc.collect()
    gc.disable()
    for number in itertools.count(-2):
        if number == 0:
            end = time.monotonic() + cost.seconds
        arrays = [tree.request() for _ in range(BATCH)]
        given = (arrays, [tuple(array.tolist()) for array in arrays])
        answers: list = [None, None]
        for side in (0, 1) if number % 2 else (1, 0):
            seconds, answers[side] = timed(partial((mine, theirs)[side].call, given[side]))
            if number >= 0:
                times[side].append(seconds)
        mine.undo(given[0])
        theirs.undo(given[1])
        expected = [tree.tokens - NEW] * BATCH
        assert list(answers[0]) == expected == list(answers[1]), "the two sides do not agree"
        if number + 1 >= cost.most or (number + 1 >= cost.least and time.monotonic() > end):
            break
    gc.enable()
    return times


def sides(cache: urc.UnifiedRadixCache, oracle: Oracle) -> Iterator[tuple[str, int, Side, Side]]:
    """(operation, batch, urc, oracle) of the four cases."""

    def oracle_matches(keys: list) -> list[int]:
        return [oracle.match_prefix(key).device_len for key in keys]

    yield "match", 1, Side(lambda keys: [cache.match_prefix(key).device_len for key in keys]), Side(oracle_matches)
    yield "match", BATCH, Side(lambda keys: [m.device_len for m in cache.match_prefixes(keys)]), Side(oracle_matches)

    def oracle_inserts(keys: list) -> list[int]:
        known = len(keys[0]) - NEW
        slots = {"full": list(range(len(keys[0])))}
        return [oracle.insert(key, slots, prev_prefix_len=known).prefix_len for key in keys]

    def oracle_undo(keys: list) -> None:
        for key in keys:
            oracle.take_out(key)

    theirs = Side(oracle_inserts, oracle_undo)
    fresh = cache.alloc("full", NEW * BATCH)

    def insert(keys: list) -> list[int]:
        parts = fresh.reshape(len(keys), NEW)
        return [
            cache.insert(key, slots_of(key, part), prev_prefix_len=len(key) - NEW).prefix_len
            for key, part in zip(keys, parts, strict=True)
        ]

    def undo(keys: list) -> None:
        nonlocal fresh
        cache.evict({"full": NEW * BATCH})
        fresh = cache.alloc("full", NEW * BATCH)

    yield "insert", 1, Side(insert, undo), theirs

    alloc = ops.donating(partial(ops.alloc, name="full", width=NEW * BATCH))
    evict, inserts = ops.donating(ops.evict), ops.donating(ops.inserts)
    state, slots = jax.tree.map(np.array, cache.state), fresh

    def insert_all(keys: list) -> list[int]:
        nonlocal state
        rows, lengths = np.stack(keys), np.full(len(keys), len(keys[0]), np.int32)
        parts = np.asarray(slots).reshape(len(keys), NEW)
        handed = np.concatenate([np.zeros((len(keys), len(keys[0]) - NEW), np.int32), parts], axis=1)
        state, inserted = inserts(state, rows, lengths, {"full": handed}, prev_prefix_len=lengths - NEW)
        return np.asarray(inserted.prefix_len).tolist()

    def undo_all(keys: list) -> None:
        nonlocal state, slots
        state, _ = evict(state, {"full": NEW * BATCH})
        state, slots, _ = alloc(state, count=NEW * BATCH)

    yield "insert", BATCH, Side(insert_all, undo_all), theirs


def run(sizes: list[int], pages: tuple[int, ...], cost: Cost) -> list[Case]:
    cases = []
    steps = [(tokens, page) for tokens in sizes for page in pages]
    console = Console(stderr=True)
    for tokens, page in track(steps, "measuring", console=console, disable=not console.is_terminal):
        if page == pages[0]:
            tree = Tree(tokens)
            oracle = oracle_of(tree)
        oracle.page_size = page
        cache = cache_of(tree, page)
        for op, batch, mine, theirs in sides(cache, oracle):
            cases.append(Case(op, batch, tokens, page, *measure(tree, mine, theirs, cost)))
    return cases


def table(cases: list[Case]) -> Table:
    result = Table(title="oracle's time / urc's time: median (p10 - p90)", title_justify="left")
    kinds = list(dict.fromkeys((case.op, case.batch) for case in cases))
    for name in ("tokens", "page"):
        result.add_column(name, justify="right")
    for op, batch in kinds:
        result.add_column(op if batch == 1 else f"{op}, {batch} at once", justify="right", no_wrap=True)
    cells = {(c.tokens, c.page_size, c.op, c.batch): c.ratios() for c in cases}
    for tokens, page in dict.fromkeys((case.tokens, case.page_size) for case in cases):
        found = [cells[tokens, page, *kind] for kind in kinds]
        result.add_row(f"{tokens:,}", str(page), *(f"{mid:.3g} ({low:.3g} - {high:.3g})" for mid, low, high in found))
    return result


def document(cases: list[Case]) -> dict:
    return {
        **environment(),
        "cases": [
            {
                "op": case.op,
                "batch": case.batch,
                "tokens": case.tokens,
                "page_size": case.page_size,
                "rounds": len(case.urc),
                "requests_per_round": BATCH,
                "ratio": dict(zip(("median", "p10", "p90"), case.ratios(), strict=True)),
                "median_seconds_per_round": {
                    "urc": statistics.median(case.urc),
                    "oracle": statistics.median(case.oracle),
                },
            }
            for case in cases
        ],
    }


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the guide tells a scheduler to
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short keys, one page size, few rounds: about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    arguments = parser.parse_args()
    if arguments.quick:
        cases = run([256, 2048], (16,), Cost(seconds=1.0, least=5, most=30))
    else:
        cases = run(list(LEVELS), PAGES, Cost(seconds=4.0, least=7, most=50))
    show(table(cases))
    if arguments.json:
        arguments.json.write_text(json.dumps(document(cases), indent=2) + "\n")


if __name__ == "__main__":
    main()
