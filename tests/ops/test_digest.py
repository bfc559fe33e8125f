"""Equal states have equal digests; any one bit makes a difference."""

import jax
import jax.numpy as jnp
import pytest

from tests.cases import CASES, filled
from urc import ops

digest = jax.jit(ops.digest)


@pytest.fixture(scope="module")
def state():
    return filled()


def test_replicas_that_take_the_same_steps_agree(state):
    other = filled()
    assert int(digest(state)) == int(digest(other))
    for name in ("match_prefix", "insert", "evict"):
        step = jax.jit(CASES[name].call)
        state, other = step(state, *CASES[name].args)[0], step(other, *CASES[name].args)[0]
        assert int(digest(state)) == int(digest(other))


def test_any_changed_word_shows(state):
    leaves, tree = jax.tree.flatten(state)
    seen = {int(digest(state))}
    for i, leaf in enumerate(leaves):
        for at in (0, leaf.size // 2, leaf.size - 1):
            changed = leaf.reshape(-1).at[at].add(1).reshape(leaf.shape)
            seen.add(int(digest(jax.tree.unflatten(tree, [*leaves[:i], changed, *leaves[i + 1 :]]))))
    assert len(seen) == 1 + 3 * len(leaves)


def test_swapped_words_show(state):
    swapped = state.tokens.at[jnp.array([0, 1])].set(state.tokens[jnp.array([1, 0])])
    assert int(digest(state)) != int(digest(state.replace(tokens=swapped)))
