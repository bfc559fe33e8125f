"""The rule, on traces small enough to work out by hand, through the plain-Python tree and through urc."""

from itertools import pairwise

import pytest

from tests.replay.conftest import trace_of
from tests.replay.stand_in import RadixTree
from urc.replay import engine
from urc.replay.engine import Point, Served, ideal, replay, serve
from urc.replay.workload import chat_workload

SLOTS = 2000  # in the pools of all caches here, so that they share compiled code


@pytest.fixture(params=["stand-in", "urc"])
def run(request):
    """Replays a trace through an empty cache."""

    def run(trace, *, capacity, policy="lru", page_size=1):
        if request.param == "urc":
            cache = engine.open_cache(slots=SLOTS, capacity=capacity, policy=policy, page_size=page_size)
        else:
            cache = RadixTree(capacity, policy, page_size)
        return replay(trace, cache, capacity=capacity, policy=policy, page_size=page_size)

    return run


def test_hits_and_evictions_by_hand(run):
    trace = trace_of(
        [0, 1, 2],  # 0 of 3; cached: 012
        [0, 1, 3],  # 2 of 3; 01 + 2, 3: full
        [0, 1, 2],  # 3 of 3; now 3 is the oldest leaf
        [5, 6],  # 0 of 2; 2 to free: 3 goes, then 2
        [0, 1, 2],  # 2 of 3; 1 to free: 01 is locked, so 56 goes whole
    )
    result = run(trace, capacity=4)
    assert result.rate.matched_blocks == 7
    assert result.rate.input_blocks == 14
    assert result.rate.blocks == 0.5
    assert (result.evicted, result.evict_calls, result.refused) == (4, 2, 0)
    assert result.series == (Point(1, 0, 3), Point(2, 2, 6), Point(3, 5, 9), Point(4, 5, 11), Point(5, 7, 14))
    assert (result.capacity, result.policy, result.page_size, result.requests) == (4, "lru", 1, 5)


@pytest.mark.parametrize(("policy", "hits"), [("lru", 1), pytest.param("lfu", 2, marks=pytest.mark.slow), ("slru", 2)])
def test_policies_by_hand(run, policy, hits):
    # Two inserts count 9, one each of the others. Room for 4 is made by 8, the oldest leaf; room for 5 by 9, now
    # the oldest, or, where a second use protects it, by 1.
    trace = trace_of([9], [9, 8], [1], [4], [5], [9])
    result = run(trace, capacity=3, policy=policy)
    assert result.rate.matched_blocks == hits


def test_full_hit_makes_no_insert(run):
    # 7 hits in full twice, which counts as no further request of it: SLRU does not protect it.
    trace = trace_of([7], [7], [7], [1], [2], [7])
    result = run(trace, capacity=2, policy="slru")
    assert result.rate.matched_blocks == 2


def test_output_enters_the_cache_and_its_match_is_no_hit(run):
    trace = trace_of(
        [0, 1, 2],  # input 01, output 2
        [0, 1, 2, 3, 4],  # input 0123: hits 012
        [0, 1, 2, 3, 4],  # input 0: hits 0, though all five are there
        inputs=[2, 4, 1],
    )
    result = run(trace, capacity=8)
    assert result.rate.matched_blocks == 4
    assert result.rate.input_blocks == 7
    assert result.rate.matched_tokens == 40
    assert result.evict_calls == 0


def test_too_large_a_request_is_refused(run):
    trace = trace_of(
        [0, 1],
        [0, 1, 2, 3, 4, 5],  # 01 is locked, and 4 do not fit beside it
        [0, 1],  # still there
        [9, 8, 7, 6, 5],  # 01 is evicted, in vain
        [0, 1],
    )
    result = run(trace, capacity=4)
    assert result.refused == 2
    assert result.rate.matched_blocks == 2
    assert result.rate.input_blocks == 17
    assert (result.evicted, result.evict_calls) == (2, 2)


def test_whole_pages_only(run):
    trace = trace_of(
        [0, 1, 2, 3, 4],  # 01 23 cached
        [0, 1, 2, 9],  # hits 01
        [7],  # no page
        [0, 1, 2, 3, 4, 5],  # input 01 2: hits 01
        inputs=[5, 4, 1, 3],
    )
    result = run(trace, capacity=8, page_size=2)
    assert result.rate.matched_blocks == 4
    assert result.rate.input_blocks == 13
    assert result.evicted == 0


def test_nothing_asked():
    trace = trace_of([], [])
    result = replay(trace, RadixTree(1), capacity=1, policy="lru")
    assert result.rate.blocks == result.rate.tokens == 0
    assert serve(RadixTree(1), trace.requests[0]) == Served(0, None, False)


def test_partial_last_block_counts_its_tokens_only():
    trace = trace_of([0, 1], [0, 1], block_size=512)
    requests = [type(r)(r.ids, 2, 700, 0) for r in trace.requests]
    rate = ideal(type(trace)("", 512, tuple(requests))).rate
    assert (rate.matched_tokens, rate.input_tokens) == (700, 1400)


def test_ideal_by_hand():
    trace = trace_of([0, 1, 2], [0, 1, 3], [0, 1, 2], [5, 6], [0, 1, 2])
    bound = ideal(trace)
    assert bound.rate.matched_blocks == 0 + 2 + 3 + 0 + 3
    assert bound.blocks == 6
    paged = ideal(trace_of([0, 1, 2, 3, 4], [0, 1, 2, 9], [0, 1, 2, 3, 4, 5], inputs=[5, 4, 3]), page_size=2)
    assert paged.rate.matched_blocks == 0 + 2 + 2
    assert paged.blocks == 8


def test_infinite_cache_reaches_the_ideal(run):
    trace = chat_workload(requests=60)
    bound = ideal(trace)
    result = run(trace, capacity=bound.blocks)
    assert result.rate == bound.rate
    assert result.evict_calls == 0


def test_series_is_short_and_ends_at_the_end():
    trace = chat_workload(requests=1000)
    series = replay(trace, RadixTree(10**5), capacity=10**5, policy="lru").series
    assert len(series) == engine.POINTS
    assert series[-1].requests == 1000
    assert series[-1].asked == trace.input_blocks
    assert all(a < b for a, b in pairwise(series))


def test_progress_adds_up():
    trace, calls = trace_of(*[[i] for i in range(150)]), []
    replay(trace, RadixTree(10), capacity=10, policy="lru", on_progress=calls.append)
    assert sum(calls) == 150


def test_capacity_is_what_is_free():
    for capacity in (3, SLOTS):
        assert engine.open_cache(slots=SLOTS, capacity=capacity, policy="lru").sizes()["full"].free == capacity


@pytest.mark.parametrize("policy", ["lru", pytest.param("lfu", marks=pytest.mark.slow), "slru"])
def test_urc_serves_every_request_as_the_stand_in_does(policy):
    trace = chat_workload(requests=150, seed=3)
    cache = engine.open_cache(slots=SLOTS, capacity=150, policy=policy)
    tree = RadixTree(150, policy)
    ours = [serve(cache, request) for request in trace.requests]
    theirs = [serve(tree, request) for request in trace.requests]
    assert ours == theirs
    assert sum(s.evicted or 0 for s in ours) > 1000
