import json

import pytest
from rich.console import Console

from tests.replay.conftest import trace_of
from tests.replay.stand_in import RadixTree
from urc.replay.engine import ideal, replay
from urc.replay.report import Report, document, table


@pytest.fixture
def report():
    trace = trace_of([0, 1, 2], [0, 1, 3], [0, 1, 2], [5, 6], [0, 1, 2, 3, 4, 5, 6])
    runs = [replay(trace, RadixTree(c, p), capacity=c, policy=p) for c in (4, 9) for p in ("lru", "lfu")]
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
