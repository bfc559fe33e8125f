"""Where the time of a call goes: JAX, the compiled program, the keys, Python.

python benchmarks/shares.py [--quick] [--json FILE]

Calls of benchmarks/sglang.py on its trees, of `urc` alone. Of each call's time:

JAX: what JAX takes to call a program that does nothing, with as many arrays given, updated and returned.
program: what the compiled program takes beyond that.
keys: bringing the keys of a batch into one array, and looking through them for negative tokens.
Python: all else.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from output import environment, show  # benchmarks/output.py
from rich.table import Table
from sglang_report import Spread, spread  # benchmarks/sglang_report.py
from sglang_urc import Subject, pools_of  # benchmarks/sglang_urc.py
from workload import BATCH, NEW, Tree, timed, undisturbed  # benchmarks/workload.py

from urc.kernel import one_kernel, supported
from urc.program import Call, jit_options

PARTS = ("JAX", "program", "keys", "Python")
KINDS = (("full",), ("full", "swa", "mamba"))
PAGE = 16


class Case(NamedTuple):
    """What was measured, and the share of each part."""

    kinds: str
    op: str
    tokens: int
    shares: dict[str, Spread]


# -- the operations: (what is timed, what undoes it) -----------------------------------------------------------------


def match(subject: Subject, number: int) -> tuple[Callable, Callable]:
    keys, call = subject.tree.round(number, BATCH), subject.cache.match_prefix
    return lambda: [call(key) for key in keys], lambda: None


def match_all(subject: Subject, number: int) -> tuple[Callable, Callable]:
    keys, names = subject.tree.round(number, BATCH), subject.names

    def call() -> list:
        found = subject.cache.match_prefixes(keys)
        return [found.device_len, found.nodes, *(found.slots(name) for name in names)]

    return call, lambda: None


def insert(subject: Subject, number: int) -> tuple[Callable, Callable]:
    keys, call, known = subject.tree.round(number, BATCH), subject.cache.insert, subject.known
    given = list(zip(keys, subject._slots([(len(key), known) for key in keys]), strict=True))
    run = lambda: [call(key, slots, prev_prefix_len=known) for key, slots in given]
    return run, lambda: subject._undo(BATCH * NEW)


def lock(subject: Subject, number: int) -> tuple[Callable, Callable]:
    nodes, cache = subject._matched(number)[0], subject.cache
    return lambda: [cache.unlock(cache.lock(node)) for node in nodes], lambda: None


OPS = {"match": match, "insert": insert, "lock, unlock": lock, "match, 64 at once": match_all}


# -- the clocks ------------------------------------------------------------------------------------------------------


class Nothing:
    """A program that takes, updates and returns the arrays that another one does, and does nothing else."""

    def __init__(self, arrays: list[Any], updated: list[int], given: list[Any], results: int) -> None:
        def nothing(*arrays: jax.Array) -> list[jax.Array]:
            number = arrays[-1].reshape(-1)[:1]
            touch = lambda array: lax.dynamic_update_slice(
                array, number.reshape((1,) * array.ndim), (jnp.int32(0),) * array.ndim
            )
            return [*(touch(arrays[i]) for i in updated), *[number + i for i in range(results)]]

        def program(*arrays: jax.Array) -> list[jax.Array]:
            return one_kernel(nothing, *arrays, updated=updated) if supported() else nothing(*arrays)

        self.run = jax.jit(program, donate_argnums=updated, keep_unused=True, **jit_options())
        self.arrays, self.updated, self.given = arrays, updated, given
        self()

    def __call__(self) -> None:
        out = self.run(*self.arrays, *self.given)
        for i, array in zip(self.updated, out, strict=False):
            self.arrays[i] = array


class Clocks:
    """Clocks around a cache's programs, and around what packs its batches."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.seconds, self.calls = cache, {}, {}
        self.nothing: dict[Any, Nothing] = {}
        self.watched = set()
        cache._batch = self._timed("keys", cache._batch)

    def around_programs(self) -> None:
        """That the cache has called so far."""
        programs = self.cache._arrays.calls
        for program, call in programs.items():
            if program not in self.watched:
                self.watched.add(program)
                programs[program] = call._replace(run=self._timed("program", self._counted(program, call)))
        self.reset()

    def reset(self) -> None:
        self.seconds = {"program": 0.0, "keys": 0.0}
        self.calls = dict.fromkeys(self.cache._arrays.calls, 0)

    def _timed(self, part: str, call: Callable) -> Callable:
        def run(*given: Any, **options: Any) -> Any:
            seconds, result = timed(lambda: call(*given, **options))
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
            return result

        return run

    def _counted(self, program: Any, call: Call) -> Callable:
        def run(*given: Any) -> list[jax.Array]:
            self.calls[program] += 1
            if program in self.nothing:
                return call.run(*given)
            number = len(call.takes(self.cache._arrays.leaves))
            arrays = [jnp.zeros(array.shape, array.dtype) for array in given[:number]]
            out = call.run(*given)
            updated = [i for i, array in enumerate(given[:number]) if array.is_deleted()]
            self.nothing[program] = Nothing(arrays, updated, list(given[number:]), len(out) - call.number)
            return out

        return run

    def of_nothing(self) -> float:
        """Seconds for as many calls of programs that do nothing."""
        seconds = 0.0
        for program, count in self.calls.items():
            if count:
                seconds += timed(lambda n=count, call=self.nothing[program]: [call() for _ in range(n)])[0]
        return seconds


def measure(subject: Subject, op: str, seconds: float, least: int) -> dict[str, Spread]:
    """Each part's share of an operation's time."""
    clocks, shares = Clocks(subject.cache), {part: [] for part in PARTS}
    number, end = -3, float("inf")
    while number < least or time.monotonic() < end:
        if number == 0:
            end = time.monotonic() + seconds
        call, undo = OPS[op](subject, number + 3)
        if number == -2:  # all that it calls has been called
            clocks.around_programs()
        clocks.reset()
        whole, _ = undisturbed(call)
        inside = clocks.seconds
        if number >= 0:
            parts = clocks.of_nothing(), inside["program"], inside["keys"]
            values = parts[0], parts[1] - parts[0], parts[2], whole - parts[1] - parts[2]
            for part, value in zip(PARTS, values, strict=True):
                shares[part].append(value / whole)
        undo()
        number += 1
    return {part: spread(values) for part, values in shares.items()}


def run(sizes: list[int], seconds: float, least: int) -> list[Case]:
    cases = []
    for tokens in sizes:
        tree = Tree(tokens)
        for names in KINDS:
            for op in OPS:  # a cache for each, as the clocks stay
                subject = Subject(tree, pools_of(tree, list(names)), PAGE)
                cases.append(Case("+".join(names), op, tokens, measure(subject, op, seconds, least)))
    return cases


def table(cases: list[Case]) -> Table:
    result = Table(title="share of a call's time, %: median (p10 - p90) of the rounds", title_justify="left")
    for name in ("components", "operation", "tokens", *PARTS):
        result.add_column(name, justify="right", no_wrap=True)
    for case in cases:
        cells = [f"{100 * s.median:.0f} ({100 * s.p10:.0f} - {100 * s.p90:.0f})" for s in case.shares.values()]
        result.add_row(case.kinds, case.op, f"{case.tokens:,}", *cells)
    return result


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the guide tells a scheduler to
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, few rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    arguments = parser.parse_args()
    cases = run([2048], 0.5, 5) if arguments.quick else run([2048, 8192, 32768], 1.0, 9)
    show(table(cases))
    if arguments.json:
        document = {
            **environment(),
            "cases": [
                {**case._asdict(), "shares": {part: value._asdict() for part, value in case.shares.items()}}
                for case in cases
            ],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
