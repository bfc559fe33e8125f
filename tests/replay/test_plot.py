from itertools import product
from pathlib import Path

import pytest

from tests.replay.conftest import trace_of
from tests.replay.hybrid_stand_in import HybridTree
from tests.replay.stand_in import RadixTree
from urc.replay import hybrid
from urc.replay.engine import ideal, replay
from urc.replay.hybrid import Hybrid
from urc.replay.report import Report
from urc.replay.workload import chat_workload

plot = pytest.importorskip("urc.replay.plot", exc_type=ModuleNotFoundError)

START = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def report_of(trace, capacities, policies):
    runs = [replay(trace, RadixTree(c, p), capacity=c, policy=p) for c in capacities for p in policies]
    return Report(trace=trace, page_size=1, ideal=ideal(trace), runs=tuple(runs))


@pytest.mark.parametrize("ending", plot.FORMATS)
def test_every_format(ending):
    report = report_of(chat_workload(requests=40), (200, 400, 4000), ("lru", "lfu"))
    assert plot.render(report, Path(f"out{ending}")).startswith(START[ending])


@pytest.mark.parametrize(
    ("trace", "capacities"),
    [
        (trace_of([0]), (1,)),  # one point, nothing hit
        (trace_of([], []), (1, 2)),  # nothing asked
        (trace_of([0, 1], [0, 1]), (2, 3, 3000)),
        (chat_workload(requests=10), tuple(range(1000, 1020))),  # more capacities than line styles
    ],
)
def test_odd_reports(trace, capacities):
    assert plot.render(report_of(trace, capacities, ("lru",)), Path("out.PNG")).startswith(START[".png"])


@pytest.mark.parametrize("components", [("full", "swa", "mamba"), ("full", "swa"), ("full", "mamba")])
def test_hybrid_report(components):
    trace, runs = chat_workload(requests=40), []
    for capacity, branching in product((200, 400), (True, False)):
        model = Hybrid(components=components, window=128, interval=512, block_size=64, branching=branching)
        pools = model.pools(capacity)
        runs.append(hybrid.replay(trace, HybridTree(pools, window=2), model, pools=pools, policy="lru"))
    report = Report(trace=trace, page_size=1, ideal=ideal(trace), runs=tuple(runs))
    drawn = plot.render(report, Path("out.svg")).decode()
    assert ("lost: no state" in drawn) == ("mamba" in components)
    assert ("lost: window broken" in drawn) == ("swa" in components)


def test_labels_of_near_capacities_are_thinned():
    assert plot._apart([100, 101, 1000, 1050, 10_000], log=True) == [101, 1050, 10_000]
    assert plot._apart([5], log=False) == [5]
