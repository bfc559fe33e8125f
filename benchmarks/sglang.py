"""How fast `urc` is beside SGLang 0.5.23's own UnifiedRadixCache: its Rust tree core and its Python one.

python benchmarks/sglang.py [--peer DIR | --install-peer DIR] [--quick] [--replay TRACE] [--json FILE] [--plot FILE]

The three caches hold the same tree and answer the same requests in one run, in turn, each round in another order; the
answers are compared. A ratio is urc's time over the peer's, of one round: below 1, urc is faster. For a batch the peer
makes one call for each of its requests. Without a peer, urc is measured alone.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from output import environment, show
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sglang_install import install
from sglang_process import Peer
from sglang_report import REPLAY, ROWS, Case, alone_table, document, plot, ratio_table
from sglang_urc import COMPILED, Subject, pools_of, replay
from workload import Tree

from urc.replay.trace import Trace, TraceError, read_trace

CORES = ("rust", "python")
REPLAYED_BLOCKS = 20_000  # the capacity of the replay


class Cost(NamedTuple):
    """How long to measure a case: seconds, and rounds; those that warm up come before."""

    seconds: float
    least: int
    most: int
    warm_up: int = 2


class Setup(NamedTuple):
    """One tree in one kind of cache."""

    names: tuple[str, ...]
    page: int
    tokens: int


FULL, SWA, MAMBA = ("full",), ("full", "swa"), ("full", "mamba")
FULL_GRID = [  # each setup compiles for most of a minute; so hybrids are at all page sizes only where all is measured
    *(Setup(FULL, page, tokens) for tokens in (2048, 8192, 32768) for page in (1, 16, 64)),
    *(Setup(names, page, 8192) for names in (SWA, MAMBA) for page in (1, 16, 64)),
    *(Setup(names, 16, tokens) for tokens in (2048, 32768) for names in (SWA, MAMBA)),
]
QUICK_GRID = [Setup(FULL, 1, tokens) for tokens in (2048, 8192)]

Round = Callable[[int], tuple[float, list[int]]]  # number -> (seconds, answers)


def measure(
    sides: dict[str, Round], cost: Cost, agree: Callable[[list[int], list[int]], bool]
) -> dict[str, list[float]]:
    """Seconds of each round of each side. The sides take turns, and after each round their answers are compared."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names, end, number, done = list(sides), math.inf, 0, 0
    while done < cost.least or (done < cost.most and time.monotonic() < end):
        if number == cost.warm_up:
            end = time.monotonic() + cost.seconds
        at = number % len(names)
        answers = {}
        for name in names[at:] + names[:at]:
            seconds, answers[name] = sides[name](number)
            if number >= cost.warm_up:
                times[name].append(seconds)
        for name in names[1:]:
            if not agree(answers["urc"], answers[name]):
                raise AssertionError(f"urc and the {name} core do not agree: {answers['urc']}, {answers[name]}")
        number += 1
        done = number - cost.warm_up
    return times


def agreement(op: str, leaf: int) -> Callable[[list[int], list[int]], bool]:
    """Whether two sides' answers are the same; what is evicted may differ by less than a leaf."""
    if op.startswith("evict"):
        return lambda mine, theirs: len(mine) == len(theirs) and abs(sum(mine) - sum(theirs)) < leaf
    return lambda mine, theirs: mine == theirs


def run(setups: list[Setup], cost: Cost, peer: Peer | None, on_case: Callable[[str], None]) -> list[Case]:
    cases, tree = [], None
    for setup in setups:
        rows = [row for row in ROWS if row.measured(setup.tokens, setup.names)]
        if not rows:
            continue
        on_case(f"{'+'.join(setup.names)}, page {setup.page}, {setup.tokens:,} tokens: building")
        if tree is None or tree.tokens != setup.tokens:
            tree = Tree(setup.tokens)
        pools = pools_of(tree, list(setup.names))
        subject = Subject(tree, pools, setup.page)
        if peer:
            peer.ask("open", tokens=setup.tokens, page=setup.page, pools=pools)
        for row in rows:
            on_case(f"{'+'.join(setup.names)}, page {setup.page}, {setup.tokens:,} tokens: {row.text}, {row.mode}")
            times = None
            if subject.has(row.op):
                if row.op == "step":
                    subject.start_steps()
                    if peer:
                        peer.ask("start_steps")
                sides: dict[str, Round] = {"urc": getattr(subject, row.op)}
                if peer:
                    sides |= {core: peer.round(row.peer, core) for core in CORES}
                times = measure(sides, cost, agreement(row.op, tree.levels[-1][0]))
            cases.append(Case(row, "+".join(setup.names), setup.page, setup.tokens, times))
    return cases


def run_replay(trace: Trace, peer: Peer | None, on_case: Callable[[str], None]) -> Case:
    """The replay of one trace under LRU: blocks as tokens, Full alone, page size 1."""
    cost = Cost(0.0, least=5, most=5, warm_up=1) if COMPILED else Cost(0.0, least=2, most=2, warm_up=0)
    on_case(f"{trace.name}: replay")
    sides: dict[str, Round] = {"urc": lambda number: replay(trace, REPLAYED_BLOCKS, 1)}
    if peer:
        peer.ask("trace", requests=[[r.ids.tolist(), r.input_blocks] for r in trace.requests], page=1)
        sides["rust"] = lambda number: peer.measured("replay", core="rust", capacity=REPLAYED_BLOCKS, policy="lru")
    times = measure(sides, cost, lambda mine, theirs: mine == theirs)
    return Case(REPLAY, "full", 1, 0, times, requests=len(trace.requests))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--peer", type=Path, metavar="DIR", help="SGLang 0.5.23 in DIR/wheel, what it imports in DIR/venv"
    )
    which.add_argument("--install-peer", type=Path, metavar="DIR", help="make such a DIR first, with pip; Python 3.11")
    parser.add_argument("--quick", action="store_true", help="full attention, page size 1, few rounds: about a minute")
    parser.add_argument("--replay", type=Path, metavar="TRACE", help="replay this trace as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="and a picture of them into this one")
    return parser.parse_args()


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the guide tells a scheduler to
    arguments = parsed()
    messages = Console(stderr=True)
    try:
        trace = read_trace(arguments.replay) if arguments.replay else None
    except TraceError as error:
        raise SystemExit(str(error)) from error
    folder = arguments.peer or arguments.install_peer
    if arguments.install_peer:
        install(folder, messages.print)
    if arguments.quick:
        setups, cost = QUICK_GRID, Cost(seconds=1.0, least=5, most=30)
    else:
        setups, cost = FULL_GRID, Cost(seconds=1.0, least=9, most=40)
    total = sum(row.measured(setup.tokens, setup.names) for setup in setups for row in ROWS) + bool(trace)
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    peer = Peer(folder) if folder else None
    try:
        with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
            task = progress.add_task("", total=total)

            def on_case(text: str) -> None:
                progress.update(task, description=text, advance=0 if text.endswith("building") else 1)

            cases = run(setups, cost, peer, on_case)
            if trace:
                cases.append(run_replay(trace, peer, on_case))
    finally:
        if peer:
            peer.close()
    show(ratio_table(cases) if peer else alone_table(cases))
    if arguments.json:
        about = {**environment(), "peer": "SGLang 0.5.23" if peer else None}
        arguments.json.write_text(json.dumps(document(about, cases), indent=2) + "\n")
    if arguments.plot:
        plot(cases, arguments.plot, alone=not peer)


if __name__ == "__main__":
    main()
