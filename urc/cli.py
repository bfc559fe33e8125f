"""The command line: `urc replay [TRACE]`.

Kept light: what needs JAX, NumPy or matplotlib is imported when a command runs, so that `--help` is fast.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, Task
    from rich.text import Text

    from urc.replay.engine import Ideal, Run
    from urc.replay.hybrid import Hybrid
    from urc.replay.report import Report
    from urc.replay.trace import Trace

app = typer.Typer(
    help="The unified radix cache for JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

GENERATED_REQUESTS = 1000
DEFAULT_POLICIES = "lru,slru"
SEVERAL = "repeat it, or separate by commas"
DEFAULT_COMPONENTS = "full"
WINDOW, INTERVAL = 1024, 4096  # tokens
DEFAULT_SHARES = (32, 8, 1)  # default capacities: an n-th of what an infinite cache would hold
BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def _print_version(wanted: bool) -> None:
    if wanted:
        from urc.replay.report import package_version

        typer.echo(f"urc {package_version()}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="JSON lines in Mooncake or chat format, .gz too.", show_default="a generated chat workload"
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Blocks the cache holds; {SEVERAL}.", show_default="1/32, 1/8 and all of the trace's blocks"
        ),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"Eviction policy; {SEVERAL}.", show_default=DEFAULT_POLICIES)
    ] = None,
    components: Annotated[
        list[str] | None,
        typer.Option(help=f"What the model keeps: full, swa, mamba; {SEVERAL}.", show_default=DEFAULT_COMPONENTS),
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Tokens of SWA's window.", show_default=f"{WINDOW}")] = None,
    state_interval: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens from one checkpoint of a request to the next.", show_default=f"{INTERVAL}"),
    ] = None,
    states: Annotated[
        int | None,
        typer.Option(min=1, help="Mamba states the cache holds.", show_default="one for each interval of the capacity"),
    ] = None,
    swa_capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Blocks of SWA the cache holds.", show_default="one window for each state"),
    ] = None,
    page_size: Annotated[int, typer.Option(min=1, help="Blocks per page.")] = 1,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="First N requests only.", show_default=f"all, or {GENERATED_REQUESTS} generated ones"),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per block.", show_default="Mooncake 512, chat 16, generated 64"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the generated workload.", show_default="0")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the hit rates into this .png, .svg or .pdf file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Replay a request trace through the cache, once for each capacity and policy, and report the hit rates.

    Every request's prefix is matched, the rest is inserted, and leaves are evicted to make room.

    With the components of a hybrid model, each run is made twice, with and without a checkpoint at the branching point.
    """
    try:
        capacities = _counts(capacity, "--capacity")
        policies = _policies(policy)
        if plot is not None:
            _check_plot(plot)
        names = _components(components)
        _check_needed("--state-interval", state_interval, "swa or mamba", len(names) > 1)
        _check_needed("--window", window, "swa", "swa" in names)
        _check_needed("--swa-capacity", swa_capacity, "swa", "swa" in names)
        _check_needed("--states", states, "mamba", "mamba" in names)
        if (swa_capacity or 0) % page_size:
            _fail(f"--swa-capacity: {swa_capacity} is not a multiple of --page-size {page_size}")
        source = _trace(trace, limit=limit, block_size=block_size, seed=seed)
        if len(names) > 1:
            from urc.replay.hybrid import Hybrid

            model = Hybrid(
                components=names,
                window=window or WINDOW,
                interval=state_interval or INTERVAL,
                block_size=source.block_size,
                page_size=page_size,
            )
            pools = {"states": states, "swa": swa_capacity}
            report = _replay_hybrid(source, model, capacities, policies, pools, quiet)
        else:
            report = _replay(source, capacities, policies, page_size, quiet)
        if plot is not None:
            _write_plot(report, plot)
        _print(report, as_json=as_json, quiet=quiet)
    except KeyboardInterrupt:
        typer.echo("urc: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _fail(message: object) -> NoReturn:
    typer.echo(f"urc: error: {message}", err=True)
    raise typer.Exit(BAD_INPUT)


def _split(values: list[str] | None) -> list[str]:
    """The values of an option that may be repeated and may be separated by commas, each once."""
    words = [word.strip() for value in values or [] for word in value.split(",")]
    return list(dict.fromkeys(words))


def _counts(values: list[str] | None, option: str) -> list[int]:
    counts = []
    for word in _split(values):
        if not re.fullmatch("0*[1-9][0-9]{0,8}", word):
            _fail(f"{option}: {word!r} is not an integer from 1 to 999999999")
        counts.append(int(word))
    return list(dict.fromkeys(counts))


def _policies(values: list[str] | None) -> list[str]:
    from urc.policies import POLICIES

    names = _split(values or [DEFAULT_POLICIES])
    for name in names:
        if name not in POLICIES:
            _fail(f"--policy: {name!r} is none of {', '.join(POLICIES)}")
    return names


def _components(values: list[str] | None) -> tuple[str, ...]:
    from urc.replay.hybrid import COMPONENTS, FULL

    names = _split(values or [DEFAULT_COMPONENTS])
    for name in names:
        if name not in COMPONENTS:
            _fail(f"--components: {name!r} is none of {', '.join(COMPONENTS)}")
    if FULL not in names:
        _fail(f"--components: {FULL} must be among them")
    return tuple(name for name in COMPONENTS if name in names)


def _check_needed(option: str, value: int | None, components: str, needed: bool) -> None:
    if value is not None and not needed:
        _fail(f"{option} is for --components with {components}")


def _check_plot(path: Path) -> None:
    from urc.replay.output import OutputError, check_writable

    try:
        from urc.replay.plot import FORMATS

        if path.suffix.lower() not in FORMATS:
            _fail(f"--plot: {path}: the name must end in one of {', '.join(FORMATS)}")
        check_writable(path)
    except (ModuleNotFoundError, OutputError) as error:
        _fail(f"--plot: {error}")


def _write_plot(report: Report, path: Path) -> None:
    from urc.replay import output, plot

    try:
        output.write(path, plot.render(report, path))
    except output.OutputError as error:
        _fail(f"--plot: {error}")


def _trace(path: Path | None, *, limit: int | None, block_size: int | None, seed: int | None) -> Trace:
    from urc.replay.trace import TraceError, read_trace
    from urc.replay.workload import BLOCK_SIZE, chat_workload

    if path is None:
        requests = limit or GENERATED_REQUESTS
        return chat_workload(requests=requests, seed=seed or 0, block_size=block_size or BLOCK_SIZE)
    if seed is not None:
        _fail("--seed is for the generated workload, not for a trace")
    try:
        return read_trace(path, block_size=block_size, limit=limit)
    except TraceError as error:
        _fail(error)


def _replay(trace: Trace, capacities: list[int], policies: list[str], page_size: int, quiet: bool) -> Report:
    from urc.replay import scan
    from urc.replay.report import Report

    bound, capacities = _bound(trace, capacities, page_size)
    held = max(bound.blocks, page_size)  # no cache fills more slots than that
    plan = [*product(capacities, policies)]
    named = f"{capacities[0]:,} blocks, {policies[0]}" if len(plan) == 1 else f"{len(plan)} runs"
    with _progress(quiet) as progress:
        task = progress.add_task(named, total=len(plan) * len(trace.requests))
        runs = scan.replay_all(
            trace,
            plan,
            slots=min(max(capacities), held),
            page_size=page_size,
            on_progress=lambda served: progress.advance(task, served),
        )
    return Report(trace=trace, page_size=page_size, ideal=bound, runs=tuple(runs))


def _replay_hybrid(
    trace: Trace, model: Hybrid, capacities: list[int], policies: list[str], pools: dict[str, int | None], quiet: bool
) -> Report:
    from urc.replay import hybrid
    from urc.replay.report import Report

    bound, capacities = _bound(trace, capacities, model.page_size)
    longest = max(len(request.ids) for request in trace.requests)
    held = max(bound.blocks, model.page_size) + longest // model.page_size * model.page_size  # it may compute all again
    sizes = {blocks: model.pools(blocks, **pools) for blocks in capacities}
    slots = {name: min(max(size[name] for size in sizes.values()), held) for name in model.components}
    plan = [*product(capacities, policies, (True, False))]
    runs: list[Run] = []
    with _progress(quiet) as progress:
        task = progress.add_task("", total=len(plan) * len(trace.requests))
        for blocks, policy, branching in plan:
            kind = replace(model, branching=branching)
            progress.update(task, description=f"{blocks:,} blocks, {policy}, {kind.variant}")
            room = {name: min(n, held) for name, n in sizes[blocks].items()}
            run = hybrid.replay(
                trace,
                hybrid.open_cache(slots=slots, pools=room, policy=policy, model=kind),
                kind,
                pools=sizes[blocks],
                policy=policy,
                on_progress=lambda served: progress.advance(task, served),
            )
            runs.append(run)
    return Report(trace=trace, page_size=model.page_size, ideal=bound, runs=tuple(runs))


def _bound(trace: Trace, capacities: list[int], page_size: int) -> tuple[Ideal, list[int]]:
    """What an infinite cache makes of the trace, and the capacities, by default those that it suggests."""
    from urc.replay.engine import ideal

    bound = ideal(trace, page_size=page_size)
    if page_size > 1 and not bound.blocks:
        _fail(f"--page-size: no request fills a page of {page_size} blocks")
    for blocks in capacities:
        if blocks % page_size:
            _fail(f"--capacity: {blocks} is not a multiple of --page-size {page_size}")
    return bound, capacities or _default_capacities(bound, page_size)


def _default_capacities(bound: Ideal, page_size: int) -> list[int]:
    pages = bound.blocks // page_size
    return sorted({max(pages // share, 1) * page_size for share in DEFAULT_SHARES})


def _progress(quiet: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Requests served per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f} requests/s" if speed else "compiling")

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def _print(report: Report, *, as_json: bool, quiet: bool) -> None:
    from rich.console import Console

    from urc.replay.report import document, table

    try:
        if as_json:
            typer.echo(json.dumps(document(report), indent=2))
        if not as_json or not quiet:
            console = Console(stderr=as_json)
            if not console.is_terminal:  # no width to fit into
                console.width = 200
            console.print(table(report))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough
        raise
    except OSError as error:
        _fail(f"standard output: {error.strerror}")


if __name__ == "__main__":
    sys.exit(app())
