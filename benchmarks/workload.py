"""The trees and requests of the benchmarks: of a seed, and of NumPy alone, so that two processes can make the same."""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NEW = 64  # tokens that a request adds to a stored sequence
BATCH = 64  # requests of a round: one call for all, or a call for each
LEAVES = 200  # that a large eviction takes out
STEP = 32  # requests that finish, and as many that begin, in one scheduling step
WINDOW = 128  # tokens that SWA keeps
LEVELS = {  # tokens of a request -> (tokens of a run, branches) of each level of the tree: 2,000 sequences in all
    256: ((64, 1), (64, 40), (64, 50)),
    2048: ((1024, 1), (512, 10), (192, 10), (256, 20)),
    8192: ((4096, 1), (2048, 10), (1472, 10), (512, 20)),
    32768: ((16384, 1), (8192, 10), (7616, 10), (512, 20)),
}


class Tree:
    """2,000 sequences, as runs that share prefixes, and requests that go on from them."""

    def __init__(self, tokens: int, seed: int = 0) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.tokens = tokens
        self.levels = LEVELS[tokens]
        self.fresh = itertools.count(1_000_000)  # first tokens that no other run has
        self.sequences = list(self._grow((), self.levels))  # each as its runs, from the root
        self.stored = sum(len(run) for run in {id(run): run for path in self.sequences for run in path}.values())

    def _grow(self, path: tuple, levels: tuple) -> Iterator[tuple]:
        if not levels:
            yield path
            return
        (length, branches), *below = levels
        for _ in range(branches):
            yield from self._grow((*path, self._run(length)), tuple(below))

    def _run(self, length: int) -> np.ndarray:
        run = self.rng.integers(0, 100_000, length, dtype=np.int32)
        run[0] = next(self.fresh)
        return run

    def request(self) -> np.ndarray:
        path = self.sequences[self.rng.integers(len(self.sequences))]
        return np.concatenate([*path, self._run(NEW)])

    def round(self, number: int, count: int, *, leaves: bool = False) -> list[np.ndarray]:
        """The requests of a round, i32[tokens] each; the same for the same seed and number, whatever came before.

        `leaves`: each a stored sequence with another last run, so that what it adds is like the leaves of the tree.
        """
        rng = np.random.default_rng([self.seed, number])
        keys = []
        for i in range(count):
            path = self.sequences[rng.integers(len(self.sequences))]
            if leaves:
                path = path[:-1]
            run = rng.integers(0, 100_000, self.levels[-1][0] if leaves else NEW, dtype=np.int32)
            run[0] = 10_000_000 + number * 1_000 + i  # begins no stored run, nor one of another round
            keys.append(np.concatenate([*path, run]))
        return keys

    def inserts(self) -> Iterator[tuple[np.ndarray, int]]:
        """(sequence, tokens of it that the sequences before it share) for building the tree."""
        before: tuple = ()
        for path in self.sequences:
            shared = sum(len(a) for a, b in zip(path, before, strict=False) if a is b)
            yield np.concatenate(path), shared
            before = path


def timed(call: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def undisturbed(call: Callable[[], Any]) -> tuple[float, Any]:
    """`timed`, without garbage collection meanwhile."""
    gc.collect()
    gc.freeze()  # nor is what compiling left looked at again, which would empty the processor's caches
    gc.disable()
    try:
        return timed(call)
    finally:
        gc.enable()
