"""Child slots: one hash table for all nodes, so that a node has any number of children at O(1) expected cost.

Chained: `heads[b]` is the first row of bucket b and the rows' own NEXT column links the rest. A bucket therefore
never overflows: the only limit is the number of rows. A hash only ever narrows the search; who follows a chain
compares tokens.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc.kernel import inside
from urc.tables.packed import NULL, Table, on_cpu


def buckets(rows: int) -> int:
    """A power of two that keeps the load at or below one half."""
    return 1 << max(3, (2 * rows - 1).bit_length())


_UNROLLED = 64
"""Tokens of a page that are hashed in one expression, where all is one kernel anyway."""


def _mixed_words(words: jax.Array, places: jax.Array | np.ndarray) -> jax.Array:
    """Tokens (i32[n]), each mixed with an odd multiplier of its place in the page (u32[n]): u32[n]."""
    weights = (places + np.uint32(1)) * np.uint32(0x9E3779B1)
    weights = (weights ^ (weights >> 15)) * np.uint32(0x85EBCA6B) | np.uint32(1)
    words = words.astype(jnp.uint32)
    words = (words ^ (words >> 15)) * weights
    return words ^ (words >> 13)


def _summed(words: jax.Array, places: jax.Array | np.ndarray) -> jax.Array:
    """Tokens (i32[n]), mixed and added up (u32[])."""
    return jnp.sum(_mixed_words(words, places), dtype=jnp.uint32)


def mixed(parent: jax.Array, namespace: jax.Array, page: jax.Array) -> jax.Array:
    """Hash (i32[]) of an edge out of the sum (u32[]) of its page."""
    h = (
        page
        ^ (parent.astype(jnp.uint32) * jnp.uint32(0x85EBCA6B))
        ^ (namespace.astype(jnp.uint32) * jnp.uint32(0xC2B2AE35))
    )
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return lax.bitcast_convert_type(h ^ (h >> 16), jnp.int32)


def page_hash(parent: jax.Array, namespace: jax.Array, page: jax.Array) -> jax.Array:
    """Hash (i32[]) of the edge that leaves `parent` with `page` (i32[page_size]) in `namespace`."""
    return mixed(parent, namespace, _summed(page, np.arange(page.shape[0], dtype=np.uint32)))


def edge_hash(parent: jax.Array, namespace: jax.Array, tokens: jax.Array, at: jax.Array, page_size: int) -> jax.Array:
    """`page_hash` of the page at tokens[at : at+page_size], on a CPU read token by token (see `packed.STEPS`)."""

    def whole(tokens: jax.Array, at: jax.Array) -> jax.Array:
        return _summed(lax.dynamic_slice(tokens, (at,), (page_size,)), np.arange(page_size, dtype=np.uint32))

    def in_steps(tokens: jax.Array, at: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            place, total = carry
            word = lax.dynamic_slice(tokens, (at + place.astype(jnp.int32),), (1,))
            return place + 1, total + _summed(word, place)

        return lax.while_loop(lambda carry: carry[0] < page_size, step, (jnp.uint32(0), jnp.uint32(0)))[1]

    def unrolled(tokens: jax.Array, at: jax.Array) -> jax.Array:
        words = _mixed_words(lax.dynamic_slice(tokens, (at,), (page_size,)), np.arange(page_size, dtype=np.uint32))
        return functools.reduce(lax.add, [words[i] for i in range(page_size)])

    some = whole if page_size <= 4 else in_steps
    small = unrolled if inside() and page_size <= _UNROLLED else some
    return mixed(parent, namespace, on_cpu(small, whole, tokens, at))


def bucket_of(heads: jax.Array, edge_hash: jax.Array) -> jax.Array:
    """Bucket (i32[]) of a hash."""
    return edge_hash & (heads.shape[0] - 1)


def predecessor(heads: jax.Array, table: Table, row: jax.Array, edge_hash: jax.Array) -> jax.Array:
    """The row before `row` in its chain (i32[]), NULL if `row` is the first. `row` must be in the table."""
    following = table.columns.index("next")
    first = heads[bucket_of(heads, edge_hash)]

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        _, at = carry
        return at, table.data[at, following]

    found = lambda c: (c[1] != row) & (c[1] >= 0)
    return lax.while_loop(found, body, (jnp.int32(NULL), first))[0]
