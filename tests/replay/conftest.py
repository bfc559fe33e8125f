import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.replay.hybrid_stand_in import HybridTree
from tests.replay.stand_in import RadixTree
from urc.replay import engine, hybrid, scan
from urc.replay.trace import Request, Trace


@pytest.fixture
def stand_in(monkeypatch):
    """Replays through the plain-Python trees, which need no compilation."""

    def replay_all(trace, plan, *, slots, page_size=1, on_progress):
        return [
            engine.replay(
                trace,
                RadixTree(capacity, policy, page_size),
                capacity=capacity,
                policy=policy,
                page_size=page_size,
                on_progress=on_progress,
            )
            for capacity, policy in plan
        ]

    def open_hybrid(*, slots, pools, policy, model):
        assert all(slots[name] >= pools[name] for name in model.components)
        return HybridTree(pools, window=model.window_blocks, policy=policy, page_size=model.page_size)

    monkeypatch.setattr(scan, "replay_all", replay_all)
    monkeypatch.setattr(hybrid, "open_cache", open_hybrid)


@pytest.fixture
def write_trace(tmp_path) -> Callable[..., Path]:
    """Writes rows (dicts, or text that is taken as it is) as lines of a file."""

    def write(*rows, name="trace.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


def mooncake(ids, *, input_length=None, output_length=5, timestamp=0):
    input_length = 512 * len(ids) if input_length is None else input_length
    lengths = {"input_length": input_length, "output_length": output_length}
    return {"timestamp": timestamp, **lengths, "hash_ids": list(ids)}


def chat(ids, *, input_length, output_length=5, session=0, turn=0):
    lengths = {"input_length": input_length, "output_length": output_length}
    return {"session": session, "turn": turn, **lengths, "hash_ids": list(ids)}


def trace_of(*sequences, block_size=10, inputs=None) -> Trace:
    """A trace of id sequences, all of them input unless `inputs` says how much of each is."""
    counts = inputs or [len(ids) for ids in sequences]
    requests = [
        Request(np.array(ids, np.int32), count, count * block_size, (len(ids) - count) * block_size)
        for ids, count in zip(sequences, counts, strict=True)
    ]
    return Trace(name="made by hand", block_size=block_size, requests=tuple(requests))
