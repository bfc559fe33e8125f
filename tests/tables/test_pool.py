"""The slot pool against a list."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from urc.tables import pool
from urc.tables.packed import CHUNK, NULL

take = jax.jit(pool.take, static_argnames="width")
give = jax.jit(pool.give)


def test_slots_come_in_order_and_pages_stay_together():
    slots, used = pool.init(12), jnp.int32(0)
    first, used = take(slots, used, jnp.int32(8), width=8)
    assert first.tolist() == list(range(8))
    back = first
    slots, used = give(slots, used, back, jnp.int32(4), jnp.int32(4))  # the page 4..7
    slots, used = give(slots, used, back, jnp.int32(0), jnp.int32(4))  # the page 0..3
    again, used = take(slots, used, jnp.int32(12), width=16)
    assert again.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, NULL, NULL, NULL, NULL]
    assert int(used) == 12


@given(st.lists(st.integers(-4, 4), max_size=30))
def test_takes_and_gives_keep_a_set_of_slots(moves):
    size = 9
    slots, used, held = pool.init(size), jnp.int32(0), []
    for move in moves:
        free = size - len(held)
        if move > 0 and move <= free:
            taken, used = take(slots, used, jnp.int32(move), width=4)
            held += taken[:move].tolist()
        elif move < 0 and -move <= len(held):
            back, held = held[:-move], held[-move:]
            source = np.full(4 + CHUNK, NULL, np.int32)
            source[: len(back)] = back
            slots, used = give(slots, used, source, jnp.int32(0), jnp.int32(len(back)))
        assert int(used) == len(held)
        assert sorted(held + np.asarray(slots)[int(used) : size].tolist()) == list(range(size))
