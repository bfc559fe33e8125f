import json
from dataclasses import replace
from itertools import product

import pytest
from rich.console import Console

from tests.replay.conftest import trace_of
from tests.replay.hybrid_stand_in import HybridTree
from tests.replay.stand_in import RadixTree
from urc.replay import hybrid
from urc.replay.engine import ideal, replay
from urc.replay.hybrid import Hybrid
from urc.replay.report import Report, document, table


@pytest.fixture
def report():
    trace = trace_of([0, 1, 2], [0, 1, 3], [0, 1, 2], [5, 6], [0, 1, 2, 3, 4, 5, 6])
    runs = [replay(trace, RadixTree(c, p), capacity=c, policy=p) for c in (4, 9) for p in ("lru", "lfu")]
    runs = [replace(run, requests_per_second=1_234_567.8) for run in runs]  # whatever this machine does
    return Report(trace=trace, page_size=1, ideal=ideal(trace), runs=tuple(runs))


@pytest.fixture
def hybrid_report():
    trace = trace_of([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 20], [0, 1, 2, 3, 4, 5, 30])
    model, runs = Hybrid(components=("full", "swa", "mamba"), window=20, interval=40, block_size=10), []
    for capacity, branching in product((8, 100), (True, False)):
        kind, pools = replace(model, branching=branching), model.pools(capacity)
        run = hybrid.replay(trace, HybridTree(pools, window=2), kind, pools=pools, policy="lru")
        runs.append(replace(run, requests_per_second=1_234_567.8))
    return Report(trace=trace, page_size=1, ideal=ideal(trace), runs=tuple(runs))


def text_of(report, width=90):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table(report))
    return capture.get()


def test_table_has_a_row_a_run(report):
    text = text_of(report)
    assert "blocks of 10 tokens" in text
    assert sum("lru" in line or "lfu" in line for line in text.splitlines()) == 4
    assert "refused" in text
    assert text.count("1.23 M") == 4
    assert "…" not in text


def test_table_tells_refusals_only_where_there_are_some(report):
    fitting = Report(trace=report.trace, page_size=2, ideal=report.ideal, runs=report.runs[2:])
    text = text_of(fitting, width=80)
    assert "refused" not in text
    assert "…" not in text
    assert "pages of 2 blocks" in text


def test_document_is_json_and_adds_up(report):
    read = json.loads(json.dumps(document(report), allow_nan=False))
    assert read["trace"]["requests"] == 5
    assert read["trace"]["ideal_hit_rate"] == report.ideal.rate.blocks
    assert len(read["runs"]) == 4
    for run in read["runs"]:
        assert run["hit_rate"] == run["matched_blocks"] / run["input_blocks"]
        assert run["ideal_hit_rate"] >= run["hit_rate"]
        assert run["series"][-1]["requests"] == run["requests"] == 5
    first = read["runs"][0]
    assert (first["capacity"], first["policy"], first["page_size"]) == (4, "lru", 1)
    assert first["refused_requests"] == 1
    assert [point["hit_rate"] for point in first["series"]] == [0, 2 / 3, 1, 0, 0]


def test_hybrid_table(hybrid_report):
    text = text_of(hybrid_report, width=110)
    assert "full, swa, mamba; window 20, checkpoint every 40 tokens" in text
    assert "infinite cache: 54.55%" in text
    rows = [line.split() for line in text.splitlines() if "lru" in line]
    # Full alone has 6 blocks twice; the last state is at 4, and at 6 once the branching point is taken.
    assert rows[2][:9] == ["100", "50", "25", "lru", "yes", "45.45%", "9.09%", "0.00%", "5"]
    assert rows[3][:9] == ["100", "50", "25", "lru", "no", "36.36%", "18.18%", "0.00%", "4"]
    assert "…" not in text
    assert "without" in text


def test_hybrid_document_adds_up(hybrid_report):
    read = json.loads(json.dumps(document(hybrid_report), allow_nan=False))
    assert read["hybrid"] == {"components": ["full", "swa", "mamba"], "window": 20, "state_interval": 40}
    for run, shown in zip(hybrid_report.runs, read["runs"], strict=True):
        lost = sum(shown["lost_tokens"].values())
        assert run.full.matched_tokens == shown["token_hit_rate"] * shown["tokens"] + lost
        assert shown["states"]["held"] <= shown["states"]["peak"] <= shown["pools"]["mamba"]
