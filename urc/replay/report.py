"""The result of a replay, as a table for people and as a JSON document for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from urc.replay.engine import Ideal, Run
from urc.replay.hybrid import STATE, WINDOW, Hybrid, HybridRun
from urc.replay.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The runs of one trace."""

    trace: Trace
    page_size: int  # blocks
    ideal: Ideal
    runs: tuple[Run, ...]

    @property
    def hybrid(self) -> Hybrid | None:
        """The model of the runs if it is a hybrid one, the branching point apart."""
        return next((run.model for run in self.runs if isinstance(run, HybridRun)), None)


def package_version() -> str:
    """The installed version of urc."""
    try:
        return version("urc")
    except PackageNotFoundError:
        return "unknown"


def table(report: Report) -> Table:
    """One row a run."""
    if report.hybrid:
        return _hybrid_table(report, report.hybrid)
    refusals = any(run.refused for run in report.runs)
    result = Table(title=_title(report), title_justify="left", box=SIMPLE_HEAD)
    result.add_column("capacity", justify="right", no_wrap=True)
    result.add_column("policy", no_wrap=True)
    numbers = [
        "requests",
        "tokens",
        "hit rate",
        "ideal",
        "evicted",
        *(["refused"] if refusals else []),
        "req/s",
    ]
    for name in numbers:
        result.add_column(name, justify="right", no_wrap=True)
    for run in report.runs:
        result.add_row(
            f"{run.capacity:,}",
            run.policy,
            f"{run.requests:,}",
            _short(run.rate.input_tokens),
            f"{run.rate.blocks:.2%}",
            f"{report.ideal.rate.blocks:.2%}",
            f"{run.evicted:,}",
            *([f"{run.refused:,}"] if refusals else []),
            _short(round(run.requests_per_second)),
        )
    return result


def _title(report: Report) -> str:
    pages = f", pages of {report.page_size} blocks" if report.page_size > 1 else ""
    return f"{report.trace.name}: blocks of {report.trace.block_size} tokens{pages}"


def _hybrid_table(report: Report, model: Hybrid) -> Table:
    """Rates are of tokens; pools of components that the model lacks are left out, as are columns of zeros."""
    runs = [run for run in report.runs if isinstance(run, HybridRun)]
    window = f"window {model.window:,}, " if WINDOW in model.components else ""
    title = (
        f"{_title(report)}\n{len(report.trace.requests):,} requests, {_short(report.trace.input_tokens)} tokens\n"
        f"{', '.join(model.components)}; {window}checkpoint every {model.interval:,} tokens\n"
        f"infinite cache: {report.ideal.rate.tokens:.2%} of tokens"
    )
    columns: list[tuple[str, Callable[[HybridRun], str], bool]] = [
        ("capacity", lambda run: f"{run.capacity:,}", True),
        ("swa", lambda run: f"{run.pools[WINDOW]:,}", WINDOW in model.components),
        ("states", lambda run: f"{run.pools[STATE]:,}", STATE in model.components),
        ("policy", lambda run: run.policy, True),
        ("branch\ntaken", lambda run: "yes" if run.model.branching else "no", True),
        ("hit rate", lambda run: f"{run.rate.tokens:.2%}", True),
        ("lost:\nno state", lambda run: f"{run.lost[STATE].tokens:.2%}", STATE in model.components),
        ("lost:\nwindow", lambda run: f"{run.lost[WINDOW].tokens:.2%}", WINDOW in model.components),
        ("states\nheld", lambda run: f"{run.held:,}", STATE in model.components),
        ("peak", lambda run: f"{run.peak:,}", STATE in model.components),
        ("without\na slot", lambda run: f"{run.untaken:,}", any(run.untaken for run in runs)),
        ("refused", lambda run: f"{run.refused:,}", any(run.refused for run in runs)),
        ("req/s", lambda run: _short(round(run.requests_per_second)), True),
    ]
    shown = [(name, cell) for name, cell, wanted in columns if wanted]
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for name, _ in shown:
        words = name in ("policy", "branch\ntaken")
        result.add_column(name, justify="left" if words else "right", no_wrap=True)
    for run in runs:
        result.add_row(*(cell(run) for _, cell in shown))
    return result


def document(report: Report) -> dict[str, Any]:
    """JSON types only. Counts are in blocks unless a name says otherwise; rates lie in [0, 1]."""
    trace, ideal, model = report.trace, report.ideal, report.hybrid
    hybrid = {"components": model.components, "window": model.window, "state_interval": model.interval} if model else {}
    return {
        "urc": package_version(),
        "trace": {
            "name": trace.name,
            "block_size": trace.block_size,
            "requests": len(trace.requests),
            "input_blocks": trace.input_blocks,
            "input_tokens": trace.input_tokens,
            "distinct_blocks": ideal.blocks,
            "ideal_hit_rate": ideal.rate.blocks,
            "ideal_token_hit_rate": ideal.rate.tokens,
        },
        **({"hybrid": hybrid} if hybrid else {}),
        "runs": [_run(run, ideal) for run in report.runs],
    }


def _run(run: Run, ideal: Ideal) -> dict[str, Any]:
    windows = zip(((0, 0, 0), *run.series), run.series, strict=False)
    return {
        "capacity": run.capacity,
        "policy": run.policy,
        "page_size": run.page_size,
        "requests": run.requests,
        "tokens": run.rate.input_tokens,
        "hit_rate": run.rate.blocks,
        "token_hit_rate": run.rate.tokens,
        "ideal_hit_rate": ideal.rate.blocks,
        "input_blocks": run.rate.input_blocks,
        "matched_blocks": run.rate.matched_blocks,
        "evicted_blocks": run.evicted,
        "evict_calls": run.evict_calls,
        "refused_requests": run.refused,
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
        "requests_per_second": run.requests_per_second,
        "series": [
            {"requests": now[0], "hit_rate": (now[1] - past[1]) / max(now[2] - past[2], 1)} for past, now in windows
        ],
        **(_hybrid_run(run) if isinstance(run, HybridRun) else {}),
    }


def _hybrid_run(run: HybridRun) -> dict[str, Any]:
    lost = {name: rate.matched_tokens for name, rate in run.lost.items()}
    result = {"branching_point": run.model.branching, "pools": run.pools, "lost_tokens": lost}
    if STATE in run.model.components:
        result["states"] = {"held": run.held, "peak": run.peak, "taken": run.taken, "without_a_slot": run.untaken}
    return result


def _short(number: int) -> str:
    """1234567 -> 1.23 M."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
