"""Counters at their limits, and arguments that make no sense at trace time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from tests.cases import KEYS, filled, key
from urc import ops, view

MAX = 2**31 - 1


@pytest.fixture(scope="module")
def state():
    return filled()


def test_a_full_hit_counter_stays_full(state):
    row = next(node.index for node in view.nodes(state) if node.prefix == (40, 41))
    state = state.replace(nodes=state.nodes.set(jnp.int32(row), hits=MAX))
    again = jax.jit(lambda s, k: ops.insert(s, k, jnp.int32(2), {"full": key([0, 1])}))(state, key(KEYS[-1]))[0]
    view.check(again)
    assert [node.hit_count for node in view.nodes(again) if node.index == row] == [MAX]


def test_a_rows_generation_starts_again_and_never_turns_negative():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(pools={"full": 4}, max_nodes=2))
    state = cache.state
    cache.state = state.replace(nodes=state.nodes.set(jnp.int32(1), generation=MAX))
    old = cache.insert([1], {"full": cache.alloc("full", 1)}).node
    cache.evict({"full": 1})
    new = cache.insert([1], {"full": cache.alloc("full", 1)}).node
    assert old != new
    assert new > 0
    with pytest.raises(urc.InvalidInput, match="left the tree"):
        cache.lock(old)
    cache.unlock(cache.lock(new))
    cache.reset()
    assert cache.insert([1], {"full": cache.alloc("full", 1)}).node not in (old, new)


def test_a_refused_insert_changes_no_bit(state):
    insert = jax.jit(lambda s, k, n, prev: ops.insert(s, k, n, {"full": key([0, 1, 2, 3])}, prev_prefix_len=prev))
    after, inserted = insert(state, key([77, 78, 79, 80]), jnp.int32(4), jnp.int32(2))
    assert int(inserted.status) == urc.Status.BAD_PREFIX
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_names_and_shapes_are_checked_when_traced(state):
    with pytest.raises(ValueError, match="needs slots of"):
        ops.insert(state, key([1, 2]), jnp.int32(2), {})
    with pytest.raises(ValueError, match="unknown component 'swa'"):
        ops.evict(state, {"swa": jnp.int32(1)})
    with pytest.raises(ValueError, match="unknown component"):
        ops.alloc(state, "mamba", jnp.int32(1), width=4)
    with pytest.raises(ValueError, match=r"i32\[K\]"):
        ops.probe(state, jnp.zeros((2, 4), jnp.int32), jnp.int32(4))
    with pytest.raises(ValueError, match="caller's own"):
        ops.alloc(urc.init(urc.CacheConfig(arena_tokens=8)), "full", jnp.int32(1), width=4)
