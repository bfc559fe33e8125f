"""The picture of a replay: hit rate over time and over capacity. Needs matplotlib, the `plot` extra."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("plots need matplotlib: pip install 'urc[plot]'", name=error.name) from error


from urc.replay.hybrid import STATE, WINDOW, HybridRun
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
LOST: dict[str, tuple[str, dict[str, Any]]] = {
    STATE: ("lost: no state", {"edgecolor": "white"}),
    WINDOW: ("lost: window broken", {"edgecolor": "white", "hatch": "////", "alpha": 0.6}),
}


def render(report: Report, path: Path) -> bytes:
    """Draws a report in the format of `path`'s ending, one of `FORMATS`."""
    ratios = (3, 2, 2) if report.hybrid else (3, 2)
    figure = Figure(figsize=(2.4 * sum(ratios), 5.4), dpi=150, layout="constrained")
    over_time, over_capacity, *losses = panels = figure.subplots(1, len(ratios), sharey=True, width_ratios=ratios)
    _over_time(over_time, report)
    _over_capacity(over_capacity, report)
    if losses:
        _lost(losses[0], report)
    for axes in panels:
        axes.grid(color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    blocks = f"blocks of {report.trace.block_size} tokens"
    pages = f", pages of {report.page_size} blocks" if report.page_size > 1 else ""
    kinds = f", {' + '.join(report.hybrid.components)}" if report.hybrid else ""
    figure.suptitle(f"{report.trace.name}  ({len(report.trace.requests):,} requests, {blocks}{pages}{kinds})")
    handles = _legend(report)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 8), frameon=False, handlelength=3
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:].lower())
    return buffer.getvalue()


def _labels(report: Report) -> list[str]:
    return list(dict.fromkeys(run.label for run in report.runs))


def _capacities(report: Report) -> list[int]:
    return sorted({run.capacity for run in report.runs}, reverse=True)


def _lost_to(report: Report) -> list[str]:
    return list(dict.fromkeys(name for run in report.runs if isinstance(run, HybridRun) for name in run.lost))


def _width(index: int, labels: list[str]) -> float:
    """Later lines are thinner, so that one under another still shows."""
    return 1.4 + 2 * (len(labels) - 1 - index) / len(labels)


def _over_time(axes: Axes, report: Report) -> None:
    labels, capacities = _labels(report), _capacities(report)
    for run in report.runs:
        index = labels.index(run.label)
        axes.plot(
            [point.requests for point in run.series],
            [point.matched / max(point.asked, 1) for point in run.series],
            color=COLORS[index % len(COLORS)],
            linestyle=DASHES[capacities.index(run.capacity) % len(DASHES)],
            linewidth=_width(index, labels),
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
    labels = _labels(report)
    for index, label in enumerate(labels):
        runs = sorted((run for run in report.runs if run.label == label), key=lambda run: run.capacity)
        axes.plot(
            [run.capacity for run in runs],
            [run.rate.blocks for run in runs],
            color=COLORS[index % len(COLORS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            linewidth=_width(index, labels),
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


def _lost(axes: Axes, report: Report) -> None:
    """A bar a run, by capacity: what the cache had of Full but the request could not use, the reasons stacked."""
    capacities, labels = sorted(_capacities(report)), _labels(report)
    width = 0.8 / len(labels)
    for run in report.runs:
        if isinstance(run, HybridRun):
            index = labels.index(run.label)
            place = capacities.index(run.capacity) + (index - (len(labels) - 1) / 2) * width
            bottom = 0.0
            for name, rate in run.lost.items():
                axes.bar(place, rate.blocks, width, bottom, color=COLORS[index % len(COLORS)], **LOST[name][1])
                bottom += rate.blocks
    axes.set_title("lost for want of a state", fontsize="medium")
    axes.set_xlabel("capacity (blocks)")
    axes.set_xticks(range(len(capacities)), [f"{capacity:,}" for capacity in capacities])


def _apart(capacities: list[int], *, log: bool) -> list[int]:
    """Those of the capacities whose labels fit side by side, the largest first."""
    place = [math.log(c) if log else float(c) for c in capacities]
    span = (place[-1] - place[0]) or 1.0
    kept: list[int] = []
    for index in reversed(range(len(capacities))):
        if not kept or place[kept[-1]] - place[index] >= 0.13 * span:
            kept.append(index)
    return [capacities[index] for index in reversed(kept)]


def _legend(report: Report) -> list[Line2D | Patch]:
    """One entry for each label and each capacity, not for each run: a run's line combines the two."""
    labels = [
        Line2D(
            [],
            [],
            color=COLORS[i % len(COLORS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            label=label,
        )
        for i, label in enumerate(_labels(report))
    ]
    capacities = [
        Line2D([], [], color="black", linestyle=DASHES[i % len(DASHES)], label=f"{capacity:,} blocks")
        for i, capacity in enumerate(_capacities(report))
    ]
    lost = [Patch(facecolor="#999999", label=LOST[name][0], **LOST[name][1]) for name in _lost_to(report)]
    return [*labels, *capacities, *lost, Line2D([], [], label="infinite cache", **IDEAL)]
