"""Closing the holes that deleted runs leave in the token arena."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc.state import ROOT, CacheState
from urc.tables import children
from urc.tables.packed import NULL, Table, move_run, on_cpu, read_first

BITS = 8
"""Bits of a start that one pass of the radix sort looks at."""


def _for(start: jax.Array | int, stop: jax.Array | int, step: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
    """`lax.fori_loop`, whose counter would be three constants that stand alone (see `urc.numbers`)."""
    more = lambda each: stop > each[0]
    return lax.while_loop(more, lambda each: (each[0] + 1, step(*each)), (jnp.asarray(start, jnp.int32), carry))[1]


def by_radix(
    start: Callable[[jax.Array], jax.Array], length: Callable[[jax.Array], jax.Array], room: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(`room`, which begins with the rows that have tokens, in the order of their runs; how many have some).

    `start` and `length` (i32[]) of a row; there are half as many rows as entries in `room` (i32[n]).
    For CPUs, whose sort is a call out of a kernel: in loops that touch a row at a time.
    """
    rows = len(room) // 2
    write = lambda array, at, value: lax.dynamic_update_slice(array, value[None], (at,))
    bump = lambda ends, at, by: write(ends, at, ends[at] + by)

    def gather(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        room, live = carry
        return write(room, live, i), live + (length(i) > 0)  # a row without tokens is overwritten by the next one

    def by_digit(i: jax.Array, room: jax.Array) -> jax.Array:
        digit = lambda row: start(row) >> i * BITS & (2**BITS - 1)
        old, new = (i & 1) * rows, (1 - (i & 1)) * rows  # an even number of passes: the last one's are in front
        ends = jnp.zeros(2**BITS, jnp.int32)
        ends = _for(0, live, lambda i, ends: bump(ends, digit(room[old + i]), 1), ends)
        ends = _for(1, 2**BITS, lambda i, ends: bump(ends, i, ends[i - 1]), ends)

        def place(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            ends, room = carry
            row = room[old + live - 1 - i]  # from the last on: what has the same digit stays in order
            ends = bump(ends, digit(row), -1)
            return ends, write(room, new + ends[digit(row)], row)

        return _for(0, live, place, (ends, room))[1]

    room, live = _for(0, rows, gather, (room, jnp.int32(0)))
    return _for(0, 32 // BITS, by_digit, room), live


def _moved(state: CacheState, live: jax.Array, row_at: Callable[[CacheState, jax.Array], jax.Array]) -> CacheState:
    """All runs moved down, in the order of `row_at(state, i)`, i < live."""
    config = state.config

    def move(i: jax.Array, carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
        state, top = carry
        at = row_at(state, i)
        row = read_first(state.true(), lambda nodes: nodes.get(at), state.nodes)
        tokens = move_run(state.tokens, top, row["start"], row["length"])
        stores = {c.name: c.move(state.stores[c.name], top, row["start"], row["length"]) for c in config.components}
        nodes = state.nodes.put(at, row | {"start": top})
        return state.replace(nodes=nodes, tokens=tokens, stores=stores), top + row["length"]

    state, top = _for(0, live, move, (state, jnp.int32(0)))
    return state.with_scalars(arena_top=top)


def _with_sorted(state: CacheState) -> CacheState:
    start, length = (state.nodes.data[:, state.nodes.columns.index(name)] for name in ("start", "length"))
    order = jnp.argsort(jnp.where(length > 0, start, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)
    return _moved(state, jnp.sum(length > 0, dtype=jnp.int32), lambda _, i: order[i])


def _in_heads(state: CacheState) -> CacheState:
    """The order is made in the heads of the child table, which are made again afterwards.

    An array of its own would be there in every insert, though one in many compacts: XLA allocates it before it knows.
    """
    column = lambda name: lambda row: state.nodes.cells(jnp.minimum(row, state.nodes.spare))[name]
    heads, live = by_radix(column("start"), column("length"), state.heads)
    state = _moved(state.replace(heads=heads), live, lambda state, i: state.heads[i])
    # Only once all is moved, which XLA would not see otherwise: what is moved last decides where this begins.
    first = jnp.where(state.scalars.get(0)["arena_top"] < 0, 1, 0)
    empty = lambda i, heads: lax.dynamic_update_slice(heads, _NOTHING, (i * len(_NOTHING),))
    heads = _for(first, len(heads) // len(_NOTHING), empty, state.heads)

    def look(nodes: Table, heads: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
        row = nodes.cells(i)
        bucket = children.bucket_of(heads, row["hash"])
        return (row["length"] > 0) & (i != ROOT), bucket, heads[bucket]

    def link(i: jax.Array, carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
        nodes, heads = carry
        is_child, bucket, old = read_first(true, look, nodes, heads, i)
        nodes = nodes.set(jnp.where(is_child, i, NULL), next=old)
        return nodes, lax.dynamic_update_slice(heads, jnp.where(is_child, i, old)[None], (bucket,))

    true = state.true()
    nodes, heads = _for(0, state.nodes.spare, link, (state.nodes, heads))
    return state.replace(nodes=nodes, heads=heads)


_NOTHING = np.full(8, NULL, np.int32)  # of heads there are eight or more, and a power of two


def compact(state: CacheState, applies: jax.Array) -> CacheState:
    """Moves all runs down, in order, so that `arena_top` = `arena_live`. No-op unless `applies` (bool[]).

    In place, one run after the other: O(nodes log nodes + tokens), on a CPU O(nodes + tokens). An arena that is a
    constant factor larger than what lives in it pays this back: O(1) per inserted token.
    """

    def body(carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
        return on_cpu(_in_heads, _with_sorted, carry[0]), jnp.bool_(False)

    return lax.while_loop(lambda carry: carry[1], body, (state, applies))[0]
