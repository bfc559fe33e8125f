"""A clock of two words against Python's integers."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from urc.tables import clock


@given(st.integers(0, 2**62 - 2))
def test_tick_adds_one(value):
    high, low = clock.tick(*(jnp.int32(w) for w in clock.split_words(value)), jnp.bool_(True))
    assert (int(high), int(low)) == clock.split_words(value + 1)
    assert int(high) * 2**31 + int(low) == value + 1


def test_it_stands_still_unless_it_advances():
    words = clock.split_words(2**31 - 1)
    assert words == (0, 2**31 - 1)
    assert tuple(map(int, clock.tick(*map(jnp.int32, words), jnp.bool_(False)))) == words
    assert tuple(map(int, clock.tick(*map(jnp.int32, words), jnp.bool_(True)))) == (1, 0)


@pytest.mark.parametrize("value", [-1, 2**62])
def test_out_of_range(value):
    with pytest.raises(ValueError, match=r"\[0, 2\*\*62\)"):
        clock.split_words(value)
