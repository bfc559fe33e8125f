"""What more kinds of state cost: match and insert with SWA and Mamba beside the same with full attention alone.

python benchmarks/kinds.py [--quick] [--json FILE]

The tree is that of benchmarks/ops.py, with a Mamba state at the end of each sequence and a window of 128. All caches
answer the same requests in the same run, in turn. A ratio is a cache's time over that of the cache with Full alone, of
one round: 1 would be no cost at all.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from output import environment, show  # benchmarks/output.py
from rich.table import Table
from workload import BATCH, NEW, Tree, timed  # benchmarks/workload.py

import urc
from urc import ops

MAX_NODES = 8192
KINDS = {
    "Full": (urc.Full(),),
    "+ SWA(128)": (urc.Full(), urc.SWA(window=128)),
    "+ Mamba": (urc.Full(), urc.Mamba()),
    "+ SWA(128), Mamba": (urc.Full(), urc.SWA(window=128), urc.Mamba()),
}


class Subject:
    """One cache that holds the tree, and what is measured on it."""

    def __init__(self, tree: Tree, components: tuple, page_size: int) -> None:
        self.tree = tree
        sizes = {"full": tree.stored, "swa": tree.stored, "mamba": len(tree.sequences)}
        more = {"full": NEW * BATCH, "swa": NEW * BATCH, "mamba": BATCH}
        self.names = [component.name for component in components]
        self.more = {name: more[name] for name in self.names}
        config = urc.CacheConfig(
            components=components,
            page_size=page_size,
            pools={name: sizes[name] + more[name] for name in self.names},
            policy="filo",
            max_nodes=MAX_NODES,
            max_key_len=tree.tokens,
        )
        self.cache = cache = urc.UnifiedRadixCache(config)
        for key, shared in tree.inserts():
            cache.insert(
                key,
                self.handed(
                    key, shared, {n: cache.alloc(n, 1 if n == "mamba" else len(key) - shared) for n in self.names}
                ),
                prev_prefix_len=shared,
            )
        self.fresh = {name: cache.alloc(name, count) for name, count in self.more.items()}
        self.start = jax.tree.map(np.array, cache.state)
        self.state = None

    def handed(self, key, known: int, fresh: dict) -> dict:
        """Slots for a whole key; those below `known` are the tree's own and are not looked at."""
        return {
            name: held if name == "mamba" else np.concatenate([np.zeros(known, np.int32), held])
            for name, held in fresh.items()
        }

    def match(self, keys: list) -> list[int]:
        return [self.cache.match_prefix(key).device_len for key in keys]

    def match_all(self, keys: list) -> list[int]:
        return [found.device_len for found in self.cache.match_prefixes(keys)]

    def insert(self, keys: list) -> list[int]:
        parts = {name: held.reshape(len(keys), -1) for name, held in self.fresh.items()}
        known = self.tree.tokens - NEW
        return [
            self.cache.insert(
                key, self.handed(key, known, {name: held[i] for name, held in parts.items()}), prev_prefix_len=known
            ).prefix_len
            for i, key in enumerate(keys)
        ]

    def undo(self, keys: list) -> None:
        self.cache.evict({"full": NEW * BATCH})
        self.fresh = {name: self.cache.alloc(name, count) for name, count in self.more.items()}

    def insert_all(self, keys: list) -> list[int]:
        if self.state is None:
            self.state, self.slots = self.start, dict(self.fresh)
        rows, lengths = np.stack(keys), np.full(len(keys), len(keys[0]), np.int32)
        known = len(keys[0]) - NEW
        handed = {}
        for name, held in self.slots.items():
            part = np.asarray(held).reshape(len(keys), -1)
            ignored = np.zeros((len(keys), known), np.int32)
            handed[name] = part if name == "mamba" else np.concatenate([ignored, part], axis=1)
        self.state, inserted = _inserts(self.state, rows, lengths, handed, prev_prefix_len=lengths - NEW)
        return np.asarray(inserted.prefix_len).tolist()

    def undo_all(self, keys: list) -> None:
        self.state, _ = _evict(self.state, {"full": np.int32(NEW * BATCH)})
        for name, count in self.more.items():
            self.state, self.slots[name], _ = _alloc(self.state, name, np.int32(count), width=count)


_inserts, _evict = ops.donating(ops.inserts), ops.donating(ops.evict)
_alloc = jax.jit(ops.alloc, donate_argnums=0, static_argnums=1, static_argnames="width")


def measure(tree: Tree, subjects: dict[str, Subject], call: str, undo: str | None, seconds: float, least: int) -> dict:
    """Times of the rounds of each subject, in turn, on the same requests; two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    gc.collect()
    gc.disable()
    end, number = 0.0, -2
    while number < least or time.monotonic() < end:
        if number == 0:
            end = time.monotonic() + seconds
        keys = [tree.request() for _ in range(BATCH)]
        order = list(subjects.items())
        for name, subject in order if number % 2 else order[::-1]:
            method: Callable = getattr(subject, call)
            spent, found = timed(partial(method, keys))
            assert found == [tree.tokens - NEW] * BATCH, (name, call)
            if number >= 0:
                times[name].append(spent)
            if undo:
                getattr(subject, undo)(keys)
        number += 1
    gc.enable()
    return times


OPS = {
    "match": ("match", None),
    f"match, {BATCH} at once": ("match_all", None),
    "insert": ("insert", "undo"),
    f"insert, {BATCH} at once": ("insert_all", "undo_all"),
}


def run(sizes: list[int], pages: list[int], seconds: float, least: int) -> list[dict]:
    cases = []
    for tokens in sizes:
        tree = Tree(tokens)
        for page in pages:
            subjects = {name: Subject(tree, components, page) for name, components in KINDS.items()}
            for op, (call, undo) in OPS.items():
                times = measure(tree, subjects, call, undo, seconds, least)
                for name, mine in list(times.items())[1:]:
                    ratios = [a / b for a, b in zip(mine, times["Full"], strict=True)]
                    low, *_, high = statistics.quantiles(ratios, n=10, method="inclusive")
                    ratio = {"median": statistics.median(ratios), "p10": low, "p90": high}
                    cases.append(
                        {
                            "op": op,
                            "tokens": tokens,
                            "page_size": page,
                            "kinds": name,
                            "rounds": len(mine),
                            "ratio": ratio,
                        }
                    )
    return cases


def table(cases: list[dict]) -> Table:
    result = Table(title="time / time with Full alone: median (p10 - p90)", title_justify="left")
    for name in ("operation", "tokens", "page", *list(KINDS)[1:]):
        result.add_column(name, justify="right", no_wrap=True)
    rows: dict = {}
    for case in cases:
        ratio = case["ratio"]
        cell = f"{ratio['median']:.2f} ({ratio['p10']:.2f} - {ratio['p90']:.2f})"
        rows.setdefault((case["op"], f"{case['tokens']:,}", str(case["page_size"])), []).append(cell)
    for key, cells in rows.items():
        result.add_row(*key, *cells)
    return result


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the guide tells a scheduler to
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, few rounds: about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    arguments = parser.parse_args()
    if arguments.quick:
        cases = run([2048], [16], seconds=1.0, least=5)
    else:
        cases = run([2048, 8192], [1, 64], seconds=3.0, least=15)
    show(table(cases))
    if arguments.json:
        document = {
            **environment(),
            "cases": cases,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
