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

from urc.tables.packed import NULL, Row, Table, on_cpu

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


def _goes_before(b: tuple[jax.Array, ...], a: tuple[jax.Array, ...]) -> jax.Array:
    """bool[...]: of two (is a candidate, words.., row), `b` goes first; `a` if they tie."""
    before = jnp.bool_(False)  # by the last word, unless an earlier one decides
    for x, y in zip(reversed(a[1:]), reversed(b[1:]), strict=True):
        before = (y < x) | ((y == x) & before)
    return b[0] & (before | ~a[0])


def _winner(contenders: tuple[jax.Array, ...]) -> jax.Array:
    """The entry i32[WORDS + 1] of a block of (is a candidate, words.., row), BLOCK of each."""
    # Halves against each other, and not one reduction: XLA keeps a buffer for each step of a reduction's function.
    while (half := contenders[0].shape[0] // 2) > 0:
        a, b = (tuple(x[i : i + half] for x in contenders) for i in (0, half))
        takes = _goes_before(b, a)
        contenders = tuple(jnp.where(takes, y, x) for x, y in zip(a, b, strict=True))
    found, *entry = (x[0] for x in contenders)
    return jnp.where(found, jnp.stack(entry), NULL)


def _contenders(entries: jax.Array) -> tuple[jax.Array, ...]:
    """Of entries (i32[..., WORDS + 1]): (is a candidate, words.., row)."""
    return entries[..., WORDS] >= 0, *(entries[..., w] for w in range(WORDS + 1))


def _first_of(count: int, contender: Callable[[jax.Array], tuple[jax.Array, ...]]) -> jax.Array:
    """The entry of those that `contender(i)` gives, i < count: one at a time, in a loop that is small."""

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, best = carry
        new = contender(i)
        takes = _goes_before(new, _contenders(best))
        return i + 1, jnp.where(takes, jnp.stack(new[1:]), best)

    nobody = jnp.full(WORDS + 1, NULL, jnp.int32)
    return lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), nobody))[1]


def refresh(orders: jax.Array, which: int, table: Table, row: jax.Array, key_of: KeyOf) -> jax.Array:
    """`orders`, of which `which` takes note that row `row` of `table` (i32[]; NULL: no-op) has changed in any way."""
    rows = table.data.shape[0]
    chex.assert_shape(orders, init(rows, orders.shape[0]).shape)
    applies, order, zero = row >= 0, jnp.int32(which), jnp.int32(0)
    starts = np.array([start for start, _ in _levels(rows)], np.int32)
    levels = jnp.where(applies, len(starts), 0)

    def of_rows_in_turn(index: jax.Array) -> jax.Array:
        def contender(i: jax.Array) -> tuple[jax.Array, ...]:
            at = index * BLOCK + i
            candidate, key = key_of(table.cells(at))
            return candidate, *key, at

        return _first_of(BLOCK, contender)

    def of_rows(index: jax.Array) -> jax.Array:
        candidate, key = key_of(table.block(index * BLOCK, BLOCK))
        return _winner((candidate, *key, index * BLOCK + np.arange(BLOCK, dtype=np.int32)))

    def up(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        orders, depth, index, entry = carry
        start = jnp.asarray(starts)[depth]
        orders = lax.dynamic_update_slice(orders, entry[None, None], (order, start + index, zero))
        index = index // BLOCK
        size = min(BLOCK, orders.shape[1])  # of the top, what follows is not used
        first = start + index * BLOCK

        def in_turn(orders: jax.Array, first: jax.Array) -> jax.Array:
            def contender(i: jax.Array) -> tuple[jax.Array, ...]:
                at = jnp.minimum(first + i, orders.shape[1] - 1)
                return _contenders(lax.dynamic_slice(orders, (order, at, zero), (1, 1, WORDS + 1))[0, 0])

            return _first_of(size, contender)

        def at_once(orders: jax.Array, first: jax.Array) -> jax.Array:
            return _winner(_contenders(lax.dynamic_slice(orders, (order, first, zero), (1, size, WORDS + 1))[0]))

        return orders, depth + 1, index, on_cpu(in_turn, at_once, orders, first)

    index = jnp.maximum(row, 0) // BLOCK
    entry = on_cpu(of_rows_in_turn, of_rows, index)
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
            return _winner((candidate, *key, ids))

        entries = jax.vmap(entry)(blocks, index)
        for start, size in _levels(rows):
            order = order.at[start : start + entries.shape[0]].set(entries)
            if size > 1:
                block = order[start : start + size].reshape(-1, BLOCK, WORDS + 1)
                entries = jax.vmap(lambda block: _winner(_contenders(block)))(block)
        out.append(order)
    return jnp.stack(out)
