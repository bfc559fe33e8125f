"""Which operations benchmarks/sglang.py measures, and how it shows what came out."""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from workload import BATCH, LEAVES


class Row(NamedTuple):
    """One operation: its name here and in the peer, and what ratio to the peer's Rust core it is to reach."""

    op: str
    peer: str
    text: str
    mode: str
    units: int  # a round's time is of so many
    targets: dict[int, float]  # tokens of a request -> urc's time / the Rust core's, at most
    kinds: tuple[str, ...] = ("full", "swa", "mamba")  # components with which it is measured

    def measured(self, tokens: int, names: tuple[str, ...]) -> bool:
        return tokens in self.targets and set(names) <= set(self.kinds)


AT_ONCE = f"{BATCH} at once"
ROWS = (
    Row("match", "match", "match", "one", BATCH, {2048: 2.5, 8192: 1.6, 32768: 0.9}),
    Row("match_all", "match", "match", AT_ONCE, BATCH, {2048: 0.8, 8192: 0.5, 32768: 0.4}),
    Row("insert", "insert", "insert", "one", BATCH, {8192: 2.0, 32768: 1.2}),
    Row("insert_all", "insert", "insert", AT_ONCE, BATCH, {8192: 1.0, 32768: 0.7}),
    Row("evict", "evict", "evict a leaf", "one", BATCH, {8192: 1.0}),
    Row("evict_many", "evict_many", "evict a leaf", f"{LEAVES} at once", LEAVES, {8192: 0.25}),
    Row("lock", "lock", "lock, unlock", "one", BATCH, {8192: 5.0}),
    Row("lock_all", "lock", "lock, unlock", AT_ONCE, BATCH, {8192: 1.0}),
    Row("step", "step", "scheduling step", "32 + 32", 1, {8192: 0.7}, kinds=("full",)),
)
REPLAY = Row("replay", "replay", "replay", "LRU", 1, {0: 0.5})
REFERENCE = ("match", "full", 1, 2048)  # what times are told in where there is no peer


class Spread(NamedTuple):
    """Of the rounds of a case: median, tenth and ninetieth percentile."""

    median: float
    p10: float
    p90: float


def spread(values: list[float]) -> Spread:
    low, *_, high = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), low, high)


class Case(NamedTuple):
    """One operation on one tree, and each side's times: seconds of each round. None: `urc` has no such call."""

    row: Row
    kinds: str
    page: int
    tokens: int
    times: dict[str, list[float]] | None
    requests: int = 0  # of a replay

    @property
    def target(self) -> float:
        return self.row.targets[self.tokens]

    def ratio(self, core: str) -> Spread | None:
        """urc's time over a peer's, round by round; below 1, urc is faster."""
        if not self.times or core not in self.times:
            return None
        return spread([mine / theirs for mine, theirs in zip(self.times["urc"], self.times[core], strict=True)])

    @property
    def met(self) -> bool | None:
        ratio = self.ratio("rust")
        return None if ratio is None else ratio.median <= self.target


def relative(cases: list[Case]) -> dict[int, Spread]:
    """Of each case that was measured, by its index: urc's time for one (a match, an insert, a leaf, a step, a replay).

    Told in lone matches of 2,048 tokens with Full alone at page size 1.
    """
    unit, found = None, {}
    for case in cases:
        if case.times and (case.row.op, case.kinds, case.page, case.tokens) == REFERENCE:
            unit = statistics.median(case.times["urc"]) / case.row.units
    for index, case in enumerate(cases):
        if case.times and unit:
            found[index] = spread([seconds / case.row.units / unit for seconds in case.times["urc"]])
    return found


def number(value: float) -> str:
    """Three digits, or as many as it has before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rows(cases: list[Case]) -> dict[tuple, dict[int, int]]:
    """(components, operation, mode, tokens) -> page size -> index of the case."""
    rows: dict[tuple, dict[int, int]] = {}
    for index, case in enumerate(cases):
        key = (case.kinds, case.row.text, case.row.mode, case.tokens)
        rows.setdefault(key, {})[case.page] = index
    return rows


def ratio_table(cases: list[Case]) -> Table:
    """A line for each operation; per page size the ratio to the Rust core, whether it is met, and to the Python one."""
    pages = sorted({case.page for case in cases})
    table = Table(title="urc's time / SGLang's: median (p10 - p90) to its Rust core | median to its Python core")
    for name in ("components", "operation", "mode", "tokens", "target"):
        table.add_column(name, justify="right" if name in ("tokens", "target") else "left", no_wrap=True)
    for page in pages:
        table.add_column(f"page {page}", justify="right", no_wrap=True)
    rows, last = _rows(cases), ""
    for (kinds, text, mode, tokens), found in sorted(rows.items(), key=lambda item: _rank(cases, item)):
        if last and kinds != last:
            table.add_section()
        target = cases[next(iter(found.values()))].target
        cells = [_cell(cases[found[page]]) if page in found else "" for page in pages]
        table.add_row(
            kinds if kinds != last else "", text, mode, f"{tokens:,}" if tokens else "", f"{target:g}", *cells
        )
        last = kinds
    return table


def _rank(cases: list[Case], item: tuple) -> tuple:
    """Components as they were measured, operations as in ROWS, then by tokens."""
    (kinds, *_, tokens), found = item
    case = cases[next(iter(found.values()))]
    order = list(dict.fromkeys(case.kinds for case in cases))
    return order.index(kinds), ROWS.index(case.row) if case.row in ROWS else len(ROWS), tokens


def _cell(case: Case) -> str:
    ratio, python = case.ratio("rust"), case.ratio("python")
    if not ratio:
        return "-"
    mark = "[green]met[/]" if case.met else "[red]missed[/]"
    beside = f" | {number(python.median)}" if python else ""
    return f"{number(ratio.median)} ({number(ratio.p10)} - {number(ratio.p90)}) {mark}{beside}"


def alone_table(cases: list[Case]) -> Table:
    """The same without a peer: times of urc, in its own lone matches of 2,048 tokens at page size 1."""
    pages, times = sorted({case.page for case in cases}), relative(cases)
    table = Table(
        title="urc alone: time for one / time of a lone match of 2,048 tokens at page size 1: median (p10 - p90)"
    )
    for name in ("components", "operation", "mode", "tokens"):
        table.add_column(name, justify="right" if name == "tokens" else "left", no_wrap=True)
    for page in pages:
        table.add_column(f"page {page}", justify="right", no_wrap=True)
    for (kinds, text, mode, tokens), found in sorted(_rows(cases).items(), key=lambda item: _rank(cases, item)):
        cells = []
        for page in pages:
            spread = times.get(found.get(page, -1))
            cells.append(f"{number(spread.median)} ({number(spread.p10)} - {number(spread.p90)})" if spread else "-")
        table.add_row(kinds, text, mode, f"{tokens:,}" if tokens else "", *cells)
    return table


def document(about: dict[str, Any], cases: list[Case]) -> dict[str, Any]:
    """What --json writes: ratios, and urc's times in those of the reference."""
    times, written = relative(cases), []
    for index, case in enumerate(cases):
        ratios = {core: case.ratio(core) for core in ("rust", "python")}
        written.append(
            {
                "components": case.kinds,
                "operation": case.row.text,
                "mode": case.row.mode,
                "tokens": case.tokens or None,
                "requests": case.requests or None,
                "page_size": case.page,
                "rounds": len(case.times["urc"]) if case.times else 0,
                "target": case.target,
                "met": case.met,
                "ratio": {core: ratio._asdict() for core, ratio in ratios.items() if ratio},
                "relative_time": times[index]._asdict() if index in times else None,
            }
        )
    return {**about, "cases": written}


def plot(cases: list[Case], path: Path, *, alone: bool) -> None:
    """A picture of the table: a point for each case, a line from p10 to p90, and where the targets are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pages, times = sorted({case.page for case in cases}), relative(cases)
    rows = sorted(_rows(cases).items(), key=lambda item: _rank(cases, item))
    figure = Figure(figsize=(9, 1.6 + 0.26 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colors = {page: f"C{i}" for i, page in enumerate(pages)}
    for line, (_, found) in enumerate(rows):
        for at, page in enumerate(pages):
            index = found.get(page)
            value = None if index is None else times.get(index) if alone else cases[index].ratio("rust")
            if value:
                y = line + 0.22 * (at - (len(pages) - 1) / 2)
                axes.plot([value.p10, value.p90], [y, y], color=colors[page], linewidth=1)
                axes.plot([value.median], [y], "o", color=colors[page], markersize=4)
        if not alone:
            target = cases[next(iter(found.values()))].target
            axes.plot([target, target], [line - 0.45, line + 0.45], color="black", linewidth=1.5)
    for page in pages:
        axes.plot([], [], "o-", color=colors[page], markersize=4, linewidth=1, label=f"page size {page}")
    if not alone:
        axes.plot([], [], color="black", linewidth=1.5, label="target")
    labels = [
        f"{kinds}: {text}, {mode}" + (f", {tokens:,}" if tokens else "") for (kinds, text, mode, tokens), _ in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.axvline(1, color="gray", linewidth=0.8, linestyle=":")
    what = "a lone match of 2,048 tokens" if alone else "SGLang's Rust core's"
    axes.set_xlabel(f"urc's time / {what}, median and p10 - p90")
    axes.legend(fontsize=7, loc="best")
    figure.savefig(path, dpi=150)
