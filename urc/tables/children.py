"""Child slots: one hash table for all nodes, so that a node has any number of children at O(1) expected cost.

Chained: `heads[b]` is the first row of bucket b and the rows' own NEXT column links the rest. A bucket therefore
never overflows: the only limit is the number of rows. A hash only ever narrows the search; who follows a chain
compares tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc.tables.packed import NULL, Table


def buckets(rows: int) -> int:
    """A power of two that keeps the load at or below one half."""
    return 1 << max(3, (2 * rows - 1).bit_length())


def _weights(size: int) -> np.ndarray:
    """Odd multipliers u32[size], one for each place of a page (a splitmix64 sequence, high words)."""
    x = (np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def page_hash(parent: jax.Array, namespace: jax.Array, page: jax.Array) -> jax.Array:
    """Hash (i32[]) of the edge that leaves `parent` with `page` (i32[page_size]) in `namespace`."""
    words = page.astype(jnp.uint32)
    words = (words ^ (words >> 15)) * _weights(page.shape[0])
    h = jnp.sum(words ^ (words >> 13), dtype=jnp.uint32)
    h = (
        h
        ^ (parent.astype(jnp.uint32) * jnp.uint32(0x85EBCA6B))
        ^ (namespace.astype(jnp.uint32) * jnp.uint32(0xC2B2AE35))
    )
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return lax.bitcast_convert_type(h ^ (h >> 16), jnp.int32)


def bucket_of(heads: jax.Array, edge_hash: jax.Array) -> jax.Array:
    """Bucket (i32[]) of a hash."""
    return edge_hash & (heads.shape[0] - 1)


def predecessor(heads: jax.Array, table: Table, row: jax.Array) -> jax.Array:
    """The row before `row` in its chain (i32[]), NULL if `row` is the first. `row` must be in the table."""
    following = table.columns.index("next")
    edge_hash = table.get(row)["hash"]
    first = heads[bucket_of(heads, edge_hash)]

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        _, at = carry
        return at, table.data[at, following]

    found = lambda c: (c[1] != row) & (c[1] >= 0)
    return lax.while_loop(found, body, (jnp.int32(NULL), first))[0]
