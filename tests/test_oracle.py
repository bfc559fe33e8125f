"""The oracle against cases worked out by hand from the semantics."""

import pytest

from tests.oracle import OracleCache, OracleFull, OracleRefused

FULL = "full"


def put(cache, tokens, **options):
    """Inserts with a fresh slot for each token; returns the result."""
    return cache.insert(tokens, {FULL: cache.alloc(FULL, len(tokens))}, **options)


def shape(cache):
    return {v.prefix: v.key for v in cache.tree()}


def test_an_empty_cache_has_nothing():
    cache = OracleCache(pools={FULL: 4})
    hit = cache.match_prefix([1, 2])
    assert (hit.device_len, hit.node, hit.slots, hit.stop) == (0, 0, {FULL: []}, "NO_CHILD")
    assert cache.match_prefix([]).stop == "KEY_EXHAUSTED"
    assert cache.clock == 0


def test_a_match_returns_the_slots_in_order_and_splits():
    cache = OracleCache(pools={FULL: 9})
    cache.alloc(FULL, 4, slots=[7, 5, 8, 6])
    leaf = cache.insert([1, 2, 3, 4], {FULL: [7, 5, 8, 6]})
    assert (leaf.prefix_len, leaf.adopted, leaf.freed) == (0, {FULL: [7, 5, 8, 6]}, {FULL: []})
    hit = cache.match_prefix([1, 2, 9])
    assert (hit.device_len, hit.slots[FULL], hit.stop) == (2, [7, 5], "DIVERGED")
    assert shape(cache) == {(1, 2): (1, 2), (1, 2, 3, 4): (3, 4)}
    front, rear = cache.tree()
    assert (front.node, rear.node) == (hit.node, leaf.node)
    assert (rear.parent, front.parent) == (front.node, 0)
    assert (front.is_leaf, rear.is_leaf) == (False, True)
    assert (front.values, rear.values) == ({FULL: (7, 5)}, {FULL: (8, 6)})
    assert cache.match_prefix([1, 2]).stop == "KEY_EXHAUSTED"
    assert cache.match_prefix([1, 2, 3, 4, 5]).stop == "NO_CHILD"


def test_a_probe_changes_nothing_and_names_the_node_that_holds_the_end():
    cache = OracleCache(pools={FULL: 9})
    leaf = put(cache, [1, 2, 3, 4])
    before = cache.digest()
    hit = cache.probe([1, 2])
    assert (hit.device_len, hit.node, hit.stop) == (2, leaf.node, "KEY_EXHAUSTED")
    assert cache.probe([1, 2, 9]).stop == "DIVERGED"
    assert cache.digest() == before


def test_keys_are_cut_to_whole_pages_before_any_look_up():
    cache = OracleCache(page_size=4, pools={FULL: 16})
    result = put(cache, [1, 2, 3, 4, 5, 6, 7])
    assert result.adopted[FULL] == [0, 1, 2, 3]
    assert result.freed[FULL] == [4, 5, 6]
    assert cache.sizes()[FULL].free == 12
    hit = cache.match_prefix([1, 2, 3])
    assert (hit.device_len, hit.stop, len(cache.tree())) == (0, "KEY_EXHAUSTED", 1)
    assert cache.match_prefix([1, 2, 3, 9]).stop == "NO_CHILD"
    put(cache, [1, 2, 3, 9])
    assert shape(cache) == {(1, 2, 3, 4): (1, 2, 3, 4), (1, 2, 3, 9): (1, 2, 3, 9)}


def test_an_insert_frees_duplicates_from_where_the_caller_stopped_sharing():
    cache = OracleCache(pools={FULL: 12})
    put(cache, [1, 2, 3, 4])  # slots 0..3
    fresh = cache.alloc(FULL, 5)  # 4..8
    result = cache.insert([1, 2, 3, 9, 9, 9], {FULL: [0, *fresh]}, prev_prefix_len=1)
    assert result.prefix_len == 3
    assert result.freed[FULL] == [4, 5]
    assert result.adopted[FULL] == [6, 7, 8]
    assert cache.probe([1, 2, 3, 4]).slots[FULL] == [0, 1, 2, 3]
    assert cache.sizes()[FULL].free == 12 - 4 - 3
    # The entries below prev_prefix_len are not looked at, and the tail's slots may be left out.
    paged = OracleCache(page_size=2, pools={FULL: 8})
    put(paged, [1, 1])
    slots = [-5, 99, *paged.alloc(FULL, 2)]
    assert paged.insert([1, 1, 2, 2, 3], {FULL: slots}, prev_prefix_len=2).adopted[FULL] == slots[2:]


def test_hits_count_requests_and_priority_is_the_maximum():
    cache = OracleCache(pools={FULL: 32})
    put(cache, [1, 2, 3, 4], priority=5)
    cache.match_prefix([1, 2, 3, 4])
    assert [v.hit_count for v in cache.tree()] == [1]
    put(cache, [1, 2, 7], priority=6)  # front 2, rear 1, new 1
    assert {v.prefix: (v.hit_count, v.priority) for v in cache.tree()} == {
        (1, 2): (2, 6),
        (1, 2, 3, 4): (1, 5),
        (1, 2, 7): (1, 6),
    }
    # The same request goes on from 2 tokens: the node that ends there does not count again.
    put(cache, [1, 2, 7, 8], inserted_len=2, priority=0)
    assert {v.prefix: (v.hit_count, v.priority) for v in cache.tree()} == {
        (1, 2): (2, 6),
        (1, 2, 3, 4): (1, 5),
        (1, 2, 7): (2, 6),
        (1, 2, 7, 8): (1, 0),
    }
    put(cache, [9], inserted_len=1)
    assert [v.hit_count for v in cache.tree() if v.prefix == (9,)] == [0]


def test_the_order_of_access():
    cache = OracleCache(pools={FULL: 16})
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 4])
    name = {v.node: v.prefix for v in cache.tree()}
    order = lambda: [name[n] for n in cache.access_order(FULL)]
    assert order() == [(1, 2, 4), (1, 2), (1, 2, 3)]
    cache.match_prefix([1, 2, 3])
    assert order() == [(1, 2, 3), (1, 2), (1, 2, 4)]
    cache.match_prefix([7])
    assert order() == [(1, 2, 3), (1, 2), (1, 2, 4)]
    hit = cache.match_prefix([1])  # the new front takes the tick of now, the rear keeps its own
    name[hit.node] = (1,)
    assert order() == [(1,), (1, 2, 3), (1, 2), (1, 2, 4)]


HISTORY = [  # hits, priority, start and longest insert differ between the three leaves
    ([1, 2, 3, 4], 3),
    ([5, 6], 1),
    ([5, 6], 1),
    ([1, 2, 7], 2),
]
# After it: a = 1234 (hit 1, priority 3, made and used at 1), b = 56 (hit 2, priority 1, made 2, used 3),
# c = 127 (hit 1, priority 2, made and used at 4), and their start: a 2, b 0, c 2; longest: a 4, b 2, c 3.
A, B, C = (1, 2, 3, 4), (5, 6), (1, 2, 7)


@pytest.mark.parametrize(
    ("policy", "args", "want"),
    [
        ("lru", {}, [A, B, C]),
        ("mru", {}, [C, B, A]),  # by last access: c 4, b 3, a 1
        ("fifo", {}, [A, B, C]),
        ("filo", {}, [C, B, A]),
        ("lfu", {}, [A, C, B]),  # one hit each: a is older than c
        ("priority", {}, [B, C, A]),
        ("slru", {}, [A, C, B]),
        ("slru", {"protected_hits": 1}, [A, B, C]),  # all protected
        ("tlru", {"threshold": 1, "next_prompt": 0}, [C, A, B]),  # safe from: a 3, b 1, c 2; so only c is
        ("tlru", {"threshold": 2, "next_prompt": 0}, [A, B, C]),  # safe from: a 2, b 0, c 1; all are
    ],
)
def test_policies(policy, args, want):
    cache = OracleCache(pools={FULL: 32}, policy=policy, policy_args=args)
    for tokens, priority in HISTORY:
        put(cache, tokens, priority=priority)
    gone = []
    for _ in want:
        before = {v.prefix for v in cache.tree() if v.is_leaf}
        cache.evict({FULL: 1})
        gone += [before - {v.prefix for v in cache.tree()}]
        # The parent of a and c would now be a leaf: keep it out of the way.
        for v in cache.tree():
            if v.is_leaf and v.prefix == (1, 2):
                cache.lock(v.node)
    assert gone == [{prefix} for prefix in want]


def test_a_parent_that_becomes_a_leaf_goes_at_once():
    cache = OracleCache(pools={FULL: 8})
    put(cache, [1])
    put(cache, [1, 2])
    result = cache.evict({FULL: 2})
    assert result.evicted == {FULL: 2}
    assert cache.tree() == []
    assert cache.sizes()[FULL].free == 8


def test_eviction_takes_whole_leaves_and_reports_what_it_could_do():
    cache = OracleCache(pools={FULL: 8})
    put(cache, [1, 2, 3])
    assert cache.evict({FULL: 0}).evicted == {FULL: 0}
    assert cache.evict({FULL: 1}).evicted == {FULL: 3}
    assert cache.evict({FULL: 1}).evicted == {FULL: 0}
    assert cache.evict({}).evicted == {FULL: 0}


def test_a_lock_holds_the_whole_path_also_across_a_split():
    cache = OracleCache(pools={FULL: 16})
    put(cache, [1, 2, 3, 4])
    leaf = put(cache, [1, 2, 3, 4, 5, 6])
    receipt = cache.lock(leaf.node)
    put(cache, [1, 9])  # splits 1234
    locks = {v.prefix: v.locks[FULL] for v in cache.tree()}
    assert locks == {(1,): 1, (1, 2, 3, 4): 1, (1, 2, 3, 4, 5, 6): 1, (1, 9): 0}
    assert (cache.sizes()[FULL].evictable, cache.sizes()[FULL].protected) == (1, 6)
    assert cache.evict({FULL: 16}).evicted == {FULL: 1}
    cache.unlock(receipt)
    assert cache.sizes()[FULL].protected == 0
    with pytest.raises(OracleRefused):
        cache.unlock(receipt)
    cache.check()


def test_a_full_node_table_cuts_a_match_and_refuses_an_insert():
    cache = OracleCache(pools={FULL: 16}, max_nodes=3)  # two beside the root
    put(cache, [1, 2, 3])
    leaf = put(cache, [1, 2, 3, 4, 5])
    before = cache.digest()
    hit = cache.match_prefix([1, 2])
    assert (hit.device_len, hit.node, hit.stop) == (0, 0, "NO_FREE_NODE")
    assert cache.digest() == before
    hit = cache.match_prefix([1, 2, 3, 4, 9])
    assert (hit.device_len, hit.slots[FULL], hit.stop) == (3, [0, 1, 2], "NO_FREE_NODE")
    assert cache.probe([1, 2, 3, 4, 9]).device_len == 4
    slots = cache.alloc(FULL, 1)
    before = cache.digest()
    with pytest.raises(OracleFull):
        cache.insert([9], {FULL: slots})
    assert cache.digest() == before
    cache.free(FULL, slots)
    put(cache, [1, 2, 3, 4, 5])  # all of it is there: no node is needed
    cache.evict({FULL: 1})
    with pytest.raises(OracleRefused):
        cache.lock(leaf.node)
    put(cache, [9])  # now one is free
    with pytest.raises(OracleFull):
        put(cache, [1, 2, 7])


def test_an_insert_that_needs_two_nodes_wants_two():
    cache = OracleCache(pools={FULL: 16}, max_nodes=3)
    put(cache, [1, 2, 3])
    slots = cache.alloc(FULL, 3)
    with pytest.raises(OracleFull):
        cache.insert([1, 2, 9], {FULL: slots})
    assert shape(cache) == {(1, 2, 3): (1, 2, 3)}
    cache.insert([1, 2], {FULL: slots[:2]})  # a split alone fits
    assert set(shape(cache)) == {(1, 2), (1, 2, 3)}


def test_a_caller_may_own_the_pool_and_holes_do_not_fill_the_arena():
    cache = OracleCache(page_size=2, arena_tokens=6)
    cache.insert([1, 1, 2, 2], {FULL: [40, 41, 42, 43]})
    with pytest.raises(OracleFull):
        cache.insert([3, 3, 3, 3], {FULL: [50, 51, 52, 53]})
    assert cache.insert([1, 1, 3, 3], {FULL: [60, 61, 62, 63]}).freed == {FULL: [60, 61]}
    assert cache.evict({FULL: 1}).freed == {FULL: [42, 43]}
    cache.insert([4, 4], {FULL: [42, 43]})
    assert (cache.sizes()[FULL].free, cache.sizes()[FULL].evictable) == (None, 6)
    with pytest.raises(OracleRefused):
        cache.insert([5, 5], {FULL: [42, 44]})  # 42 is in the tree
    with pytest.raises(OracleRefused):
        cache.alloc(FULL, 1)
    cache.check()


def test_namespaces_do_not_meet():
    cache = OracleCache(pools={FULL: 32})
    spaces = [None, "", 0, "0", b"0", ("0",), ("ab", "c"), ("a", "bc"), (), False]
    for space in spaces:
        assert cache.probe([1], space).device_len == 0
        put(cache, [1], namespace=space)
        put(cache, [1], namespace=space)
    assert len(cache.tree()) == len(spaces)
    assert [cache.probe([1, 2], space).device_len for space in spaces] == [1] * len(spaces)


REFUSED = {
    "a negative token": lambda c, mine: c.match_prefix([-1]),
    "a token beyond int32": lambda c, mine: c.insert([2**31], {FULL: mine[:1]}),
    "a negative prefix": lambda c, mine: c.insert([1], {FULL: mine[:1]}, prev_prefix_len=-1),
    "a prefix that is not there": lambda c, mine: c.insert([1, 2, 9], {FULL: mine[:3]}, prev_prefix_len=3),
    "a prefix beyond the key": lambda c, mine: c.insert([1], {FULL: mine[:1]}, prev_prefix_len=2),
    "a free slot": lambda c, mine: c.insert([7], {FULL: [15]}),
    "a slot of the tree": lambda c, mine: c.insert([7], {FULL: [0]}),
    "the tree's own slot as a duplicate": lambda c, mine: c.insert([1, 2, 3], {FULL: [0, 1, 2]}),
    "a slot twice": lambda c, mine: c.insert([7, 8], {FULL: [mine[0]] * 2}),
    "a slot beyond the pool": lambda c, mine: c.insert([7], {FULL: [16]}),
    "a negative slot": lambda c, mine: c.insert([7], {FULL: [-1]}),
    "too few slots": lambda c, mine: c.insert([7, 8], {FULL: mine[:1]}),
    "too many slots": lambda c, mine: c.insert([7], {FULL: mine[:2]}),
    "no slots": lambda c, mine: c.insert([7], {}),
    "freeing a free slot": lambda c, mine: c.free(FULL, [15]),
    "freeing a slot of the tree": lambda c, mine: c.free(FULL, [mine[0], 2]),
    "freeing twice": lambda c, mine: c.free(FULL, [mine[0], mine[0]]),
    "freeing beyond the pool": lambda c, mine: c.free(FULL, [16]),
    "evicting less than nothing": lambda c, mine: c.evict({FULL: -1}),
    "locking no node": lambda c, mine: c.lock(99),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_change_nothing(what):
    cache = OracleCache(pools={FULL: 16})
    put(cache, [1, 2, 3])
    mine = cache.alloc(FULL, 4)
    before = cache.digest()
    with pytest.raises(OracleRefused):
        REFUSED[what](cache, mine)
    assert cache.digest() == before


def test_alloc_takes_all_or_nothing_and_checks_what_it_is_told():
    cache = OracleCache(pools={FULL: 4})
    assert cache.alloc(FULL, 3, slots=[3, 1, 0]) == [3, 1, 0]
    assert cache.alloc(FULL, 2) is None
    with pytest.raises(AssertionError):
        cache.alloc(FULL, 1, slots=[3])
    assert cache.alloc(FULL, 1) == [2]
    assert cache.alloc(FULL, 0) == []
    cache.free(FULL, [3, 1])
    assert cache.sizes()[FULL].free == 2


def test_a_snapshot_is_another_time():
    cache = OracleCache(pools={FULL: 8})
    leaf = put(cache, [1, 2, 3])
    then, digest = cache.snapshot(), cache.digest()
    receipt = cache.lock(leaf.node)
    cache.match_prefix([1])
    cache.restore(then)
    assert cache.digest() == digest
    with pytest.raises(OracleRefused):
        cache.unlock(receipt)
    cache.match_prefix([1])
    cache.restore(then)
    assert cache.digest() == digest


def test_reset_forgets():
    cache = OracleCache(pools={FULL: 8})
    empty = cache.digest()
    cache.lock(put(cache, [1, 2, 3]).node)
    cache.reset()
    assert cache.digest() == empty
