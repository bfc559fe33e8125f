"""The oracle with SWA, Mamba and sessions, against cases worked out by hand from the semantics."""

import pytest

from tests.by_hand import counts, held, make, put, spans
from tests.oracle import OracleFull, OracleRefused
from tests.oracle.components import FULL, MAMBA, SWA

# What a match says


def test_a_match_of_three_kinds():
    cache = make(SWA, MAMBA, window=3)
    leaf = put(cache, 6, state=True)  # slots 0 .. 5, 0 .. 5, and 0
    hit = cache.match_prefix(range(9))
    assert (hit.device_len, hit.full_len, hit.branching_len, hit.stop) == (6, 6, 0, "NO_CHILD")
    assert hit.hits == {FULL: 6, SWA: 6, MAMBA: 6}
    # Below the window nothing of SWA is locked, so it is not given out.
    assert hit.slots == {FULL: [0, 1, 2, 3, 4, 5], SWA: [-1, -1, -1, 3, 4, 5], MAMBA: [0]}
    assert hit.node == leaf.node
    miss = cache.match_prefix([7])
    assert (miss.slots, miss.hits) == ({FULL: [], SWA: [], MAMBA: []}, {FULL: 0, SWA: 0, MAMBA: 0})


def test_the_deepest_position_at_which_all_agree():
    cache = make(SWA, MAMBA, window=3)
    put(cache, 4, state=True)
    put(cache, 8)
    put(cache, 12, state=True)
    # Cut where the last window began: [0,1) [1,4), then [4,5) [5,8), then [8,9) [9,12).
    assert list(spans(cache, FULL)) == [(0, 1), (1, 4), (4, 5), (5, 8), (8, 9), (9, 12)]
    # The window is broken in [8,9); then SWA agrees at 8 and at 12 (three tokens from 9 on), Mamba at 4 and 12.
    gap = next(n for n in cache.nodes() if n.start == 8)
    cache.free_slots[SWA] |= set(gap.values[SWA])
    gap.values[SWA] = None
    assert cache.probe(range(12)).device_len == 12
    hit = cache.probe([*range(11), 99])
    # At 11 there are two tokens since the gap; so SWA alone agrees at 8, and Mamba at 4.
    assert (hit.device_len, hit.full_len, hit.hits) == (4, 11, {FULL: 11, SWA: 8, MAMBA: 4})
    assert (hit.stop, hit.branching_len) == ("NO_STATE", 11)


def test_of_two_that_fall_short_alike_the_higher_rank_is_named():
    cache = make(SWA, MAMBA)
    put(cache, 4, given_up=4)
    hit = cache.match_prefix(range(4))
    assert (hit.hits, hit.stop) == ({FULL: 4, SWA: 0, MAMBA: 0}, "WINDOW_BROKEN")


def test_without_a_free_node_a_match_falls_back_to_a_node_that_ends():
    cache = make(SWA, window=2, max_nodes=3)
    put(cache, 4)  # [0,2) [2,4)
    hit = cache.match_prefix([0, 1, 2, 9])
    assert (hit.device_len, hit.full_len, hit.hits) == (2, 2, {FULL: 2, SWA: 2})
    assert (hit.stop, hit.branching_len, hit.slots) == ("NO_FREE_NODE", 0, {FULL: [0, 1], SWA: [0, 1]})


def test_without_a_free_node_nothing_changes_for_who_cannot_resume_inside_anyway():
    cache = make(MAMBA, max_nodes=2)
    put(cache, 4, state=True)
    hit = cache.match_prefix([0, 1])
    assert (hit.device_len, hit.full_len, hit.hits) == (0, 2, {FULL: 2, MAMBA: 0})
    assert (hit.stop, hit.branching_len) == ("NO_STATE", 2)


def test_a_match_splits_even_where_it_cannot_resume():
    cache = make(MAMBA)
    put(cache, 4, state=True)
    clock = cache.clock
    assert cache.match_prefix([0, 1]).device_len == 0
    assert spans(cache, MAMBA) == {(0, 2): None, (2, 4): (0,)}
    assert cache.clock == clock


# Inserts


def test_long_leaves_are_cut_where_the_caller_s_slots_begin_and_where_the_last_window_begins():
    cache = make(SWA, page_size=4, window=6)
    result = put(cache, 24, given_up=5, inserted_len=10, priority=2)  # the window is two pages
    # Entries below 5 are ignored; 5 .. 7 lie in a node that he cannot fill, so they are duplicates.
    assert spans(cache, SWA) == {(0, 8): None, (8, 16): tuple(range(3, 11)), (16, 24): tuple(range(11, 19))}
    assert (result.adopted[SWA], result.freed[SWA]) == (list(range(3, 19)), [0, 1, 2])
    assert [(v.hit_count, v.priority) for v in cache.tree()] == [(0, 2), (1, 2), (1, 2)]
    assert [n.created for n in cache.nodes()] == [1, 1, 1]
    assert result.node == cache.nodes()[-1].number


def test_an_insert_needs_a_node_for_each_cut():
    tight = make(SWA, page_size=4, window=6, max_nodes=3)
    slots = {FULL: tight.alloc(FULL, 24), SWA: [-1] * 5 + tight.alloc(SWA, 19)}
    before = tight.digest()
    with pytest.raises(OracleFull):
        tight.insert(range(24), slots, evicted_len={SWA: 5})
    assert tight.digest() == before
    put(make(SWA, page_size=4, window=6, max_nodes=4), 24, given_up=5)


def test_a_tombstone_recovers_and_is_cut_like_a_new_leaf():
    cache = make(SWA, window=3)
    first = put(cache, 8, given_up=8)
    assert spans(cache, SWA) == {(0, 8): None}
    second = put(cache, 8)  # full 8 .. 15, swa 0 .. 7
    assert spans(cache, SWA) == {(0, 5): (0, 1, 2, 3, 4), (5, 8): (5, 6, 7)}
    assert (second.existed, first.existed) == ({FULL: True, SWA: False}, {FULL: False, SWA: False})
    assert (second.prefix_len, second.node) == (8, first.node)  # the rear part keeps the identity
    assert second.freed == {FULL: list(range(8, 16)), SWA: []}
    third = put(cache, 8)
    assert third.existed == {FULL: True, SWA: True}
    assert third.freed[SWA] == list(range(8, 16))


def test_what_lies_below_the_shared_prefix_does_not_recover():
    cache = make(SWA, window=3)
    put(cache, 4, given_up=4)
    put(cache, 6, prev=4)
    assert spans(cache, SWA) == {(0, 4): None, (4, 6): (0, 1)}
    hit = cache.match_prefix(range(6))  # two tokens since the tombstone
    assert (hit.device_len, hit.hits[SWA]) == (0, 0)
    put(cache, 7, prev=6)
    assert cache.match_prefix(range(7)).device_len == 7


def test_no_slots_of_swa_are_as_if_all_was_given_up():
    cache = make(SWA, window=2)
    cache.insert(range(6), {FULL: cache.alloc(FULL, 6)})
    assert spans(cache, SWA) == {(0, 6): None}
    cache.insert(range(6), {FULL: cache.alloc(FULL, 6), SWA: []})
    assert spans(cache, SWA) == {(0, 6): None}


def test_a_state_goes_to_the_end_once():
    cache = make(MAMBA)
    first = put(cache, 4, state=True)
    assert (first.adopted[MAMBA], first.existed[MAMBA]) == ([0], False)
    second = put(cache, 4, state=True)
    assert (second.adopted[MAMBA], second.freed[MAMBA], second.existed[MAMBA]) == ([], [1], True)
    third = put(cache, 2, state=True)  # a split: the front part has none
    assert (third.adopted[MAMBA], third.existed) == ([1], {FULL: True, MAMBA: False})
    assert spans(cache, MAMBA) == {(0, 2): (1,), (2, 4): (0,)}
    assert cache.insert([], {FULL: [], MAMBA: cache.alloc(MAMBA, 1)}).freed[MAMBA] == [2]


def test_the_states_of_a_path_are_limited_but_forks_and_ends_are_spared():
    cache = make(MAMBA, mamba={"max_states_per_path": 2})
    put(cache, 4, state=True)
    put(cache, 8, state=True)
    assert held(cache, MAMBA) == [(0, 4), (4, 8)]
    assert put(cache, 12, state=True).freed[MAMBA] == [0]  # the one at 4
    put(cache, [*range(8), 50], state=True)  # makes 8 a fork; this path keeps 9 and 8
    assert len(put(cache, 16, state=True).freed[MAMBA]) == 1  # the end and the fork are two, so 12 goes
    assert held(cache, MAMBA) == [(4, 8), (12, 16), (8, 9)]
    lock = cache.lock(cache.probe(range(16)).node)
    put(cache, 20, state=True)  # 20, the fork, and 16, which is locked
    assert held(cache, MAMBA) == [(4, 8), (12, 16), (16, 20), (8, 9)]
    cache.unlock(lock)
    assert len(put(cache, 24, state=True).freed[MAMBA]) == 2  # 24 and the fork stay
    assert held(cache, MAMBA) == [(4, 8), (20, 24), (8, 9)]


@pytest.mark.parametrize(
    ("slots", "options"),
    [
        ({SWA: [-1] * 3}, {"evicted_len": {SWA: 4}}),
        ({SWA: [-1] * 5}, {"evicted_len": {SWA: 5}}),
        ({MAMBA: [0, 1]}, {}),
        ({MAMBA: [7]}, {}),  # free
        ({SWA: [0, 1, 2, 99]}, {}),  # free
        ({SWA: [0, 1, 2, 2]}, {}),
        ({}, {"evicted_len": {FULL: 1}}),
        ({}, {"evicted_len": {MAMBA: 1}}),
        ({}, {"evicted_len": {SWA: -1}}),
    ],
)
def test_wrong_inserts_are_refused(slots, options):
    cache = make(SWA, MAMBA)
    own = {FULL: cache.alloc(FULL, 4)}
    cache.alloc(SWA, 4)
    cache.alloc(MAMBA, 2)
    before = cache.digest()
    with pytest.raises(OracleRefused):
        cache.insert(range(4), own | slots, **options)
    assert cache.digest() == before


# Eviction


def test_swa_takes_the_state_of_an_inner_node_and_a_state_goes_alone():
    cache = make(SWA, MAMBA)
    put(cache, 4, state=True)
    put(cache, 8, state=True)
    copy = cache.snapshot()
    assert cache.evict({MAMBA: 1}).evicted == {FULL: 0, SWA: 0, MAMBA: 1}
    assert (held(cache, SWA), held(cache, MAMBA)) == ([(0, 4), (4, 8)], [(4, 8)])
    cache.restore(copy)
    assert cache.evict({SWA: 1}).evicted == {FULL: 0, SWA: 4, MAMBA: 1}
    assert (held(cache, SWA), held(cache, MAMBA)) == ([(4, 8)], [(4, 8)])
    assert cache.evict({MAMBA: 1}).evicted == {FULL: 4, SWA: 4, MAMBA: 1}  # a leaf goes whole
    assert held(cache, FULL) == [(0, 4)]


def test_what_full_frees_counts_for_the_others():
    cache = make(SWA, MAMBA)
    put(cache, 4, state=True)
    put(cache, 8, state=True)
    assert cache.evict({FULL: 1, SWA: 4, MAMBA: 1}).evicted == {FULL: 4, SWA: 4, MAMBA: 1}
    assert held(cache, FULL) == [(0, 4)]


def test_a_leaf_that_is_locked_gives_what_is_not():
    cache = make(SWA, MAMBA)
    lock = cache.lock(put(cache, 4, state=True).node)
    assert cache.evict({FULL: 9, SWA: 9, MAMBA: 9}).evicted == {FULL: 0, SWA: 0, MAMBA: 0}
    cache.release_early(lock, MAMBA)
    assert cache.evict({FULL: 9, SWA: 9, MAMBA: 9}).evicted == {FULL: 0, SWA: 0, MAMBA: 1}
    cache.release_early(lock, SWA)
    assert cache.evict({FULL: 9, SWA: 9}).evicted == {FULL: 0, SWA: 4, MAMBA: 0}
    cache.unlock(lock)
    assert cache.evict({FULL: 9}).evicted == {FULL: 4, SWA: 0, MAMBA: 0}


# Sessions


def test_what_no_session_refers_to_goes_first():
    cache = make(SWA, MAMBA)
    old = put(cache, [1, 2], state=True)
    put(cache, [3, 4], state=True)
    assert cache.advance_session(cache.open_session(), old.node)
    for name, n in ((FULL, 2), (SWA, 2), (MAMBA, 1)):
        copy = cache.snapshot()
        assert cache.evict({name: n}).evicted == {FULL: 2, SWA: 2, MAMBA: 1}
        assert [v.prefix for v in cache.tree()] == [(1, 2)]
        cache.evict({name: n})  # referred to, but not protected
        assert cache.tree() == []
        cache.check()
        cache.restore(copy)


def test_a_session_whose_node_goes_ends_at_the_parent_and_counts_what_it_did():
    cache = make(SWA, MAMBA, window=1)
    put(cache, 2, state=True)  # [0,1) [1,2)
    node = put(cache, 4, state=True).node  # [2,3) [3,4)
    session = cache.open_session()
    cache.advance_session(session, node)
    assert counts(cache, FULL, "sessions") == {(0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 4): 1}
    assert counts(cache, SWA, "sessions") == {(0, 1): 0, (1, 2): 0, (2, 3): 0, (3, 4): 1}
    assert counts(cache, MAMBA, "sessions") == {(0, 1): 0, (1, 2): 0, (2, 3): 0, (3, 4): 1}
    cache.evict({FULL: 2})
    cache.check()
    assert counts(cache, FULL, "sessions") == {(0, 1): 1, (1, 2): 1}
    assert counts(cache, SWA, "sessions") == counts(cache, MAMBA, "sessions") == {(0, 1): 0, (1, 2): 0}
    cache.recede_session(session, 9)  # it stays where it is, and refers anew
    assert counts(cache, SWA, "sessions") == counts(cache, MAMBA, "sessions") == {(0, 1): 0, (1, 2): 1}
    cache.recede_session(session, 1)
    assert counts(cache, MAMBA, "sessions") == {(0, 1): 1, (1, 2): 0}
    cache.recede_session(session, 0)
    assert counts(cache, FULL, "sessions") == {(0, 1): 0, (1, 2): 0}


def test_a_session_across_a_split():
    cache = make(SWA, MAMBA, window=2)
    node = put(cache, 6, given_up=6, state=True).node
    session = cache.open_session()
    cache.advance_session(session, node)
    cache.match_prefix(range(3))
    assert counts(cache, SWA, "sessions") == {(0, 3): 1, (3, 6): 1}  # copied
    assert counts(cache, MAMBA, "sessions") == {(0, 3): 0, (3, 6): 1}
    cache.check()
    cache.advance_session(session, node)  # anew: the front part is no longer of the window
    assert counts(cache, SWA, "sessions") == {(0, 3): 0, (3, 6): 1}
    cache.close_session(session)
    assert set(counts(cache, FULL, "sessions").values()) == {0}


def test_sessions_are_few_and_close_once():
    cache = make(max_sessions=2)
    node = put(cache, 2).node
    first, _ = cache.open_session(), cache.open_session()
    with pytest.raises(OracleFull):
        cache.open_session()
    assert cache.close_session(first)
    before = cache.digest()
    assert not cache.close_session(first)
    assert not cache.advance_session(first, node)
    assert not cache.recede_session(first, 1)
    assert cache.digest() == before
    assert cache.open_session() != first
    with pytest.raises(OracleRefused):
        cache.close_session(99)
    with pytest.raises(OracleRefused):
        cache.advance_session(2, 99)
