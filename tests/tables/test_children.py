"""The child table: load, chains and the spread of the hash."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from urc.tables import children
from urc.tables.packed import NULL, Table


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 1000, 65536])
def test_load_is_at_most_one_half(rows):
    assert children.buckets(rows) >= 2 * rows
    assert children.buckets(rows).bit_count() == 1


def test_every_part_of_an_edge_counts():
    page = np.array([3, 1, 4, 1], np.int32)
    base = int(children.page_hash(jnp.int32(7), jnp.int32(0), page))
    others = [
        children.page_hash(jnp.int32(8), jnp.int32(0), page),
        children.page_hash(jnp.int32(7), jnp.int32(1), page),
        *(children.page_hash(jnp.int32(7), jnp.int32(0), page + np.eye(4, dtype=np.int32)[i]) for i in range(4)),
        children.page_hash(jnp.int32(7), jnp.int32(0), page[::-1].copy()),
    ]
    assert base not in [int(h) for h in others]


def test_sequential_tokens_spread_over_the_buckets():
    # 4,096 children of one node into 8,192 buckets: a random function leaves the fullest with 5 to 8.
    tokens = np.arange(4096, dtype=np.int32)[:, None]
    hashes = jax.vmap(lambda page: children.page_hash(jnp.int32(0), jnp.int32(0), page))(tokens)
    counts = np.bincount(np.asarray(hashes) & 8191, minlength=8192)
    assert counts.max() <= 9


def test_predecessor_follows_the_chain():
    table = Table(data=jnp.array([[NULL, 5], [2, 5], [3, 5], [NULL, 5], [0, 0]], jnp.int32), columns=("next", "hash"))
    heads = jnp.full(8, NULL, jnp.int32).at[5].set(1)
    found = [int(children.predecessor(heads, table, jnp.int32(row), table.get(row)["hash"])) for row in (1, 2, 3)]
    assert found == [NULL, 1, 2]
