"""Slot pool: the free slots of one component, as a stack that grows down.

Free are `slots[used : size]`; what lies below `used` is meaningless. Allocation takes from the front in order and
freeing puts runs back in front, so where all calls are whole pages, the slots of a page stay together, aligned.
"""

import jax
import jax.numpy as jnp

from urc.tables.packed import CHUNK, NULL, copy_run


def init(size: int, *, empty: bool = False) -> jax.Array:
    """i32[size + CHUNK]: all slots 0 .. size-1 free in order; `empty`: a stack that only takes."""
    slots = jnp.full(size, NULL, jnp.int32) if empty else jnp.arange(size, dtype=jnp.int32)
    return jnp.concatenate([slots, jnp.full(CHUNK, NULL, jnp.int32)])


def take(slots: jax.Array, used: jax.Array, count: jax.Array, *, width: int) -> tuple[jax.Array, jax.Array]:
    """(i32[width] with the `count` (i32[]) slots taken, NULL behind them; the new `used`)."""
    return take_into(jnp.full(width, NULL, jnp.int32), jnp.int32(0), slots, used, count)


def take_into(
    out: jax.Array, at: jax.Array, slots: jax.Array, used: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(`out` (i32[m]) with the `count` (i32[]) slots taken from out[at] on; the new `used`)."""
    return copy_run(out, at, slots, used, count), used + jnp.maximum(count, 0)


def give(
    slots: jax.Array, used: jax.Array, source: jax.Array, start: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Puts source[start : start+count] back. (slots, used)."""
    count = jnp.maximum(count, 0)
    used = used - count
    return copy_run(slots, used, source, start, count), used
