"""The hybrid rule, on traces small enough to work out by hand, through the plain-Python tree and through urc.

Blocks of 10 tokens, a window of 2 blocks, a checkpoint every 4.
"""

from dataclasses import replace

import pytest

from tests.replay.conftest import trace_of
from tests.replay.hybrid_stand_in import HybridTree
from urc.replay import hybrid
from urc.replay.engine import Served
from urc.replay.hybrid import Hybrid, Outcome
from urc.replay.workload import chat_workload

ALL = ("full", "swa", "mamba")
MODEL = Hybrid(components=ALL, window=20, interval=40, block_size=10)
SLOTS = {"full": 500, "swa": 250, "mamba": 60}  # in the pools of all caches here, so that they share compiled code


def stand_in(pools, model, policy="lru"):
    return HybridTree(pools, window=model.window_blocks, policy=policy, page_size=model.page_size)


def urc_cache(pools, model, policy="lru"):
    return hybrid.open_cache(slots=SLOTS, pools=pools, policy=policy, model=model)


@pytest.fixture(params=[stand_in, urc_cache], ids=["stand-in", "urc"])
def open_cache(request):
    return request.param


def pools_of(*sizes):
    return dict(zip(ALL, sizes, strict=True))


def play(trace, cache, model=MODEL):
    return [hybrid.serve(cache, request, model) for request in trace.requests]


def used(cache, pools):
    return {name: n - cache.sizes()[name].free for name, n in pools.items()}


FORKED = trace_of(
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],  # checkpoints at 4, 8 and 10
    [0, 1, 2, 3, 4, 5, 20, 21],  # Full has 6, the last state is at 4; the end is at 8
    [0, 1, 2, 3, 4, 5, 30],  # Full has 6 again
)


def outcome(matched, full, stated, taken, untaken, growth, evicted=None):
    return Outcome(Served(matched, evicted, False), full, stated, taken, untaken, growth)


def test_branching_point_taken(open_cache):
    # The second takes a state at 6, for which blocks 4 and 5 of SWA recover; the third resumes there.
    pools = pools_of(100, 50, 20)
    cache = open_cache(pools, MODEL)
    assert play(FORKED, cache) == [outcome(0, 0, 0, 3, 0, 3), outcome(4, 6, 4, 2, 0, 2), outcome(6, 6, 6, 1, 0, 1)]
    assert used(cache, pools) == pools_of(10 + 2 + 1, 6 + 4 + 1, 6)


def test_branching_point_not_taken(open_cache):
    # The third computes 4 and 5 again; its window is 5 and 6, so that the node of 4 and 5 is cut.
    pools, model = pools_of(100, 50, 20), replace(MODEL, branching=False)
    cache = open_cache(pools, model)
    served = play(FORKED, cache, model)
    assert served == [outcome(0, 0, 0, 3, 0, 3), outcome(4, 6, 4, 1, 0, 1), outcome(4, 6, 4, 1, 0, 1)]
    assert used(cache, pools) == pools_of(10 + 2 + 1, 6 + 2 + 2, 5)


@pytest.mark.parametrize("branching", [True, False])
@pytest.mark.parametrize("components", [ALL, ALL[:2], ("full", "mamba")])
def test_what_is_lost_by_component(components, branching):
    model = replace(MODEL, components=components, branching=branching)
    pools = model.pools(100)
    run = hybrid.replay(FORKED, stand_in(pools, model), model, pools=pools, policy="lru")
    lost = {name: rate.matched_tokens for name, rate in run.lost.items()}
    tokens = 20 if branching else 40
    assert lost == {name: tokens if name == components[-1] else 0 for name in components[1:]}
    assert run.rate.matched_tokens == 120 - tokens
    states = (6 if branching else 5) if "mamba" in components else 0
    assert (run.held, run.peak, run.taken, run.untaken) == (states, states, states, 0)
    assert run.label == f"lru, {'with' if branching else 'without'} branching point"


def test_too_few_states(open_cache):
    # The first takes a state at its end alone. The second, which resumes nowhere, wants 3, evicts the one there is,
    # and with it the leaf (blocks 8 and 9), and takes one at its end. Its own blocks 6 and 7 are new.
    pools = pools_of(100, 50, 1)
    cache = open_cache(pools, MODEL)
    assert play(FORKED, cache) == [
        outcome(0, 0, 0, 1, 2, 1, evicted=0),
        outcome(0, 6, 0, 1, 2, 0, evicted=2),
        outcome(0, 6, 0, 1, 2, 0, evicted=2),
    ]
    assert used(cache, pools) == pools_of(6 + 2 + 1, 2, 1)


def test_broken_window(open_cache):
    # The window at 4 lies in two nodes, block 2 in one with 1, and block 3. For 9 the first of them goes, with its
    # state; the state at 4 stays, in vain. To have its window back, the leaf of block 3 goes, then both are made anew.
    trace = trace_of([0, 1, 2], [0, 1, 2, 3], [9], [0, 1, 2, 3], [0, 1, 2, 3])
    pools = pools_of(100, 3, 20)
    cache = open_cache(pools, MODEL)
    assert play(trace, cache) == [
        outcome(0, 0, 0, 1, 0, 1),
        outcome(3, 3, 3, 1, 0, 1),
        outcome(0, 0, 0, 1, 0, 0, evicted=0),
        outcome(0, 4, 4, 1, 0, 0, evicted=1),
        outcome(4, 4, 4, 0, 0, 0),
    ]
    assert used(cache, pools) == pools_of(5, 3, 2)


def test_output_is_computed_though_it_is_there(open_cache):
    trace = trace_of([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], inputs=[2, 2, 2])
    pools = pools_of(100, 50, 20)
    cache = open_cache(pools, MODEL)
    assert play(trace, cache) == [
        outcome(0, 0, 0, 1, 0, 1),  # a state at 4
        outcome(0, 2, 0, 2, 0, 1),  # one at 2, the branching point; that at 4 is a duplicate
        outcome(2, 2, 2, 1, 0, 0),
    ]
    assert used(cache, pools) == pools_of(4, 4, 2)


def test_partial_last_block_takes_no_part(open_cache):
    # 25 tokens: the state is at 2, where the second, whose last block is another one, can resume.
    trace = trace_of([0, 1, 2], [0, 1, 9])
    trace = replace(trace, requests=tuple(replace(request, input_length=25) for request in trace.requests))
    pools = pools_of(100, 50, 20)
    cache = open_cache(pools, MODEL)
    assert play(trace, cache) == [outcome(0, 0, 0, 1, 0, 1), outcome(2, 2, 2, 0, 0, 0)]
    assert used(cache, pools) == pools_of(2, 2, 1)


@pytest.mark.parametrize("sizes", [(4, 50, 20), (100, 1, 20)])
def test_refused(open_cache, sizes):
    pools = pools_of(*sizes)
    cache = open_cache(pools, MODEL)
    outcomes = play(trace_of([0], [0, 1, 2, 3, 4, 5], []), cache)
    assert outcomes[1].served.refused
    assert (outcomes[1].full, outcomes[1].taken) == (0, 0)
    assert outcomes[2] == Outcome(Served(0, None, False))
    assert used(cache, pools) in ({"full": 1, "swa": 1, "mamba": 1}, {"full": 0, "swa": 0, "mamba": 0})


def test_checkpoints():
    model = Hybrid(components=ALL, window=20, interval=50, block_size=10, page_size=2)
    assert model.checkpoints(0, 16, 0) == [16, 14, 10, 4]  # 50, 100 and 150 tokens, in whole pages
    assert model.checkpoints(4, 16, 6) == [16, 6, 14, 10]
    assert model.checkpoints(4, 16, 10) == [16, 10, 14]
    assert replace(model, branching=False).checkpoints(4, 16, 6) == [16, 14, 10]
    assert replace(model, interval=7).checkpoints(0, 6, 0) == [6, 4, 2]
    assert replace(model, interval=10**9).checkpoints(0, 6, 0) == [6]


def test_needs():
    assert MODEL.needs(4, [16, 6, 10, 7]) == {"full": 12, "swa": 2 + 1 + 2 + 2, "mamba": 4}
    assert replace(MODEL, components=("full", "mamba")).needs(0, [3]) == {"full": 3, "mamba": 1}


def test_default_pools():
    assert MODEL.pools(100) == {"full": 100, "swa": 50, "mamba": 25}
    assert MODEL.pools(101) == {"full": 101, "swa": 52, "mamba": 26}
    assert replace(MODEL, window=900).pools(100) == {"full": 100, "swa": 100, "mamba": 25}
    assert replace(MODEL, window=25, page_size=2).pools(100) == {"full": 100, "swa": 100, "mamba": 25}
    assert MODEL.pools(100, states=3) == {"full": 100, "swa": 6, "mamba": 3}
    assert MODEL.pools(100, states=3, swa=7) == {"full": 100, "swa": 7, "mamba": 3}


def test_capacity_is_what_is_free():
    for pools in (pools_of(30, 20, 10), SLOTS):
        sizes = urc_cache(pools, MODEL).sizes()
        assert {name: size.free for name, size in sizes.items()} == pools


@pytest.mark.parametrize(
    ("policy", "components", "page_size"),
    [
        ("lru", ALL, 1),
        pytest.param("slru", ALL, 1, marks=pytest.mark.slow),
        pytest.param("lru", ("full", "swa"), 1, marks=pytest.mark.slow),
        pytest.param("lru", ("full", "mamba"), 1, marks=pytest.mark.slow),
        pytest.param("lfu", ALL, 2, marks=pytest.mark.slow),
    ],
)
def test_urc_serves_every_request_as_the_stand_in_does(policy, components, page_size):
    trace = chat_workload(requests=120, seed=3)
    model = Hybrid(components=components, window=128, interval=512, block_size=64, page_size=page_size)
    pools = model.pools(240)
    slots = {name: SLOTS[name] for name in components}
    tree = stand_in(pools, model, policy)
    cache = hybrid.open_cache(slots=slots, pools=pools, policy=policy, model=model)
    theirs, ours = play(trace, tree, model), play(trace, cache, model)
    assert ours == theirs
    assert sum(outcome.served.matched for outcome in ours) > 100
    assert sum(outcome.served.evicted or 0 for outcome in ours) > 1000
    assert used(cache, pools) == used(tree, pools)
    cache.check()
