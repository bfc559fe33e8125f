"""Closing the holes that deleted runs leave in the token arena."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from urc.state import CacheState
from urc.tables.packed import move_run, on_cpu, read_first

BITS = 8
"""Bits of a start that one pass of the radix sort looks at."""


def _by_sort(start: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(rows with tokens in the order of their runs, i32[rows], rows without behind them; how many have some)."""
    order = jnp.argsort(jnp.where(length > 0, start, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)
    return order, jnp.sum(length > 0, dtype=jnp.int32)


def _for(start: int, stop: jax.Array | int, step: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
    """`lax.fori_loop`, whose counter would be three constants that stand alone (see `urc.numbers`)."""
    more = lambda each: stop > each[0]
    return lax.while_loop(more, lambda each: (each[0] + 1, step(*each)), (jnp.int32(start), carry))[1]


def _by_radix(start: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_by_sort` for CPUs, whose sort is a call out of a kernel; in loops that touch a row at a time."""
    (rows,) = start.shape
    bump = lambda ends, at, by: lax.dynamic_update_slice(ends, (ends[at] + by)[None], (at,))

    def gather(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        order, live = carry
        # a row without tokens is overwritten by the next one
        return lax.dynamic_update_slice(order, i[None], (live,)), live + (length[i] > 0)

    def by_digit(i: jax.Array, order: jax.Array) -> jax.Array:
        digit = lambda row: start[row] >> i * BITS & (2**BITS - 1)
        ends = _for(0, live, lambda i, ends: bump(ends, digit(order[i]), 1), jnp.zeros(2**BITS, jnp.int32))
        ends = _for(1, 2**BITS, lambda i, ends: bump(ends, i, ends[i - 1]), ends)

        def place(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            ends, out = carry
            row = order[live - 1 - i]  # from the last on: what has the same digit stays in order
            ends = bump(ends, digit(row), -1)
            return ends, lax.dynamic_update_slice(out, row[None], (ends[digit(row)],))

        return _for(0, live, place, (ends, order))[1]

    order, live = _for(0, rows, gather, (jnp.zeros(rows, jnp.int32), jnp.int32(0)))
    return _for(0, -(-31 // BITS), by_digit, order), live


def compact(state: CacheState, applies: jax.Array) -> CacheState:
    """Moves all runs down, in order, so that `arena_top` = `arena_live`. No-op unless `applies` (bool[]).

    In place, one run after the other: O(nodes log nodes + tokens), on a CPU O(nodes + tokens). An arena that is a
    constant factor larger than what lives in it pays this back: O(1) per inserted token.
    """
    config = state.config

    def body(carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
        state, _ = carry
        start, length = (state.nodes.data[:, state.nodes.columns.index(name)] for name in ("start", "length"))
        order, live = on_cpu(_by_radix, _by_sort, start, length)

        def move(i: jax.Array, carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
            state, top = carry
            row = read_first(state.true(), lambda nodes: nodes.get(order[i]), state.nodes)
            tokens = move_run(state.tokens, top, row["start"], row["length"])
            stores = {c.name: c.move(state.stores[c.name], top, row["start"], row["length"]) for c in config.components}
            nodes = state.nodes.put(order[i], row | {"start": top})
            return state.replace(nodes=nodes, tokens=tokens, stores=stores), top + row["length"]

        state, top = _for(0, live, move, (state, jnp.int32(0)))
        return state.with_scalars(arena_top=top), jnp.bool_(False)

    return lax.while_loop(lambda carry: carry[1], body, (state, applies))[0]
