"""Faults that real systems had, as properties of ours; each test names its row of the list and its sequence."""

from functools import cache as once

import numpy as np
import pytest

import urc
import urc.testing
from tests.pair import ints, state_bits

FULL = "full"
POOL = 64


@once
def _made(page_size, policy, number):
    config = urc.CacheConfig(
        components=(urc.Full(),), page_size=page_size, pools={FULL: POOL}, policy=policy, max_key_len=64
    )
    return urc.UnifiedRadixCache(config)


def new_cache(page_size=1, policy="lru", number=0):
    """An empty cache; those of another `number` are others."""
    cache = _made(page_size, policy, number)
    cache.reset()
    return cache


def put(cache, tokens, **options):
    """Inserts with a fresh slot for each token; returns these and the result."""
    slots = cache.alloc(FULL, len(tokens))
    return ints(slots), cache.insert(tokens, {FULL: slots}, **options)


def finish(cache, tokens):
    """What a request does: match, allocate the rest, insert."""
    hit = cache.match_prefix(tokens)
    rest = cache.alloc(FULL, len(tokens) - hit.device_len)
    slots = np.concatenate([hit.slots[FULL], rest])
    return cache.insert(tokens, {FULL: slots}, prev_prefix_len=hit.device_len)


def prefixes(cache):
    return {tuple(v.prefix) for v in cache.tree() if v.prefix}


def order(cache):
    """Prefixes of the nodes, the most recent first."""
    name = {v.node: tuple(v.prefix) for v in cache.tree()}
    return [name[node] for node in cache.access_order(FULL)]


def ledger(cache, held):
    sizes = cache.sizes()[FULL]
    return sizes.free + sizes.evictable + sizes.protected + held


def test_3_a_full_slot_of_the_tree_never_changes():
    """Ins 0..7; lock; re-insert with new slots: the old slots stay, the new ones are freed, once."""
    cache = new_cache()
    tokens = list(range(8))
    old, result = put(cache, tokens)
    for locked in (False, True):
        receipt = cache.lock(result.node) if locked else None
        new, again = put(cache, tokens)
        assert set(new).isdisjoint(old)
        assert (again.prefix_len, ints(again.adopted[FULL]), ints(again.freed[FULL])) == (8, [], new)
        longer, more = put(cache, [*tokens, 8 + locked])
        assert ints(more.freed[FULL]) == longer[:8]
        assert ints(cache.match_prefix(tokens).slots[FULL]) == old
        cache.check()
        if receipt:
            cache.unlock(receipt)
    assert cache.sizes()[FULL].free == POOL - 8 - 2


def test_4_the_ledger_closes_with_unfinished_requests():
    """A request of 12 tokens inserts 8, then all 12, while it is still running."""
    cache = new_cache(page_size=4)
    tokens = list(range(14))
    slots = cache.alloc(FULL, 14)
    assert ledger(cache, 14) == POOL
    first = cache.insert(tokens[:8], {FULL: slots[:8]})
    receipt = cache.lock(first.node)
    assert ledger(cache, 6) == POOL
    assert cache.sizes()[FULL].protected == 8
    second = cache.insert(tokens[:12], {FULL: slots[:12]}, prev_prefix_len=8, inserted_len=8)
    moved = cache.lock(second.node)
    cache.unlock(receipt)
    assert ints(second.adopted[FULL]) == ints(slots[8:12])
    assert (cache.sizes()[FULL].protected, ledger(cache, 2)) == (12, POOL)
    assert cache.evict({FULL: POOL}).evicted == {FULL: 0}
    assert ints(cache.match_prefix(tokens).slots[FULL]) == ints(slots[:12])
    # The last two tokens fill no page: their slots are given back with the insert that finishes the request.
    done = cache.insert(tokens, {FULL: slots}, prev_prefix_len=12, inserted_len=12)
    cache.unlock(moved)
    assert ints(done.freed[FULL]) == ints(slots[12:])
    assert (cache.sizes()[FULL].free, cache.sizes()[FULL].evictable) == (POOL - 12, 12)
    assert [v.hit_count for v in cache.tree() if v.prefix] == [1, 1]
    cache.check()


def test_10_the_access_order_is_kept_over_splits_and_evictions():
    """Two branches; a match splits one; evict; match: the list and its order, after each step."""
    cache = new_cache()
    put(cache, [0, 1, 2, 3])
    assert order(cache) == [(0, 1, 2, 3)]
    put(cache, [0, 1, 4, 5])  # 01 is walked and 0145 made; the rear part 0123 keeps its time
    assert order(cache) == [(0, 1, 4, 5), (0, 1), (0, 1, 2, 3)]
    cache.match_prefix([0, 1, 2, 3])
    assert order(cache) == [(0, 1, 2, 3), (0, 1), (0, 1, 4, 5)]
    cache.match_prefix([0, 1, 4, 9])  # splits 45: a split is no access of the rear part
    assert order(cache) == [(0, 1, 4), (0, 1), (0, 1, 2, 3), (0, 1, 4, 5)]
    cache.probe([0, 1, 2, 3])
    cache.match_prefix([9])
    assert order(cache) == [(0, 1, 4), (0, 1), (0, 1, 2, 3), (0, 1, 4, 5)]
    assert cache.evict({FULL: 1}).evicted == {FULL: 1}
    assert order(cache) == [(0, 1, 4), (0, 1), (0, 1, 2, 3)]
    cache.match_prefix([0, 1, 2, 3])
    assert order(cache) == [(0, 1, 2, 3), (0, 1), (0, 1, 4)]
    assert cache.evict({FULL: 1}).evicted == {FULL: 1}
    assert order(cache) == [(0, 1, 2, 3), (0, 1)]


def test_12_keys_are_cut_to_whole_pages_before_the_look_up():
    """P=4; ins 0..3; match [0,1,2]: nothing, and no node more."""
    cache = new_cache(page_size=4)
    put(cache, [0, 1, 2, 3])
    for tokens in ([0, 1, 2], [0, 1, 2, 9], [0], []):
        assert cache.match_prefix(tokens).device_len == 0
        assert cache.probe(tokens).device_len == 0
    assert prefixes(cache) == {(0, 1, 2, 3)}
    assert cache.match_prefix([0, 1, 2, 3, 4]).device_len == 4
    assert prefixes(cache) == {(0, 1, 2, 3)}


def test_17_each_request_counts_once():
    """Ins A; three more requests finish A; ins B; evict by LFU: B goes. Four inserts of one request count 1."""
    cache = new_cache(policy="lfu")
    a, b, c = list(range(4)), list(range(10, 14)), list(range(20, 28))
    put(cache, a)
    for _ in range(3):
        finish(cache, a)
    put(cache, b)
    hits = {tuple(v.prefix): v.hit_count for v in cache.tree() if v.prefix}
    assert hits == {tuple(a): 4, tuple(b): 1}
    cache.evict({FULL: 1})
    assert prefixes(cache) == {tuple(a)}
    slots = cache.alloc(FULL, 8)
    for end in (2, 4, 6, 8):
        done = end - 2
        cache.insert(c[:end], {FULL: slots[:end]}, prev_prefix_len=done, inserted_len=done)
    hits = {tuple(v.prefix): v.hit_count for v in cache.tree() if v.prefix}
    assert hits == {tuple(a): 4} | {tuple(c[:end]): 1 for end in (2, 4, 6, 8)}
    for _ in range(5):
        cache.match_prefix(c)
    assert max(v.hit_count for v in cache.tree() if tuple(v.prefix)[:1] == (20,)) == 1


def test_18_namespaces_are_injective():
    """("ab", "c") and ("a", "bc"), same tokens: no hit; and no two kinds of name are mixed up either."""
    cache = new_cache()
    spaces = [("ab", "c"), ("a", "bc"), "abc", ("abc",), ("abc", ""), b"abc", (b"abc",), None, "", 0, "0", b"", ()]
    spaces += [-1, 1, 2**40, ("a", 1), ("a", "1"), ("a", None), ("a",)]
    for i, space in enumerate(spaces):
        assert cache.match_prefix([5, 6], namespace=space).device_len == 0, space
        put(cache, [5, 6], namespace=space)
        assert len(prefixes_with_spaces(cache)) == i + 1
    for space in spaces:
        assert cache.match_prefix([5, 6], namespace=space).device_len == 2
    assert prefixes_with_spaces(cache) == {(repr(space), (5, 6)) for space in spaces}


def prefixes_with_spaces(cache):
    return {(repr(v.namespace), tuple(v.prefix)) for v in cache.tree() if v.prefix}


def test_19_a_chain_evicts_to_the_end():
    """Chain of 2; evict 2: 2."""
    cache = new_cache()
    put(cache, [0])
    put(cache, [0, 1])
    assert len(prefixes(cache)) == 2
    result = cache.evict({FULL: 2})
    assert result.evicted == {FULL: 2}
    assert len(set(ints(result.freed[FULL]))) == 2
    assert prefixes(cache) == set()
    assert cache.sizes()[FULL].free == POOL
    for n in range(1, 9):
        put(cache, list(range(n)))
    assert cache.evict({FULL: 8}).evicted == {FULL: 8}
    assert cache.sizes()[FULL].free == POOL


def test_21_two_replicas_agree():
    """The same operations give the same state, bit for bit."""
    replicas = [new_cache(number=2), new_cache(number=3)]  # both used nowhere else: a reset counts
    for cache in replicas:
        rng = np.random.default_rng(7)
        for _ in range(40):
            tokens = rng.integers(0, 3, size=rng.integers(1, 8))
            if cache.sizes()[FULL].free < 8:
                cache.evict({FULL: 8})
            finish(cache, tokens)
    assert replicas[0] is not replicas[1]
    assert state_bits(replicas[0]) == state_bits(replicas[1])
    assert replicas[0].tree() == replicas[1].tree()
    assert len(prefixes(replicas[0])) > 5


def test_22_prompts_without_reuse_make_one_node_each():
    """Prompts that share nothing: a match changes no bit, an insert makes one node, an eviction takes one."""
    cache = new_cache()
    prompts = np.random.default_rng(0).permutation(160).reshape(20, 8)
    for i, tokens in enumerate(prompts):
        before = state_bits(cache)
        hit = cache.match_prefix(tokens)
        assert (hit.device_len, hit.stop) == (0, urc.Stop.NO_CHILD)
        assert state_bits(cache) == before
        slots = cache.alloc(FULL, 8)
        if slots is None:
            gone = tuple(prompts[i - POOL // 8])
            assert gone in prefixes(cache)
            assert cache.evict({FULL: 8}).evicted == {FULL: 8}
            assert gone not in prefixes(cache)
            slots = cache.alloc(FULL, 8)
        result = cache.insert(tokens, {FULL: slots})
        assert ints(result.freed[FULL]) == []
        assert prefixes(cache) == {tuple(p) for p in prompts[max(0, i + 1 - POOL // 8) : i + 1]}


LIMITS = (2**15, 2**16, 2**24, 2**30, 2**31, 2**32, 2**33, 2**61)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda n: f"2**{n.bit_length() - 1}")
@pytest.mark.parametrize("policy", ["lru", "filo"])
def test_23_the_clock_passes_every_limit(policy, limit):
    """Start just below a limit and go on: the order and the victims are those of any other time."""
    cache = new_cache(policy=policy)
    urc.testing.set_clock(cache, limit - 4)
    for i in range(8):  # 8 ticks: the limit lies between the fourth and the fifth
        put(cache, [i, 100 + i])
    assert order(cache) == [(i, 100 + i) for i in reversed(range(8))]
    cache.match_prefix([0, 100])
    assert order(cache) == [(0, 100)] + [(i, 100 + i) for i in reversed(range(1, 8))]
    gone = []
    for _ in range(8):
        before = prefixes(cache)
        assert cache.evict({FULL: 1}).evicted == {FULL: 2}
        gone += [prefix[0] for prefix in before - prefixes(cache)]
    assert gone == ([1, 2, 3, 4, 5, 6, 7, 0] if policy == "lru" else [7, 6, 5, 4, 3, 2, 1, 0])
    cache.check()


def test_23_the_clock_goes_on_to_its_very_end():
    cache = new_cache()
    urc.testing.set_clock(cache, 2**62 - 100)
    for i in range(8):
        put(cache, [i])
    assert order(cache) == [(i,) for i in reversed(range(8))]


def test_23_a_node_counts_its_requests_beyond_32_bits():
    """A has 2**31 - 2 requests and gets four more; B has one; evict by LFU: B goes."""
    cache = new_cache(policy="lfu")
    put(cache, [0, 1])
    state, row = cache.state, 1
    assert state.nodes.get(row)["hits"] == 1
    cache.state = state.replace(nodes=state.nodes.set(row, hits=2**31 - 2))
    for _ in range(4):
        before = cache.tree()[-1].hit_count
        finish(cache, [0, 1])
        assert cache.tree()[-1].hit_count >= before
    put(cache, [5, 6])
    cache.evict({FULL: 1})
    assert prefixes(cache) == {(0, 1)}


def test_23_a_row_can_hold_nodes_for_ever():
    """The same row holds one node after the other, past 2**31 of them: each can be locked, and the dead cannot."""
    cache = new_cache(number=4)  # used nowhere else: what follows would go on from its end
    cache.state = urc.init(cache.config, generation=2**31 - 3)
    dead = []
    for _ in range(6):
        _, leaf = put(cache, [0, 1])
        assert leaf.node > 0
        assert leaf.node not in dead
        for node in dead:
            with pytest.raises(urc.InvalidInput):
                cache.lock(node)
        cache.unlock(cache.lock(leaf.node))
        assert cache.match_prefix([0, 1]).node == leaf.node
        cache.check()
        assert cache.evict({FULL: 2}).evicted == {FULL: 2}
        dead.append(leaf.node)
    cache.reset()
    cache.unlock(cache.lock(put(cache, [0, 1])[1].node))


@pytest.mark.parametrize("by", ["match", "insert"])
def test_a_split_moves_the_rear_part_to_its_place_among_the_victims(by):
    """T-LRU, threshold 5: a leaf at position 7 of a request of 10 is safe to evict, one at 0 of 6 or of 10 is not.

    There are more nodes than one block of the victim order takes, so that the two parts are in different blocks.
    """
    policy = urc.policies.Tlru(threshold=5, next_prompt=0)
    config = urc.CacheConfig(components=(urc.Full(),), pools={FULL: 1000}, policy=policy, max_key_len=64)
    cache = urc.UnifiedRadixCache(config)
    for i in range(100):
        put(cache, [100 + i] * 6)
    put(cache, list(range(10)))
    for i in range(40):
        put(cache, [200 + i] * 6)
    if by == "match":
        cache.match_prefix(list(range(7)))
    else:
        put(cache, list(range(7)))
    cache.check()
    assert cache.evict({FULL: 1}).evicted == {FULL: 3}
    assert tuple(range(7)) in prefixes(cache)


def test_a_receipt_is_good_once():
    cache = new_cache()
    _, short = put(cache, [0, 1])
    _, long = put(cache, [0, 1, 2, 3])
    first, second = cache.lock(long.node), cache.lock(long.node)
    other = cache.lock(short.node)
    cache.unlock(first)
    before = state_bits(cache)
    for _ in range(2):
        with pytest.raises(urc.InvalidInput):
            cache.unlock(first)
    assert state_bits(cache) == before
    assert {tuple(v.prefix): v.locks[FULL] for v in cache.tree() if v.prefix} == {(0, 1): 2, (0, 1, 2, 3): 1}
    cache.unlock(second)
    with pytest.raises(urc.InvalidInput):
        cache.unlock(second)
    assert cache.sizes()[FULL].protected == 2
    cache.unlock(other)
    assert cache.sizes()[FULL].protected == 0


def test_a_receipt_of_another_cache_is_refused():
    cache, other = new_cache(number=0), new_cache(number=1)
    _, here = put(cache, [0, 1])
    _, there = put(other, [0, 1])
    mine, foreign = cache.lock(here.node), other.lock(there.node)
    with pytest.raises(urc.InvalidInput):
        cache.unlock(foreign)
    with pytest.raises(urc.InvalidInput):
        other.unlock(mine)
    assert cache.sizes()[FULL].protected == other.sizes()[FULL].protected == 2
    cache.unlock(mine)
    other.unlock(foreign)
    assert cache.sizes()[FULL].protected == other.sizes()[FULL].protected == 0


def test_a_receipt_from_before_a_reset_is_refused():
    cache = new_cache()
    old = cache.lock(put(cache, [0, 1])[1].node)
    cache.reset()
    new = cache.lock(put(cache, [0, 1])[1].node)
    with pytest.raises(urc.InvalidInput):
        cache.unlock(old)
    assert cache.sizes()[FULL].protected == 2
    cache.unlock(new)


def test_a_receipt_releases_what_its_lock_took_after_a_split():
    """Ins 0..7; lock; a match splits at 3; unlock: every lock is 0, with another holder of the front part 1."""
    cache = new_cache()
    _, leaf = put(cache, list(range(8)))
    receipt = cache.lock(leaf.node)
    front = cache.match_prefix([0, 1, 2])
    assert [v.locks[FULL] for v in cache.tree() if v.prefix] == [1, 1]
    holder = cache.lock(front.node)
    cache.unlock(receipt)
    assert [v.locks[FULL] for v in cache.tree() if v.prefix] == [1, 0]
    assert cache.evict({FULL: 8}).evicted == {FULL: 5}
    cache.unlock(holder)
    assert cache.evict({FULL: 8}).evicted == {FULL: 3}


def test_a_dead_node_cannot_be_locked():
    cache = new_cache()
    _, leaf = put(cache, [0, 1])
    cache.evict({FULL: 2})
    with pytest.raises(urc.InvalidInput):
        cache.lock(leaf.node)
    put(cache, [2, 3])  # takes the place of the dead one
    with pytest.raises(urc.InvalidInput):
        cache.lock(leaf.node)
    assert cache.sizes()[FULL].protected == 0
    cache.unlock(cache.lock(0))
