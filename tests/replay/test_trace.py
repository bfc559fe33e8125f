import gzip
import json
import re

import numpy as np
import pytest

from tests.replay.conftest import chat, mooncake
from urc.replay.trace import TraceError, read_trace

GOOD = mooncake([0, 1, 2])


def test_mooncake_ids_are_all_input(write_trace):
    path = write_trace(mooncake([0, 1, 2], input_length=1100, output_length=7), mooncake([]))
    trace = read_trace(path)
    first, second = trace.requests
    assert trace.name == "trace.jsonl"
    assert trace.block_size == 512
    assert first.ids.dtype == np.int32
    assert first.ids.tolist() == [0, 1, 2]
    assert (first.input_blocks, first.input_length, first.output_length) == (3, 1100, 7)
    assert second.input_blocks == 0
    assert (trace.input_blocks, trace.input_tokens) == (3, 1100)


def test_chat_ids_are_input_then_output(write_trace):
    trace = read_trace(write_trace(chat([0, 1, 2, 3], input_length=47)))
    assert trace.block_size == 16
    assert trace.requests[0].input_blocks == 2
    assert trace.requests[0].ids.tolist() == [0, 1, 2, 3]


def test_block_size_decides_how_many_ids_are_input(write_trace):
    trace = read_trace(write_trace(chat([0, 1, 2, 3], input_length=47)), block_size=20)
    assert trace.block_size == 20
    assert trace.requests[0].input_blocks == 2
    trace = read_trace(write_trace(chat([0, 1, 2, 3], input_length=47)), block_size=12)
    assert trace.requests[0].input_blocks == 3


def test_requests_are_immutable(write_trace):
    request = read_trace(write_trace(GOOD)).requests[0]
    with pytest.raises(AttributeError):
        request.input_blocks = 1
    with pytest.raises(ValueError, match="read-only"):
        request.ids[0] = 1


def test_ids_beyond_int32_are_renamed_consistently(write_trace):
    trace = read_trace(write_trace(mooncake([2**63, 7]), mooncake([2**63, 2**31, 7])))
    assert [r.ids.tolist() for r in trace.requests] == [[0, 1], [0, 2, 1]]


def test_largest_int32_is_kept(write_trace):
    assert read_trace(write_trace(mooncake([2**31 - 1]))).requests[0].ids.tolist() == [2**31 - 1]


def test_gzip(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert len(read_trace(path).requests) == 1
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TraceError, match="broken gzip"):
        read_trace(path)
    path.write_text(json.dumps(GOOD))
    with pytest.raises(TraceError, match="gz: Not a gzipped file"):
        read_trace(path)


def test_limit_reads_no_further(write_trace):
    path = write_trace(mooncake([0]), mooncake([1]), "garbage")
    assert len(read_trace(path, limit=2).requests) == 2


def test_blank_lines_and_other_fields_are_ignored(write_trace):
    path = write_trace(GOOD | {"model": "x"}, "", "  ", GOOD)
    assert len(read_trace(path).requests) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("nan", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"input_length": 1}, "`timestamp` is missing"),
        (GOOD | {"input_length": -1}, "`input_length` is not an integer in"),
        (GOOD | {"input_length": 1.5}, "`input_length` is not an integer in"),
        (GOOD | {"output_length": "3"}, "`output_length` is not an integer in"),
        (GOOD | {"output_length": None}, "`output_length` is not an integer in"),
        (GOOD | {"timestamp": True}, "`timestamp` is not an integer in"),
        ({k: v for k, v in GOOD.items() if k != "hash_ids"}, "`hash_ids` is missing"),
        (GOOD | {"hash_ids": 3}, "`hash_ids` is not a list of integers >= 0"),
        (GOOD | {"hash_ids": [0, -1]}, "`hash_ids` is not a list of integers >= 0"),
        (GOOD | {"hash_ids": [0, "1"]}, "`hash_ids` is not a list of integers >= 0"),
        (GOOD | {"hash_ids": [0, False]}, "`hash_ids` is not a list of integers >= 0"),
    ],
)
def test_malformed_line_is_named(write_trace, row, reason):
    path = write_trace(GOOD, row)
    with pytest.raises(TraceError, match=re.escape(f"{path}, line 2: ") + ".*" + re.escape(reason)):
        read_trace(path)


def test_every_field_is_required(write_trace):
    for row in (GOOD, chat([0], input_length=16)):
        for field in row:
            if field in ("session", "turn"):  # the first line's fields say which format it is
                continue
            with pytest.raises(TraceError, match=r"line 1: .*(missing|neither)"):
                read_trace(write_trace({k: v for k, v in row.items() if k != field}))
    for field in ("session", "turn"):
        row = chat([0], input_length=16)
        del row[field]
        with pytest.raises(TraceError, match=f"`{field}` is missing"):
            read_trace(write_trace(row))


def test_chat_input_needs_its_ids(write_trace):
    with pytest.raises(TraceError, match="line 1: `hash_ids` has 2 ids, the input alone needs 3"):
        read_trace(write_trace(chat([0, 1], input_length=48)))


def test_format_may_not_change(write_trace):
    with pytest.raises(TraceError, match="line 2: `timestamp` is missing"):
        read_trace(write_trace(GOOD, chat([0], input_length=16)))


def test_not_utf8(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"a": "\xff"}\n')
    with pytest.raises(TraceError, match="line 2: not UTF-8"):
        read_trace(path)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty(tmp_path, content):
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match="no requests"):
        read_trace(path)


def test_unreadable(tmp_path):
    with pytest.raises(TraceError, match="missing: No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
