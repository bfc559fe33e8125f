"""The picture of a replay: hit rate over time and over capacity. Needs matplotlib, the `plot` extra."""

from __future__ import annotations

import io
import math
from pathlib import Path

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("plots need matplotlib: pip install 'urc[plot]'", name=error.name) from error


from urc.replay.report import Report

FORMATS = (".png", ".svg", ".pdf")
COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#c51b7d", "#7570b3", "#8c564b", "#17a2b8", "#b8860b")
MARKERS = "os^Dvp*X"
DASHES = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (10, 3)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
    (0, (1.2, 4)),
    (0, (10, 2, 3, 2)),
)
IDEAL = {"color": "#555555", "linestyle": (0, (2, 2)), "linewidth": 1.2, "zorder": 1}


def render(report: Report, path: Path) -> bytes:
    """Draws a report in the format of `path`'s ending, one of `FORMATS`."""
    figure = Figure(figsize=(12, 5.4), dpi=150, layout="constrained")
    over_time, over_capacity = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _over_time(over_time, report)
    _over_capacity(over_capacity, report)
    for axes in (over_time, over_capacity):
        axes.grid(color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    blocks = f"blocks of {report.trace.block_size} tokens"
    pages = f", pages of {report.page_size} blocks" if report.page_size > 1 else ""
    figure.suptitle(f"{report.trace.name}  ({len(report.trace.requests):,} requests, {blocks}{pages})")
    handles = _legend(report)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False, handlelength=3
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower())
    return buffer.getvalue()


def _policies(report: Report) -> list[str]:
    return list(dict.fromkeys(run.policy for run in report.runs))


def _capacities(report: Report) -> list[int]:
    return sorted({run.capacity for run in report.runs}, reverse=True)


def _width(index: int, policies: list[str]) -> float:
    """Later lines are thinner, so that one under another still shows."""
    return 1.4 + 2 * (len(policies) - 1 - index) / len(policies)


def _over_time(axes: Axes, report: Report) -> None:
    policies, capacities = _policies(report), _capacities(report)
    for run in report.runs:
        index = policies.index(run.policy)
        axes.plot(
            [point.requests for point in run.series],
            [point.matched / max(point.asked, 1) for point in run.series],
            color=COLORS[index % len(COLORS)],
            linestyle=DASHES[capacities.index(run.capacity) % len(DASHES)],
            linewidth=_width(index, policies),
        )
    axes.axhline(report.ideal.rate.blocks, **IDEAL)
    axes.set_title("hit rate so far, over time", fontsize="medium")
    axes.set_xlabel("requests served")
    axes.set_ylabel("hit rate (input blocks)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, max(0.01, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _over_capacity(axes: Axes, report: Report) -> None:
    capacities = sorted(_capacities(report))
    policies = _policies(report)
    for index, policy in enumerate(policies):
        runs = sorted((run for run in report.runs if run.policy == policy), key=lambda run: run.capacity)
        axes.plot(
            [run.capacity for run in runs],
            [run.rate.blocks for run in runs],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=_width(index, policies),
        )
    axes.axhline(report.ideal.rate.blocks, **IDEAL)
    axes.set_title("hit rate of the whole trace, over capacity", fontsize="medium")
    axes.set_xlabel("capacity (blocks)")
    if len(capacities) > 1 and capacities[-1] > 4 * capacities[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(_apart(capacities, log=axes.get_xscale() == "log"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.margins(x=0.08)


def _apart(capacities: list[int], *, log: bool) -> list[int]:
    """Those of the capacities whose labels fit side by side, the largest first."""
    place = [math.log(c) if log else float(c) for c in capacities]
    span = (place[-1] - place[0]) or 1.0
    kept: list[int] = []
    for index in reversed(range(len(capacities))):
        if not kept or place[kept[-1]] - place[index] >= 0.13 * span:
            kept.append(index)
    return [capacities[index] for index in reversed(kept)]


def _legend(report: Report) -> list[Line2D]:
    """One entry for each policy and each capacity, not for each run: a run's line combines the two."""
    policies = [
        Line2D(
            [],
            [],
            color=COLORS[i % len(COLORS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            label=policy,
        )
        for i, policy in enumerate(_policies(report))
    ]
    capacities = [
        Line2D([], [], color="black", linestyle=DASHES[i % len(DASHES)], label=f"{capacity:,} blocks")
        for i, capacity in enumerate(_capacities(report))
    ]
    return [*policies, *capacities, Line2D([], [], label="infinite cache", **IDEAL)]
