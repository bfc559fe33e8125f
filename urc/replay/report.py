"""The result of a replay, as a table for people and as a JSON document for programs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from urc.replay.engine import Ideal, Run
from urc.replay.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The runs of one trace."""

    trace: Trace
    page_size: int  # blocks
    ideal: Ideal
    runs: tuple[Run, ...]


def package_version() -> str:
    """The installed version of urc."""
    try:
        return version("urc")
    except PackageNotFoundError:
        return "unknown"


def table(report: Report) -> Table:
    """One row a run."""
    refusals = any(run.refused for run in report.runs)
    pages = f", pages of {report.page_size} blocks" if report.page_size > 1 else ""
    title = f"{report.trace.name}: blocks of {report.trace.block_size} tokens{pages}"
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
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
            f"{run.requests_per_second:,.0f}",
        )
    return result


def document(report: Report) -> dict[str, Any]:
    """JSON types only. Counts are in blocks unless a name says otherwise; rates lie in [0, 1]."""
    trace, ideal = report.trace, report.ideal
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
        "requests_per_second": run.requests_per_second,
        "series": [
            {"requests": now[0], "hit_rate": (now[1] - past[1]) / max(now[2] - past[2], 1)} for past, now in windows
        ],
    }


def _short(tokens: int) -> str:
    """1234567 -> 1.23 M."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g} {unit}"
    return str(tokens)
