"""States that move: between handles, through pickles and programs, and after somebody took one away."""

import copy
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from urc import ops

CONFIG = urc.CacheConfig(page_size=2, pools={"full": 32})
_caches = [urc.UnifiedRadixCache(CONFIG) for _ in range(2)]
A, B = [1, 2, 3, 4], [1, 2, 5, 6]


@pytest.fixture
def cache():
    _caches[0].reset()
    yield _caches[0]
    _caches[0].check()


@pytest.fixture
def other():
    return urc.UnifiedRadixCache(CONFIG)


def insert(cache, tokens, **options):
    return cache.insert(tokens, {"full": cache.alloc("full", len(tokens))}, **options)


def test_namespaces_of_two_caches_never_meet(cache, other):
    insert(cache, A, namespace="alice")
    insert(other, B, namespace="bob")
    with pytest.raises(urc.InvalidInput, match="did not number"):
        other.state = cache.state
    assert other.probe(A, "bob").device_len == 2
    insert(cache, B, namespace="bob")
    with pytest.raises(urc.InvalidInput, match="did not number"):
        cache.state = other.state


def test_a_state_of_the_default_namespace_goes_to_any_cache(cache, other):
    insert(cache, A)
    other.state = cache.state
    assert other.probe(A).device_len == 4
    insert(other, B, namespace="bob")
    other.check()


def test_an_older_state_knows_fewer_namespaces(cache):
    old = cache.state
    insert(cache, A, namespace="alice")
    middle = cache.state
    insert(cache, A, namespace="bob")
    for state, names in ((old, []), (middle, ["alice"])):
        cache.state = state
        assert [node.namespace for node in cache.tree()] == names
    insert(cache, A, namespace="bob")
    assert {node.namespace for node in cache.tree()} == {"alice", "bob"}


def test_numbers_that_nobody_named_are_refused(cache):
    insertion = ops.insert(cache.state, np.array(A, np.int32), 4, {"full": jnp.arange(4)}, namespace=3)
    with pytest.raises(urc.InvalidInput, match="did not number"):
        cache.state = insertion[0]
    assert "alice" not in cache.pretty()


def test_receipts_outlive_what_a_program_makes_of_the_state(cache):
    receipt = cache.lock(insert(cache, A).node)
    cache.state, _ = jax.jit(ops.match_prefix)(cache.state, jnp.array(A), 2)
    assert cache.sizes()["full"].protected == 4
    cache.unlock(receipt)
    assert cache.sizes()["full"].protected == 0
    receipt = cache.lock(cache.match_prefix(A).node)
    unlocked, _ = ops.unlock(
        cache.state, ops.Receipt(node=cache.state.ref(jnp.int32(1)), end=jnp.int32(4), since={"full": jnp.int32(0)})
    )
    cache.state = unlocked
    with pytest.raises(urc.InvalidInput, match="not live here"):
        cache.unlock(receipt)


def test_copies_pickles_and_numpy_arrays_are_states_too(cache):
    insert(cache, A, namespace="alice")
    state = cache.state
    for same in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), jax.device_get(state)):
        cache.evict({"full": 32})
        cache.state = same
        cache.check()
        assert cache.probe(A, "alice").device_len == 4
        insert(cache, B, namespace="alice")


def test_misfits_are_refused(cache):
    state = cache.state
    for wrong in (state.replace(stores={}), jax.tree.map(lambda x: jnp.stack([x, x]), state), 3):
        with pytest.raises(urc.InvalidInput, match=r"CacheState|shapes"):
            cache.state = wrong


def test_equal_configurations_hash_alike_in_another_process():
    code = "import pickle, sys, urc; c = pickle.loads(sys.stdin.buffer.read()); d = urc.CacheConfig(page_size=2, "
    code += "pools={'full': 32}); assert c == d and hash(c) == hash(d)"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(CONFIG), env=environment, check=True)


def test_a_cache_whose_state_was_taken_away_says_so_and_can_go_on(cache):
    insert(cache, A)
    snapshot = jax.tree.map(jnp.copy, cache.state)
    ops.donating(ops.match_prefix)(cache.state, jnp.array(A), 2)
    uses = (cache.sizes, cache.pretty, cache.tree, cache.check, lambda: cache.probe(A), lambda: cache.match_prefix(A))
    for use in (*uses, lambda: cache.state, lambda: cache.access_order("full")):
        with pytest.raises(RuntimeError, match=r"lost its state.*reset\(\)"):
            use()
    cache.state = snapshot
    assert cache.probe(A).device_len == 4
    cache.check()
    ops.donating(ops.match_prefix)(cache.state, jnp.array(A), 2)
    cache.reset()
    assert cache.sizes()["full"] == urc.Sizes(32, 0, 0)


def test_it_works_in_64_bit_mode():
    code = """
import numpy as np, urc
c = urc.UnifiedRadixCache(urc.CacheConfig(page_size=2, pools={"full": 12}, arena_tokens=12, policy="tlru"))
for i in range(12):
    tokens = [1, 2, 3 + i % 3, i, 7, 7]
    hit = c.match_prefix(tokens)
    receipt = c.lock(hit.node)
    c.evict({"full": 6 - hit.device_len - c.sizes()["full"].free} if c.sizes()["full"].free < 6 else {})
    fresh = c.alloc("full", 6 - hit.device_len)
    if fresh is not None:
        c.insert(tokens, {"full": np.concatenate([hit.slots["full"], fresh])}, prev_prefix_len=hit.device_len)
    c.unlock(receipt)
    c.check()
assert [r.device_len for r in c.match_prefixes([[1, 2], [9, 9]])] == [2, 0]
assert [r.device_len for r in c.probes([[1, 2], [9, 9]])] == [2, 0]
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "JAX_ENABLE_X64": "1"}, check=True)


BAD = {
    "keys that are none": (lambda c: c.match_prefixes(None), "keys must be a sequence"),
    "one key for many": (lambda c: c.probes("ab"), "keys must be a sequence"),
    "a namespace for many": (lambda c: c.probes([A, B], "ab"), "namespaces must be a sequence"),
    "a number of namespaces": (lambda c: c.probes([A], 5), "namespaces must be a sequence"),
    "ragged tokens": (lambda c: c.match_prefix([1, [2, 3]]), "flat sequence"),
    "ragged slots": (lambda c: c.free("full", [1, [2, 3]]), "flat sequence"),
    "an array to allocate": (lambda c: c.alloc("full", np.array([1, 2])), "n must be an integer"),
    "a float to evict": (lambda c: c.evict({"full": jnp.float32(1)}), "must be an integer"),
    "an array as a node": (lambda c: c.lock(np.array([1, 2])), "a node is what"),
    "a root that is none": (lambda c: c.lock(2**31), "not a node"),
    "a receipt made of lists": (lambda c: c.unlock(urc.Receipt(0, 0, [1], 0)), "Receipt that lock returned"),
    "components not in a list": (lambda c: urc.CacheConfig(components=None), "components must be"),
    "pools in a flat tuple": (lambda c: urc.CacheConfig(pools=("full", 64)), "pools maps names"),
    "a pool without a page": (lambda c: urc.CacheConfig(page_size=8, pools={"full": 7}), "holds no page"),
    "an arena too large": (lambda c: urc.CacheConfig(arena_tokens=2**31 - 1), "arena_tokens must be at most"),
    "a policy of lists": (lambda c: urc.CacheConfig(policy=urc.policies.Slru(protected_hits=[2])), "scores no node"),
    "a policy of words": (lambda c: urc.CacheConfig(policy=urc.policies.Slru(protected_hits="x")), "scores no node"),
    "a policy beyond 32 bits": (lambda c: urc.CacheConfig(policy=urc.policies.Slru(protected_hits=2**40)), "scores"),
    "a policy without a score": (lambda c: urc.CacheConfig(policy=urc.policies.Policy()), "scores no node"),
}


@pytest.mark.parametrize("what", BAD)
def test_odd_input_is_refused(cache, what):
    call, says = BAD[what]
    with pytest.raises(urc.InvalidInput, match=says):
        call(cache)


def test_keys_may_come_as_arrays_and_iterators(cache):
    insert(cache, A)
    for keys in (np.array([A, B]), jnp.array([A, B]), iter([A, B]), (np.array(A)[::1], np.array(B, np.uint8))):
        assert [found.device_len for found in cache.probes(keys)] == [4, 2]
    assert [r.device_len for r in cache.match_prefixes(np.array([A, B]))] == [4, 2]


def test_numbers_of_a_callers_slots_are_bounded_and_cost_no_memory():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(arena_tokens=8))
    cache.insert([1, 2], {"full": [2**28 - 1, 5]})
    cache.check()
    with pytest.raises(urc.InvalidInput, match="below 268435456"):
        cache.insert([3], {"full": [2**28]})


def test_null_slots_are_refused_by_the_pure_insert_too():
    state = urc.init(CONFIG)
    after, inserted = ops.insert(state, jnp.array(A), 4, {"full": jnp.array([0, 1, -1, -1])})
    assert int(inserted.status) == urc.Status.BAD_SLOTS
    assert int(ops.digest(after)) == int(ops.digest(state))
    _, inserted = ops.insert(state, jnp.array(A), -1, {"full": jnp.array([0, 1, -1, -1])})
    assert (int(inserted.status), int(inserted.prefix_len)) == (urc.Status.OK, 0)
    assert int(ops.probe(state, jnp.zeros(0, jnp.int32), 0).device_len) == 0
    assert int(ops.match_prefix(state, jnp.zeros(0, jnp.int32), 5)[1].device_len) == 0
