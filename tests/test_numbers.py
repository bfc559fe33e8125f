"""A program with its numbers taken from elsewhere computes what it computed, loops and branches in it too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from urc.numbers import numbers_in, with_numbers


def steps(x):
    """x, and as many x more as there are steps of 7 from 3 to 20."""
    return lax.while_loop(lambda carry: carry[0] < 20, lambda carry: (carry[0] + 7, carry[1] + x), (jnp.int32(3), x))[1]


def folded(xs):
    """A scan from 11 on, in which each step chooses."""
    choose = lambda carry, x: lax.cond(x > 5, lambda: carry + x, lambda: jnp.int32(13))

    def step(carry, x):
        carry = choose(carry, x)
        return carry, carry + 2

    return lax.scan(step, jnp.int32(11), xs)


def called(x):
    """A part of its own, and an array that is full of a number."""
    return jax.jit(lambda x: x * 3 + 4)(x) + jnp.full(5, 17, jnp.int32)


CASES = {  # by hand: the numbers of loops' starts, of sums, of `>`, and of arrays that are full of one
    "steps": (steps, jnp.int32(6), {3, 7}),
    "folded": (folded, jnp.array([9, 2, 6], jnp.int32), {11, 5, 13, 2}),
    "called": (called, jnp.int32(2), {4, 17}),
}


@pytest.mark.parametrize("name", CASES)
def test_with_its_own_numbers_a_program_is_the_same(name):
    f, x, expected = CASES[name]
    traced = jax.make_jaxpr(f)(x)
    found = numbers_in(traced.jaxpr)
    assert found == expected
    numbers = {number: jnp.int32(number) for number in found}
    out = jax.jit(lambda x: with_numbers(traced.jaxpr, traced.consts, [x], numbers))(x)
    for got, want in zip(out, jax.tree.leaves(f(x)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("steps", {3: 13, 7: 7}, 6 + 6),  # one step less would do; begun at 13, one is left
        ("steps", {3: 3, 7: 1}, 6 + 17 * 6),
        ("called", {4: 0, 17: 1}, [7] * 5),
    ],
)
def test_with_others_it_is_another(name, numbers, expected):
    f, x, _ = CASES[name]
    traced = jax.make_jaxpr(f)(x)
    (out,) = with_numbers(traced.jaxpr, traced.consts, [x], {n: jnp.int32(m) for n, m in numbers.items()})
    np.testing.assert_array_equal(out, expected)


def test_what_cannot_be_followed_is_left_as_it_is():
    assert numbers_in(jax.make_jaxpr(jax.nn.relu)(jnp.int32(3)).jaxpr) is None
    inside = lambda x: lax.while_loop(lambda x: x < 5, lambda x: jax.nn.relu(x) + 1, x)
    assert numbers_in(jax.make_jaxpr(inside)(jnp.int32(3)).jaxpr) is None
