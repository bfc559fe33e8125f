"""Victim orders: the rows with the smallest keys, kept in O(log rows) per change and found in O(1).

A tournament by blocks of BLOCK. A block of rows has an entry, its winner: the smallest key, and the row that has it.
BLOCK entries have an entry, the winner of these; and so on, up to a single one. They lie in one array as in a heap: the
first is the winner of all, those below entry i are BLOCK * i + 1 and on, the last ones are of the blocks of rows. That
is about a third of the number of rows. An entry is a pure function of its rows, so nothing goes stale. Several orders
of the same rows are kept side by side. Larger blocks would take less room and fewer steps, but a step has to stay below
the size up to which XLA makes one kernel of a loop (see `urc.tables.packed.STEPS`).
"""

import functools
import math
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc.kernel import inside
from urc.tables.packed import NULL, Row, Table, on_cpu

SHIFT = 2
BLOCK = 1 << SHIFT
WORDS = 5
"""int32 words of a key, compared in order."""

Key = tuple[jax.Array, ...]
"""WORDS arrays i32[n]: the keys of n rows, word by word; smaller goes first."""

KeyOf = Callable[[Row], tuple[jax.Array, Key]]
"""(n rows) -> (bool[n] is a candidate, its key): what makes one order."""


def padded_rows(rows: int) -> int:
    """The number of rows that a table must have so that its blocks are whole."""
    return BLOCK * math.ceil(rows / BLOCK)


def _inner(rows: int) -> int:
    """Entries that are not a block of rows, for a table of `rows` (a multiple of BLOCK) rows."""
    return math.ceil((rows // BLOCK - 1) / (BLOCK - 1))


def init(rows: int, orders: int) -> jax.Array:
    """No candidates: i32[orders, entries, WORDS + 1], a key and the row that has it, NULL where a block has none."""
    return jnp.full((orders, BLOCK * max(_inner(rows), 1) + 1, WORDS + 1), NULL, jnp.int32)


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


def _differ(one: jax.Array, other: jax.Array) -> jax.Array:
    """bool[]: two entries are not the same. In a kernel word by word: a reduction's function would be three buffers."""
    differ = one != other
    if not inside():
        return jnp.any(differ)
    return functools.reduce(lax.bitwise_or, [differ[i] for i in range(WORDS + 1)])


def _first_of(start: jax.Array, contender: Callable[[jax.Array], tuple[jax.Array, ...]]) -> jax.Array:
    """Which (i32[]) of BLOCK places from `start` on has the first of `contender`s (is a candidate, words.., row).

    One at a time, in a loop that touches little.
    """

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        at, best = carry
        return at - 1, jnp.where(_goes_before(contender(best), contender(at)), best, at)

    return lax.while_loop(lambda carry: carry[0] >= start, body, (start + (BLOCK - 2), start + (BLOCK - 1)))[1]


def refresh(orders: jax.Array, which: int, table: Table, row: jax.Array, key_of: KeyOf) -> jax.Array:
    """`orders`, of which `which` takes note that row `row` of `table` (i32[]; NULL: no-op) has changed in any way.

    It goes up as far as anything changes: for a row that is no candidate, and was none, that is nowhere.
    """
    rows = table.data.shape[0]
    chex.assert_shape(orders, init(rows, orders.shape[0]).shape)
    order, zero, block = jnp.int32(which), jnp.int32(0), jnp.maximum(row, 0) >> SHIFT

    def entry(orders: jax.Array, at: jax.Array) -> jax.Array:
        return lax.dynamic_slice(orders, (order, at, zero), (1, 1, WORDS + 1))[0, 0]

    def of_rows_in_turn() -> jax.Array:
        def contender(at: jax.Array) -> tuple[jax.Array, ...]:
            candidate, key = key_of(table.cells(at))
            return candidate, *key, at

        found, *new = contender(_first_of(block * BLOCK, contender))
        return jnp.where(found, jnp.stack(new), NULL)

    def of_rows() -> jax.Array:
        candidate, key = key_of(table.block(block * BLOCK, BLOCK))
        return _winner((candidate, *key, block * BLOCK + np.arange(BLOCK, dtype=np.int32)))

    def of_entries_in_turn(orders: jax.Array, start: jax.Array) -> jax.Array:
        return entry(orders, _first_of(start, lambda at: _contenders(entry(orders, at))))

    def of_entries(orders: jax.Array, start: jax.Array) -> jax.Array:
        return _winner(_contenders(lax.dynamic_slice(orders, (order, start, zero), (1, BLOCK, WORDS + 1))[0]))

    def up(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        orders, at, new, _ = carry
        orders = lax.dynamic_update_slice(orders, new[None, None], (order, at, zero))
        above = (at - 1) >> SHIFT
        new = on_cpu(of_entries_in_turn, of_entries, orders, above * BLOCK + 1)
        return orders, above, new, (at > 0) & _differ(new, entry(orders, above))

    at, new = _inner(rows) + block, on_cpu(of_rows_in_turn, of_rows)
    changes = (row >= 0) & _differ(new, entry(orders, at))
    return lax.while_loop(lambda carry: carry[3], up, (orders, at, new, changes))[0]


def first(orders: jax.Array) -> jax.Array:
    """The rows with the smallest keys (i32[orders]), NULL if there is no candidate."""
    return orders[:, 0, WORDS]


def rebuild(table: Table, keys_of: Sequence[KeyOf]) -> jax.Array:
    """All orders computed afresh from the table."""
    rows, inner = table.data.shape[0], _inner(table.data.shape[0])
    blocks = Row(values=table.data.reshape(-1, BLOCK, len(table.columns)), columns=table.columns)
    index = jnp.arange(rows, dtype=jnp.int32).reshape(-1, BLOCK)
    out = []
    for key_of, order in zip(keys_of, init(rows, len(keys_of)), strict=True):

        def of_rows(block: Row, ids: jax.Array, key_of: KeyOf = key_of) -> jax.Array:
            candidate, key = key_of(block)
            return _winner((candidate, *key, ids))

        order = order.at[inner : inner + rows // BLOCK].set(jax.vmap(of_rows)(blocks, index))
        stop = inner
        while stop > 0:  # from the bottom up, those at once of which none is below another
            start = (stop - 1 + BLOCK - 1) // BLOCK
            below = order[BLOCK * start + 1 : BLOCK * stop + 1].reshape(-1, BLOCK, WORDS + 1)
            order = order.at[start:stop].set(jax.vmap(lambda block: _winner(_contenders(block)))(below))
            stop = start
        out.append(order)
    return jnp.stack(out)
