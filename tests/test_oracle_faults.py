"""Faults that real systems had, worked out by hand on the oracle; each test names its row of the list.

The window is 4 and pages are one token, where nothing else is said.
"""

import pytest

from tests.by_hand import counts, held, make, order, put, spans
from tests.oracle import OracleRefused
from tests.oracle.components import FULL, MAMBA, SWA


def test_1_unlock_replays_its_own_receipt():
    cache = make(SWA)
    short = put(cache, 4)
    long = put(cache, 8)
    cache.lock(short.node)
    second = cache.lock(long.node)
    assert counts(cache, SWA) == {(0, 4): 1, (4, 8): 1}
    cache.unlock(second)
    assert counts(cache, SWA) == {(0, 4): 1, (4, 8): 0}
    assert cache.evict({SWA: 99}).evicted == {FULL: 4, SWA: 4}  # the leaf behind it
    assert held(cache, SWA) == [(0, 4)]


def test_1_a_receipt_counts_what_it_did_when_the_node_is_cut_later():
    cache = make(SWA)
    node = put(cache, 12, given_up=12).node
    lock = cache.lock(node)
    cache.match_prefix(range(3))  # of [0,3) a lock of today would count nothing
    assert counts(cache, SWA) == {(0, 3): 1, (3, 12): 1}
    cache.unlock(lock)
    assert counts(cache, SWA) == {(0, 3): 0, (3, 12): 0}


def test_2_other_components_never_veto_full():
    cache = make(SWA)
    put(cache, 10, given_up=10)
    sizes = cache.sizes()
    assert (sizes[FULL].evictable, sizes[SWA].evictable) == (10, 0)
    hit = cache.match_prefix(range(10))
    assert (hit.device_len, hit.hits, hit.stop) == (0, {FULL: 10, SWA: 0}, "WINDOW_BROKEN")


def test_3_a_locked_full_slot_never_changes():
    cache = make(SWA)
    node = put(cache, 8).node  # [0,4) [4,8), slots 0 .. 7 of both
    assert cache.evict({SWA: 4}).evicted == {FULL: 0, SWA: 4}  # used at once, so the one nearer to the root
    cache.lock(node)
    result = put(cache, 8)  # full 8 .. 15; swa 0 .. 3, which are free again, and 8 .. 11
    assert spans(cache, FULL) == {(0, 4): (0, 1, 2, 3), (4, 8): (4, 5, 6, 7)}
    assert spans(cache, SWA) == {(0, 4): (0, 1, 2, 3), (4, 8): (4, 5, 6, 7)}
    assert result.adopted == {FULL: [], SWA: [0, 1, 2, 3]}
    assert result.freed == {FULL: list(range(8, 16)), SWA: [8, 9, 10, 11]}


def test_4_the_ledger_closes_with_unfinished_requests():
    cache = make(SWA)
    put(cache, 12, given_up=8)
    assert (cache.sizes()[SWA].evictable, cache.sizes()[SWA].free) == (4, 124)
    assert spans(cache, SWA) == {(0, 8): None, (8, 12): (0, 1, 2, 3)}
    assert cache.match_prefix(range(12)).device_len == 12


def test_5_early_release_is_once():
    cache = make(SWA, MAMBA)
    lock = cache.lock(put(cache, 16, state=True).node)  # [0,12) [12,16)
    assert counts(cache, SWA) == {(0, 12): 0, (12, 16): 1}
    cache.release_early(lock, SWA)
    assert counts(cache, SWA) == counts(cache, MAMBA) == {(0, 12): 0, (12, 16): 0}
    assert counts(cache, FULL) == {(0, 12): 1, (12, 16): 1}
    before = cache.digest()
    for name in (SWA, MAMBA, FULL, "none"):
        with pytest.raises(OracleRefused):
            cache.release_early(lock, name)
    assert cache.digest() == before
    cache.unlock(lock)
    assert all(set(counts(cache, name).values()) == {0} for name in (FULL, SWA, MAMBA))
    with pytest.raises(OracleRefused):
        cache.release_early(lock, SWA)


def test_5_the_lower_rank_may_go_first():
    cache = make(SWA, MAMBA)
    lock = cache.lock(put(cache, 4, state=True).node)
    cache.release_early(lock, MAMBA)
    assert (counts(cache, SWA), counts(cache, MAMBA)) == ({(0, 4): 1}, {(0, 4): 0})
    cache.release_early(lock, SWA)
    assert (counts(cache, SWA), counts(cache, MAMBA)) == ({(0, 4): 0}, {(0, 4): 0})


def test_6_the_receipt_decides_a_release_and_not_today_s_value():
    cache = make(MAMBA)
    node = put(cache, 2, state=True).node
    put(cache, 3)
    assert cache.evict({MAMBA: 1}).evicted == {FULL: 0, MAMBA: 1}
    lock = cache.lock(node)
    put(cache, 2, state=True)
    assert (counts(cache, MAMBA), cache.sizes()[MAMBA].protected) == ({(0, 2): 1, (2, 3): 0}, 1)
    cache.unlock(lock)
    assert (counts(cache, MAMBA), cache.sizes()[MAMBA].evictable) == ({(0, 2): 0, (2, 3): 0}, 1)


def test_7_what_a_receipt_skipped_is_per_receipt():
    cache = make(SWA)
    node = put(cache, 4, given_up=4).node
    first = cache.lock(node)
    put(cache, 4)
    cache.lock(node)
    cache.release_early(first, SWA)
    assert counts(cache, SWA) == {(0, 4): 1}
    assert cache.evict({SWA: 4}).evicted == {FULL: 0, SWA: 0}
    cache.unlock(first)
    assert (counts(cache, SWA), counts(cache, FULL)) == ({(0, 4): 1}, {(0, 4): 1})


def test_8_a_split_copies_locks_of_tokens_and_leaves_that_of_the_state():
    cache = make(SWA, MAMBA)
    lock = cache.lock(put(cache, 4, state=True).node)
    put(cache, [0, 1, 9])
    tree = {v.prefix: v.locks for v in cache.tree()}
    assert tree[0, 1] == {FULL: 1, SWA: 1, MAMBA: 0}
    assert tree[0, 1, 2, 3] == {FULL: 1, SWA: 1, MAMBA: 1}
    cache.unlock(lock)
    cache.check()
    assert cache.sizes()[SWA].protected == 0


def test_10_each_order_is_of_who_holds_the_value():
    cache = make(MAMBA)
    put(cache, [1, 2, 3, 4], state=True)
    put(cache, [1, 2, 5, 6, 7], state=True)  # [0,2), and from it [2,4) and [2,5)
    assert (order(cache, MAMBA), order(cache, FULL)) == ([5, 4], [5, 2, 4])
    assert cache.match_prefix([1, 2, 3]).device_len == 0  # splits [2,4); no state, so no access
    assert (order(cache, MAMBA), order(cache, FULL)) == ([5, 4], [5, 2, 4, 3])
    assert cache.match_prefix([1, 2, 3, 4]).device_len == 4
    assert (order(cache, MAMBA), order(cache, FULL)) == ([4, 5], [4, 3, 2, 5])
    cache.evict({MAMBA: 1})
    assert (order(cache, MAMBA), order(cache, FULL)) == ([4], [4, 3, 2])


def test_11_a_match_refreshes_only_the_last_window():
    cache = make(SWA, window=10)
    for n in range(10, 101, 10):
        put(cache, n, prev=n - 10)
    put(cache, list(range(200, 209)))
    assert cache.match_prefix(range(100)).device_len == 100
    # An insert up to n used the SWA of those that end beyond n - 11; the match that of those beyond 89. B ends at 9.
    assert order(cache, SWA) == [100, 90, 9, 80, 70, 60, 50, 40, 30, 20, 10]
    assert cache.evict({SWA: 80}).evicted == {FULL: 0, SWA: 80}
    assert held(cache, SWA) == [(80, 90), (90, 100), (0, 9)]
    assert cache.evict({SWA: 9}).evicted == {FULL: 9, SWA: 9}
    assert cache.match_prefix(range(100)).device_len == 100


def test_13_a_split_keeps_the_state_on_the_child():
    cache = make(MAMBA)
    put(cache, 8, state=True)
    hit = cache.match_prefix(range(7))
    assert (hit.device_len, hit.stop, hit.branching_len) == (0, "NO_STATE", 7)
    assert cache.match_prefix(range(8)).device_len == 8
    put(cache, 4, state=True)
    hit = cache.match_prefix(range(7))
    assert (hit.device_len, hit.branching_len, hit.slots[MAMBA]) == (4, 7, [1])


def test_14_the_hit_is_the_deepest_state_that_was_retained():
    cache = make(MAMBA, states=2)
    for n in (4, 8, 12, 16):
        if not cache.free_slots[MAMBA]:
            cache.evict({MAMBA: 1})
        put(cache, n, state=True)
    assert held(cache, MAMBA) == [(8, 12), (12, 16)]
    assert cache.match_prefix([*range(9), 77]).device_len == 0
    assert cache.match_prefix([*range(13), 77]).device_len == 12


def test_14_a_fork_outlives_states_of_the_interior():
    cache = make(MAMBA, mamba={"max_states_per_path": 1})
    put(cache, 8, state=True)
    put(cache, [*range(8), 50])
    put(cache, 12, state=True)
    put(cache, 16, state=True)
    assert held(cache, MAMBA) == [(0, 8), (12, 16)]
    assert cache.match_prefix([*range(9), 77]).device_len == 8


@pytest.mark.parametrize(("interval", "want"), [(1, 8), (2, 8), (8, 8), (3, 0)])
def test_15_branch_points_get_a_state(interval, want):
    cache = make(MAMBA, page_size=4, mamba={"checkpoint_interval": interval})
    keys = [[*range(10), *[90 + i] * 6] for i in range(3)]
    put(cache, keys[0], state=True)
    hit = cache.match_prefix(keys[1])
    assert (hit.device_len, hit.full_len, hit.branching_len) == (0, 8, want)
    if want:
        put(cache, keys[1][:want], state=True)
    put(cache, keys[1], state=True)
    hit = cache.match_prefix(keys[2])
    assert (hit.device_len, hit.branching_len) == (want, 0)
