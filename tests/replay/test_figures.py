"""Hit rates of real traces, as the real SGLang 0.5.23 tree reaches them: to within 0.001."""

import os
from functools import cache
from pathlib import Path

import pytest

from urc.replay import engine, scan
from urc.replay.trace import read_trace

TRACES = Path(os.environ.get("URC_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
POLICIES = ("lru", "lfu", "slru")
FIGURES = {
    ("mooncake_conversation", 1_000): (0.0445, 0.0480, 0.0480),
    ("mooncake_conversation", 5_860): (0.1336, 0.0941, 0.0941),
    ("mooncake_conversation", 20_000): (0.2858, 0.2130, 0.2130),
    ("mooncake_conversation", 50_000): (0.3540, 0.3432, 0.3432),
    ("mooncake_conversation", 200_000): (0.3664, 0.3664, 0.3664),
    ("mooncake_synthetic", 5_860): (0.3083, 0.2452, 0.2424),
    ("mooncake_synthetic", 20_000): (0.5714, 0.5908, 0.5908),
    ("chat_sessions_pages16", 500): (0.0127, 0.0144, 0.0144),
    ("chat_sessions_pages16", 2_000): (0.0962, 0.1747, 0.1747),
    ("chat_sessions_pages16", 20_000): (0.9339, 0.9339, 0.9339),
}
QUICK = {("chat_sessions_pages16", "lru"), ("mooncake_synthetic", "lru")}
SLOTS = 200_000  # in the pools of all caches here, so that they share compiled code
CASES = [
    pytest.param(name, capacity, policy, rate, marks=[] if (name, policy) in QUICK else pytest.mark.slow)
    for (name, capacity), rates in FIGURES.items()
    for policy, rate in zip(POLICIES, rates, strict=True)
]


@cache
def load(name):
    path = TRACES / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no trace {path}: set URC_TRACES to the folder that holds it")
    trace = read_trace(path)
    return trace, engine.ideal(trace)


@pytest.mark.parametrize(
    ("name", "blocks", "tokens"),
    [
        ("mooncake_conversation", 0.3664, 0.3736),
        ("mooncake_synthetic", 0.6396, 0.6512),
        ("chat_sessions_pages16", 0.9339, 0.9279),
    ],
)
def test_ideal(name, blocks, tokens):
    rate = load(name)[1].rate
    assert rate.blocks == pytest.approx(blocks, abs=1e-4)
    assert rate.tokens == pytest.approx(tokens, abs=1e-4)


def test_trace_sizes():
    trace, bound = load("mooncake_conversation")
    assert (len(trace.requests), trace.input_blocks, bound.blocks) == (12_031, 288_500, 182_790)


@cache
def replayed(name, policy):
    """Capacity -> the run, of all capacities that there are figures for."""
    plan = [(capacity, policy) for trace, capacity in FIGURES if trace == name]
    return {run.capacity: run for run in scan.replay_all(load(name)[0], plan, slots=SLOTS)}


@pytest.mark.parametrize(("name", "capacity", "policy", "rate"), CASES)
def test_figure(name, capacity, policy, rate):
    run = replayed(name, policy)[capacity]
    assert run.refused == 0
    assert run.rate.blocks == pytest.approx(rate, abs=1e-3)
