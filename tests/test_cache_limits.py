"""The handle at its limits: full tables, full arenas, pools of the caller's own, more nodes than a block holds."""

import pytest

import urc


def insert(cache, tokens, **options):
    return cache.insert(tokens, {"full": cache.alloc("full", len(tokens))}, **options)


def test_what_does_not_fit_is_refused_and_the_slots_stay_the_callers():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 16}, max_nodes=2))
    insert(cache, [1, 2, 3])
    slots = cache.alloc("full", 3)
    with pytest.raises(urc.CacheFull, match="max_nodes = 2"):
        cache.insert([1, 2, 9], {"full": slots})
    cache.check()
    assert cache.sizes()["full"] == urc.Sizes(free=10, evictable=3, protected=0)
    found = cache.match_prefix([1, 2, 9])  # no row for a split: the hit ends where a node does
    assert (found.device_len, found.stop) == (0, urc.Stop.NO_FREE_NODE)
    assert cache.probe([1, 2, 9]).device_len == 2
    cache.evict({"full": 1})
    cache.insert([1, 2, 9], {"full": slots})
    cache.check()


def test_where_the_caller_owns_the_slots_it_gets_them_back():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=2, pools=None, arena_tokens=8))
    cache.insert([1, 2, 3, 4], {"full": [100, 101, 500, 501]})
    done = cache.insert([1, 2, 3, 4, 5, 6, 7], {"full": [7, 8, 9, 10, 11, 12, 13]})
    assert done.freed["full"].tolist() == [7, 8, 9, 10, 13]
    assert done.adopted["full"].tolist() == [11, 12]
    cache.check()
    with pytest.raises(urc.CacheFull, match="arena_tokens = 8"):
        cache.insert([9, 9, 9, 9], {"full": [1, 2, 3, 4]})
    with pytest.raises(urc.InvalidInput, match="in the tree already"):
        cache.insert([9, 9], {"full": [100, 3]})
    with pytest.raises(urc.InvalidInput, match="caller's own"):
        cache.alloc("full", 1)
    with pytest.raises(urc.InvalidInput, match="caller's own"):
        cache.free("full", [1])
    assert cache.sizes()["full"] == urc.Sizes(free=None, evictable=6, protected=0)
    done = cache.evict({"full": 6})
    assert sorted(done.freed["full"].tolist()) == [11, 12, 100, 101, 500, 501]
    cache.check()
    cache.insert([9, 9, 9, 9, 8, 8, 8, 8], {"full": [100, 101, 500, 501, 1, 2, 3, 4]})
    cache.check()


def test_compaction_moves_tokens_and_slots_together():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 8}, arena_tokens=8))
    for tokens in ([1, 1, 1], [2, 2], [3, 3, 3]):
        insert(cache, tokens)
    kept = cache.probe([2, 2]).slots["full"].tolist()
    cache.match_prefix([2, 2])
    cache.evict({"full": 3})  # the ones: a hole of three in front
    cache.match_prefix([3, 3])  # cuts the threes in two
    cache.lock(cache.match_prefix([2, 2]).node)
    cache.lock(cache.match_prefix([3, 3]).node)
    cache.evict({"full": 8})  # the last three: a hole behind
    done = insert(cache, [4, 4, 4, 4])  # 2 + 2 + 4 tokens fill the arena only without the holes
    cache.check()
    assert done.prefix_len == 0
    assert cache.probe([2, 2]).slots["full"].tolist() == kept
    assert cache.probe([3, 3, 3]).device_len == 2
    assert cache.probe([4, 4, 4, 4]).slots["full"].tolist() == done.adopted["full"].tolist()


def test_parents_and_leaves_in_different_blocks_of_the_victim_order():
    # 150 parents fill more than one block of 128 rows before the first leaf is made under them.
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 400}))
    for i in range(150):
        insert(cache, [i])
    cache.check()
    for i in range(150):
        insert(cache, [i, 7])
    cache.check()
    # A re-insert frees the duplicate, so each of the 300 nodes holds one slot. The oldest leaf is under 0.
    assert cache.sizes()["full"] == urc.Sizes(free=100, evictable=300, protected=0)
    assert cache.evict({"full": 1}).evicted == {"full": 1}
    assert (cache.probe([0, 7]).device_len, cache.probe([1, 7]).device_len) == (1, 2)
    cache.check()
    # The parent of what went has become a leaf, as old as the leaf was, so it is next; then 1's leaf, then 1.
    for gone in ([0], [1, 7], [1], [2, 7]):
        assert cache.probe(gone).device_len == len(gone)
        cache.evict({"full": 1})
        assert cache.probe(gone).device_len == len(gone) - 1
    cache.check()
    cache.evict({"full": 250})
    cache.check()
    assert cache.evict({"full": 400}).evicted == {"full": 45}
    cache.check()
