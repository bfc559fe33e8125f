"""A digest of a state, by which replicas can tell that they agree."""

import jax
import jax.numpy as jnp

from urc.state import CacheState


def digest(state: CacheState) -> jax.Array:
    """A hash (u32[]) of every array of the state, in one pass over it.

    Transitions are deterministic, bit for bit, so replicas that took the same ones have the same digest; replicas
    that did not have the same only by a collision, one in 2**32. Not a defence against an adversary.
    """
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(state):
        words = leaf.reshape(-1).astype(jnp.uint32)
        place = jnp.arange(words.size, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
        mixed = (words ^ place) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0xC2B2AE35)
        total = (total ^ (total >> 16)) * jnp.uint32(0x7FEB352D) + jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)
    return total
