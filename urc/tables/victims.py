"""Victim orders: the rows with the smallest keys, kept in O(log rows) per change and found in O(1).

A tournament with blocks of 4. Level 0 is the rows' own table, never copied: a block's winner is computed from its
rows. Each level above holds the winners of the level below, a block to a row, up to a single row. What is stored is
therefore about rows/3 winners; a row's key is a pure function of the row, so nothing goes stale. Several orders of the
same rows are kept side by side. Larger blocks would take less room and fewer steps, but a step has to stay below the
size up to which XLA makes one kernel of a loop (see `urc.tables.packed.STEP`).
"""

import math
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc.tables.packed import NULL, Row, Table

BLOCK = 4
WORDS = 5
"""int32 words of a key, compared in order."""

Key = tuple[jax.Array, ...]
"""WORDS arrays i32[n]: the keys of n rows, word by word; smaller goes first."""

KeyOf = Callable[[Row], tuple[jax.Array, Key]]
"""(n rows) -> (bool[n] is a candidate, its key): what makes one order."""


def padded_rows(rows: int) -> int:
    """The number of rows that a table must have so that its blocks are whole."""
    return BLOCK * math.ceil(rows / BLOCK)


def _levels(rows: int) -> list[tuple[int, int]]:
    """(first index, size) of each level of winners for a table of `rows` (a multiple of BLOCK) rows."""
    levels, start, size = [], 0, rows // BLOCK
    while True:
        size = 1 if size == 1 else padded_rows(size)
        levels.append((start, size))
        if size == 1:
            return levels
        start, size = start + size, size // BLOCK


def init(rows: int, orders: int) -> jax.Array:
    """No candidates: i32[orders, winners, WORDS + 1], a key and the row that has it, NULL where a block has none."""
    start, size = _levels(rows)[-1]
    return jnp.full((orders, start + size, WORDS + 1), NULL, jnp.int32)


def _winner(candidate: jax.Array, key: Key, rows: jax.Array) -> jax.Array:
    """The entry i32[WORDS + 1] of one block: the smallest key among the candidates (bool[n]), and whose it is."""

    def smaller(a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]) -> list[jax.Array]:
        takes = jnp.bool_(False)  # whether b goes before a: by the last word, unless an earlier one decides
        for x, y in zip(reversed(a[1:]), reversed(b[1:]), strict=True):
            takes = (y < x) | ((y == x) & takes)
        takes = b[0] & (takes | ~a[0])
        return [jnp.where(takes, y, x) for x, y in zip(a, b, strict=True)]

    # One variadic reduction: as separate minima, word by word, it is some twenty kernels.
    initial = (jnp.bool_(False), *(jnp.int32(NULL) for _ in range(WORDS + 1)))
    _, *entry = lax.reduce((candidate, *key, rows), initial, smaller, (0,))
    return jnp.stack(entry)


def _winner_of_winners(block: jax.Array) -> jax.Array:
    """The entry of a block (i32[BLOCK, WORDS + 1]) of entries."""
    return _winner(block[:, WORDS] >= 0, tuple(block[:, w] for w in range(WORDS)), block[:, WORDS])


def refresh(orders: jax.Array, which: int, table: Table, row: jax.Array, key_of: KeyOf) -> jax.Array:
    """`orders`, of which `which` takes note that row `row` of `table` (i32[]; NULL: no-op) has changed in any way."""
    rows = table.data.shape[0]
    chex.assert_shape(orders, init(rows, orders.shape[0]).shape)
    applies, order, zero = row >= 0, jnp.int32(which), jnp.int32(0)
    index = jnp.maximum(row, 0) // BLOCK
    candidate, key = key_of(table.block(index * BLOCK, BLOCK))
    entry = _winner(candidate, key, index * BLOCK + np.arange(BLOCK, dtype=np.int32))
    starts = np.array([start for start, _ in _levels(rows)], np.int32)
    levels = jnp.where(applies, len(starts), 0)

    def up(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        orders, depth, index, entry = carry
        start = jnp.asarray(starts)[depth]
        orders = lax.dynamic_update_slice(orders, entry[None, None], (order, start + index, zero))
        index = index // BLOCK
        size = min(BLOCK, orders.shape[1])  # of the top, what follows is not used
        block = lax.dynamic_slice(orders, (order, start + index * BLOCK, zero), (1, size, WORDS + 1))[0]
        return orders, depth + 1, index, _winner_of_winners(block)

    return lax.while_loop(lambda carry: carry[1] < levels, up, (orders, zero, index, entry))[0]


def first(orders: jax.Array) -> jax.Array:
    """The rows with the smallest keys (i32[orders]), NULL if there is no candidate."""
    return orders[:, -1, WORDS]


def rebuild(table: Table, keys_of: Sequence[KeyOf]) -> jax.Array:
    """All orders computed afresh from the table."""
    rows = table.data.shape[0]
    blocks = Row(values=table.data.reshape(-1, BLOCK, len(table.columns)), columns=table.columns)
    index = jnp.arange(rows, dtype=jnp.int32).reshape(-1, BLOCK)
    out = []
    for key_of, order in zip(keys_of, init(rows, len(keys_of)), strict=True):

        def entry(block: Row, ids: jax.Array, key_of: KeyOf = key_of) -> jax.Array:
            candidate, key = key_of(block)
            return _winner(candidate, key, ids)

        entries = jax.vmap(entry)(blocks, index)
        for start, size in _levels(rows):
            order = order.at[start : start + entries.shape[0]].set(entries)
            if size > 1:
                block = order[start : start + size].reshape(-1, BLOCK, WORDS + 1)
                entries = jax.vmap(_winner_of_winners)(block)
        out.append(order)
    return jnp.stack(out)
