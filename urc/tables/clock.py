"""A clock that never overflows: two int32 words, 31 bits each, so 2**62 ticks."""

import jax
import jax.numpy as jnp

LOW_BITS = 31
_LOW_MAX = 2**LOW_BITS - 1


def tick(high: jax.Array, low: jax.Array, advance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next (high, low) where `advance` (bool[]) holds, else the same; both words stay >= 0 (i32[])."""
    carry = low == _LOW_MAX
    next_high = high + carry.astype(jnp.int32)
    next_low = jnp.where(carry, 0, low + 1)
    return jnp.where(advance, next_high, high), jnp.where(advance, next_low, low)


def split_words(value: int) -> tuple[int, int]:
    """A Python int in [0, 2**62) as its (high, low) words."""
    if not 0 <= value < 2 ** (2 * LOW_BITS):
        raise ValueError(f"a clock value lies in [0, 2**62), got {value}")
    return value >> LOW_BITS, value & _LOW_MAX
