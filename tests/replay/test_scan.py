"""The compiled replay makes of every request, and of the cache, exactly what the handle makes of it."""

import random
from dataclasses import replace
from functools import partial
from itertools import accumulate

import jax
import numpy as np
import pytest

import urc
from tests.replay.conftest import trace_of
from urc import testing, view
from urc.policies import POLICIES
from urc.replay import engine, scan
from urc.replay.workload import chat_workload

SLOTS = 24
LONGEST = 16


def random_trace(seed, page_size, outputs, requests=150):
    """Short sequences over few ids, most of which go on from a part of an earlier one."""
    rng, sequences, inputs = random.Random(seed), [], []
    for _ in range(requests):
        ids = [rng.choice([0, 1]) if i % page_size == 0 or rng.random() < 0.3 else 5 for i in range(rng.randint(0, 14))]
        if sequences and rng.random() < 0.5:
            earlier = rng.choice(sequences)
            ids = (earlier[: rng.randint(0, len(earlier))] + ids)[:LONGEST]
        sequences.append(ids)
        inputs.append(rng.randint(0, len(ids)) if outputs and rng.random() < 0.8 else len(ids))
    return trace_of(*sequences, inputs=inputs)


QUICK = {("lru", 1, True), ("slru", 2, False), ("lfu", 3, True)}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in [
        *((policy, 1, outputs) for policy in POLICIES for outputs in (True, False)),
        *((policy, page, outputs) for policy in ("lru", "slru", "lfu") for page in (2, 3) for outputs in (True, False)),
    ]
]


@pytest.mark.parametrize(("policy", "page_size", "outputs"), CASES)
def test_serves_as_the_handle_does(policy, page_size, outputs):
    config = engine.config_of(slots=SLOTS, policy=policy, page_size=page_size)
    program = scan.compile_program(config, scan.Shape(LONGEST, outputs))
    evictions, refusals = 0, 0
    for seed, capacity in enumerate((SLOTS, SLOTS // 2, 6, page_size)):
        trace = random_trace(seed, page_size, outputs)
        cache = engine.open_cache(slots=SLOTS, capacity=capacity, policy=policy, page_size=page_size)
        expected = [engine.serve(cache, request, page_size=page_size) for request in trace.requests]
        state = scan.open_state(config, capacity)
        (chunk,) = scan.pack(trace.requests, scan.Shape(LONGEST, outputs), page_size=page_size)
        state, outcome = program.call(state, chunk.ids, chunk.requests)
        assert scan.outcomes(chunk, outcome) == expected
        assert_same(state, cache.state)
        evictions += sum(served.evicted is not None for served in expected)
        refusals += sum(served.refused for served in expected)
    assert min(evictions, refusals) > 20


def assert_same(state, other):
    """Equal but for what lies where nothing is held."""
    view.check(state)
    assert view.nodes(state) == view.nodes(other)
    for name in ("nodes", "heads", "scalars", "sessions", "victims"):
        for ours, theirs in zip(*(jax.tree.leaves(getattr(s, name)) for s in (state, other)), strict=True):
            np.testing.assert_array_equal(ours, theirs, name)
    used = int(state.scalars.get(0)["full.used"])
    free = [np.asarray(s.stores["full"].pool)[used:] for s in (state, other)]
    np.testing.assert_array_equal(*free)


@pytest.mark.parametrize("outputs", [False, True])
def test_no_array_of_the_state_is_copied(outputs):
    config = replace(engine.config_of(slots=60_000, policy="lru"), max_sessions=1100)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), urc.init(config))
    shape = scan.Shape(512, outputs)
    serve_all = partial(scan.serve_all, shape=shape)
    assert testing.big_copies(serve_all, state, *scan.blank(shape)) == []


def test_runs_are_those_of_the_handle():
    trace, slots, served = chat_workload(requests=540, seed=2), 2000, []
    plan = [(300, "lru"), (40, "slru"), (9000, "lru")]
    runs = scan.replay_all(trace, plan, slots=slots, on_progress=served.append)
    assert sum(served) == len(plan) * 540
    for (capacity, policy), run in zip(plan, runs, strict=True):
        cache = engine.open_cache(slots=slots, capacity=min(capacity, slots), policy=policy)
        expected = engine.replay(trace, cache, capacity=capacity, policy=policy)
        measured = {"seconds", "compile_seconds", "requests_per_second"}
        assert all(getattr(run, name) == getattr(expected, name) for name in run.__slots__ if name not in measured)
        assert run.seconds > run.compile_seconds > 0
        assert run.requests_per_second > 0
    assert runs[1].refused > 0
    assert runs[0].evicted > 1000


def test_chunks_hold_all_requests_in_order():
    lengths = [0, 3, 20_000, 5, 1, 16_384, 16_384, 2, *[1] * 600]
    trace = trace_of(*([i] * n for i, n in enumerate(lengths)), inputs=[n // 2 for n in lengths])
    shape = scan.Shape.of(trace.requests)
    assert shape == (32_768, True)
    chunks = [*scan.pack(trace.requests, shape, page_size=2)]
    # 36,393 ids do not fit into 32,768; twice 16,384 do, and fill it. Then come 601 requests, 512 to a chunk.
    ends = list(accumulate(chunk.size for chunk in chunks))
    assert ends == [5, 7, 519, 608]
    rows = [dict(zip(scan.COLUMNS, row, strict=True)) for c in chunks for row in c.requests[: c.size].tolist()]
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        assert (row["length"], row["input_length"], row["again"]) == (n // 2 * 2, n // 4 * 2, n > 0)
        ids = next(c for c, end in zip(chunks, ends, strict=True) if i < end).ids
        assert ids[row["start"] :][:n].tolist() == [i] * n
        assert len(ids) >= row["start"] + shape.width  # what is read as its key
    assert not any(chunk.requests[chunk.size :].any() for chunk in chunks)


def test_nothing_asked():
    (run,) = scan.replay_all(trace_of([], [], inputs=[0, 0]), [(4, "lru")], slots=4)
    assert (run.requests, run.rate.input_blocks, run.evict_calls, run.refused) == (2, 0, 0, 0)
    assert scan.replay_all(trace_of([1]), [], slots=4) == []
    (run,) = scan.replay_all(trace_of([1, 2], [1, 2]), [(300, "lru")], slots=300, page_size=300)
    assert (run.rate.matched_blocks, run.rate.input_blocks) == (0, 4)


def test_an_error_ends_all_runs():
    def fail(served):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan.replay_all(trace_of([1], [2]), [(c, "lru") for c in (1, 2, 3, 4)], slots=4, on_progress=fail)
