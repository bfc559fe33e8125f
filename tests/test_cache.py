"""The host handle, case by case; expected values follow from the semantics by hand."""

import jax
import numpy as np
import pytest

import urc

CONFIG = urc.CacheConfig(page_size=4, pools={"full": 64}, max_key_len=200)
_cache = urc.UnifiedRadixCache(CONFIG)


@pytest.fixture
def cache():
    _cache.reset()
    yield _cache
    _cache.check()


def insert(cache, tokens, **options):
    return cache.insert(tokens, {"full": cache.alloc("full", len(tokens))}, **options)


A, B = list(range(12)), [0, 1, 2, 3, 4, 5, 6, 7, 90, 91, 92, 93]


def test_keys_are_cut_to_whole_pages_before_they_are_looked_up(cache):
    insert(cache, A)
    found = cache.match_prefix(A[:7])
    assert (found.device_len, found.stop) == (4, urc.Stop.KEY_EXHAUSTED)
    assert cache.match_prefix([0, 1, 2]).device_len == 0
    assert cache.match_prefix([]).device_len == 0


def test_why_a_match_stopped(cache):
    insert(cache, A)
    assert cache.match_prefix([*A, 7]).stop == urc.Stop.KEY_EXHAUSTED
    assert cache.match_prefix([*A, 7, 7, 7, 7]).stop == urc.Stop.NO_CHILD
    assert cache.match_prefix(B).stop == urc.Stop.DIVERGED
    assert cache.match_prefix(B).stop == urc.Stop.NO_CHILD  # the first one has split the node there
    assert cache.match_prefix([5, 5, 5, 5]).stop == urc.Stop.NO_CHILD


def test_slots_come_back_in_order(cache):
    slots = cache.alloc("full", 12)[::-1].copy()
    cache.insert(A, {"full": slots})
    assert cache.match_prefix(A).slots["full"].tolist() == slots.tolist()
    assert cache.match_prefix(B).slots["full"].tolist() == slots[:8].tolist()
    assert cache.match_prefix(A).slots["full"].tolist() == slots.tolist()
    assert cache.probe(A[:4]).slots["full"].tolist() == slots[:4].tolist()


def test_an_insert_takes_over_every_slot(cache):
    insert(cache, A)
    slots = cache.alloc("full", 14)
    done = cache.insert([*B, 94, 95], {"full": slots}, prev_prefix_len=0)
    assert done.prefix_len == 8
    assert done.adopted["full"].tolist() == slots[8:12].tolist()
    assert done.freed["full"].tolist() == [*slots[:8], *slots[12:]]
    assert cache.sizes()["full"] == urc.Sizes(free=48, evictable=16, protected=0)


def test_slots_of_the_whole_pages_are_enough(cache):
    done = cache.insert([*A, 1, 2], {"full": cache.alloc("full", 12)})
    assert len(done.adopted["full"]) == 12


def test_the_trees_own_slots_are_not_freed_again(cache):
    insert(cache, A)
    found = cache.match_prefix(B)
    fresh = cache.alloc("full", 4)
    done = cache.insert(B, {"full": np.concatenate([found.slots["full"], fresh])}, prev_prefix_len=found.device_len)
    assert done.freed["full"].tolist() == []
    assert done.adopted["full"].tolist() == fresh.tolist()


def test_whole_leaves_go_and_a_parent_that_becomes_a_leaf_joins(cache):
    insert(cache, A)
    insert(cache, B)
    done = cache.evict({"full": 1})
    assert done.evicted == {"full": 4}
    assert cache.match_prefix(A).device_len == 8
    assert cache.evict({"full": 1}).evicted == {"full": 4}  # B's, used after A's
    assert cache.evict({"full": 100}).evicted == {"full": 8}
    assert cache.sizes()["full"] == urc.Sizes(free=64, evictable=0, protected=0)
    assert cache.evict({"full": 1}).evicted == {"full": 0}


def test_nothing_locked_goes(cache):
    insert(cache, A)
    receipt = cache.lock(cache.match_prefix(B).node)
    insert(cache, B)
    assert cache.sizes()["full"] == urc.Sizes(free=48, evictable=8, protected=8)
    assert cache.evict({"full": 64}).evicted == {"full": 8}
    cache.unlock(receipt)
    assert cache.evict({"full": 64}).evicted == {"full": 8}


def test_a_receipt_releases_what_it_took_whatever_was_split(cache):
    first = cache.lock(insert(cache, A).node)
    cache.match_prefix(A[:4])
    cache.match_prefix(A[:8])
    second = cache.lock(cache.match_prefix(A[:4]).node)
    assert [node.locks["full"] for node in cache.tree()] == [2, 1, 1]
    cache.unlock(first)
    assert [node.locks["full"] for node in cache.tree()] == [1, 0, 0]
    cache.unlock(second)
    assert cache.sizes()["full"].protected == 0


def test_a_batch_is_the_loop(cache):
    insert(cache, A)
    keys = [B, A[:4], A, [7, 7, 7, 7], B]
    snapshot = cache.state
    together = cache.match_prefixes(keys, [None, None, None, None, "other"])
    after = cache.state
    cache.state = snapshot
    one_by_one = [cache.match_prefix(k, n) for k, n in zip(keys, [None, None, None, None, "other"], strict=True)]
    for a, b in zip(together, one_by_one, strict=True):
        assert (a.device_len, a.node, a.stop, a.slots["full"].tolist()) == (
            b.device_len,
            b.node,
            b.stop,
            b.slots["full"].tolist(),
        )
    assert [r.device_len for r in together] == [8, 4, 12, 0, 0]
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(cache.state), strict=True):
        np.testing.assert_array_equal(x, y)
    assert cache.match_prefixes([]) == []
    assert cache.probes([]) == []


def test_namespaces_are_apart(cache):
    names = [None, "", "a", b"a", 1, "1", ("ab", "c"), ("a", "bc"), ("abc",), (("a",), "b"), 0]
    for i, name in enumerate(names):
        tokens = [0, 1, 2, 3]
        assert cache.probe(tokens, name).device_len == 0
        insert(cache, tokens, namespace=name)
        assert cache.sizes()["full"].evictable == 4 * (i + 1)
    assert [node.namespace for node in cache.tree()] == names
    with pytest.raises(urc.InvalidInput, match="namespace"):
        cache.probe([1, 2, 3, 4], 1.5)
    with pytest.raises(urc.InvalidInput, match="namespace"):
        cache.match_prefix([1, 2, 3, 4], True)


def test_a_probe_of_an_unknown_namespace_remembers_nothing(cache):
    before = len(cache._namespaces._names)
    for i in range(5):
        cache.probe(A, f"nobody {i}")
    assert len(cache._namespaces._names) == before


def test_snapshots_are_not_changed_by_what_follows(cache):
    insert(cache, A)
    receipt = cache.lock(cache.match_prefix(A).node)
    snapshot = cache.state
    held = [np.array(leaf) for leaf in jax.tree.leaves(snapshot)]
    cache.unlock(receipt)
    insert(cache, B)
    late = cache.lock(cache.match_prefix(B).node)
    cache.evict({"full": 64})
    for leaf, before in zip(jax.tree.leaves(snapshot), held, strict=True):
        np.testing.assert_array_equal(leaf, before)
    cache.state = snapshot
    cache.check()
    assert cache.sizes()["full"] == urc.Sizes(free=52, evictable=0, protected=12)
    with pytest.raises(urc.InvalidInput, match="receipt"):
        cache.unlock(late)  # its lock is undone
    cache.unlock(receipt)  # its unlock is undone
    assert cache.sizes()["full"].protected == 0


def test_slots_held_at_a_snapshot_are_held_again_after_the_roll_back(cache):
    slots = cache.alloc("full", 4)
    snapshot = cache.state
    cache.free("full", slots)
    cache.state = snapshot
    cache.insert([1, 2, 3, 4], {"full": slots})


def test_a_state_of_another_configuration_is_refused(cache):
    with pytest.raises(urc.InvalidInput, match="same configuration"):
        cache.state = urc.init(urc.CacheConfig(page_size=2, pools={"full": 64}))
    with pytest.raises(urc.InvalidInput, match="CacheState"):
        cache.state = None


def test_handles_and_receipts_from_before_a_reset_are_void(cache):
    node = insert(cache, A).node
    receipt = cache.lock(node)
    cache.reset()
    insert(cache, A)
    with pytest.raises(urc.InvalidInput, match="left the tree"):
        cache.lock(node)
    with pytest.raises(urc.InvalidInput, match="receipt"):
        cache.unlock(receipt)


def test_the_root_can_be_locked_to_no_effect(cache):
    insert(cache, A)
    receipt = cache.lock(cache.match_prefix([9, 9, 9, 9]).node)
    assert cache.sizes()["full"].protected == 0
    cache.unlock(receipt)
    with pytest.raises(urc.InvalidInput, match="receipt"):
        cache.unlock(receipt)


def test_whole_pages_stay_aligned_under_churn(cache):
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        if held and rng.random() < 0.5:
            cache.free("full", held.pop(rng.integers(len(held))))
        else:
            slots = cache.alloc("full", 4 * int(rng.integers(1, 4)))
            if slots is not None:
                pages = slots.reshape(-1, 4)
                assert (pages[:, 0] % 4 == 0).all()
                assert (np.diff(pages, axis=1) == 1).all()
                held.append(slots)


def test_alloc_is_all_or_nothing(cache):
    assert cache.alloc("full", 65) is None
    first = cache.alloc("full", 60)
    assert cache.alloc("full", 5) is None
    assert cache.alloc("full", 0).tolist() == []
    assert cache.sizes()["full"].free == 4
    cache.free("full", first)


BAD = {
    "negative token": (lambda c: c.match_prefix([1, -2, 3, 4]), "tokens must be >= 0, got -2 at 1"),
    "fractional token": (lambda c: c.match_prefix([1.0, 2.0]), "tokens must be integers"),
    "boolean tokens": (lambda c: c.match_prefix(np.array([True])), "tokens must be integers"),
    "nested tokens": (lambda c: c.match_prefix([[1, 2], [3, 4]]), "flat sequence"),
    "token too large": (lambda c: c.probe([2**31, 0, 0, 0]), "32 bits"),
    "words": (lambda c: c.probe("abcd"), "tokens must be"),
    "key too long": (lambda c: c.match_prefix(range(201)), "max_key_len = 200"),
    "too few slots": (lambda c: c.insert(B, {"full": c.held[:3]}), "has 3 entries"),
    "no slots": (lambda c: c.insert(B, {}), "slots lacks 'full'"),
    "unknown component": (lambda c: c.insert(B, {"full": c.held, "swa": c.held}), "names of components"),
    "slots not by name": (lambda c: c.insert(B, c.held), "names of components"),
    "slot outside the pool": (
        lambda c: c.insert(B, {"full": [*c.held[:11].tolist(), 64]}),
        "slot 64 is not",
    ),
    "slot below the pool": (lambda c: c.insert(B, {"full": [*c.held[:11].tolist(), -1]}), "slot -1 is not"),
    "slot in the tree": (lambda c: c.insert(B, {"full": [*c.held[:11].tolist(), 0]}), "slot 0 .* in the tree"),
    "free slot": (lambda c: c.insert(B, {"full": [*c.held[:11].tolist(), 40]}), "slot 40 .* free"),
    "slot twice": (lambda c: c.insert(B, {"full": [*c.held[:11], c.held[0]]}), "given twice"),
    "prefix not in the tree": (
        lambda c: c.insert([7, 7, 7, 7], {"full": c.held[:4]}, prev_prefix_len=4),
        "holds only 0",
    ),
    "prefix longer than the key": (
        lambda c: c.insert(B, {"full": c.held}, prev_prefix_len=13),
        "prev_prefix_len is 13",
    ),
    "negative prefix": (lambda c: c.insert(B, {"full": c.held}, prev_prefix_len=-1), "prev_prefix_len must lie"),
    "fractional priority": (lambda c: c.insert(B, {"full": c.held}, priority=0.5), "priority must be an integer"),
    "negative inserted_len": (lambda c: c.insert(B, {"full": c.held}, inserted_len=-1), "inserted_len must lie"),
    "given-up Full": (lambda c: c.insert(B, {"full": c.held}, evicted_len={"full": 4}), "holds its 'full' slots"),
    "evict what is not there": (lambda c: c.evict({"mamba": 1}), "names of components"),
    "evict less than nothing": (lambda c: c.evict({"full": -1}), "must lie"),
    "evict a number": (lambda c: c.evict(5), "names of components"),
    "alloc of an unknown component": (lambda c: c.alloc("swa", 1), "unknown component 'swa'"),
    "alloc of a negative number": (lambda c: c.alloc("full", -1), "n must lie"),
    "free of a free slot": (lambda c: c.free("full", [50]), "slot 50 .* free"),
    "free of a slot in the tree": (lambda c: c.free("full", [3]), "slot 3 .* in the tree"),
    "free twice in one call": (lambda c: c.free("full", [c.held[0], c.held[0]]), "given twice"),
    "lock of a negative node": (lambda c: c.lock(-1), "a node is what"),
    "lock of no node": (lambda c: c.lock("x"), "a node is what"),
    "lock of a row without a node": (lambda c: c.lock(9), "left the tree"),
    "lock of a node out of range": (lambda c: c.lock(1000), "not a node"),
    "unlock of no receipt": (lambda c: c.unlock(3), "Receipt that lock returned"),
    "unlock of a forged receipt": (lambda c: c.unlock(urc.Receipt(1, 12, 10**9, 0)), "not live here"),
    "slots that are no integers": (lambda c: c.insert(A, {"full": [0.5] * len(A)}), "slots of 'full' must be integers"),
    "namespaces that do not fit": (lambda c: c.probes([A, B], ["x"]), "2 keys need as many namespaces"),
}


@pytest.fixture(scope="module")
def filled():
    cache = urc.UnifiedRadixCache(CONFIG)
    insert(cache, A)
    cache.held = cache.alloc("full", 12)
    return cache


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_and_changes_nothing(filled, what):
    call, says = BAD[what]
    before = [np.array(leaf) for leaf in jax.tree.leaves(filled._state)]
    with pytest.raises(urc.InvalidInput, match=says):
        call(filled)
    for leaf, kept in zip(jax.tree.leaves(filled._state), before, strict=True):
        np.testing.assert_array_equal(leaf, kept)
    filled.check()


def test_a_receipt_of_another_cache_is_refused(filled, cache):
    other = insert(cache, A).node
    receipt = cache.lock(other)
    mine = filled.lock(filled.match_prefix(A).node)
    with pytest.raises(urc.InvalidInput, match="of another cache"):
        filled.unlock(receipt)
    filled.unlock(mine)
    cache.unlock(receipt)


def test_no_call_compiles_twice(cache):
    jitted = [
        getattr(urc.compiled, name)
        for name in ("match_prefix", "match_prefixes", "probe", "probes", "insert", "evict", "lock", "alloc")
    ]

    def work():
        insert(cache, A)
        found = cache.match_prefix(B, "tenant")
        cache.match_prefixes([A, B])
        cache.probes([A, B])
        cache.probe(B)
        cache.unlock(cache.lock(found.node))
        cache.evict({"full": 100})

    work()
    before = [f.compilations() for f in jitted]
    for _ in range(3):
        work()
    assert [f.compilations() for f in jitted] == before
