"""Slots of paths, and results as rows: the numbers of each in front, then its slots, component after component."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from urc.config import CacheConfig
from urc.ops.walk import Walk, front_part, walk, whole_page, whole_pages
from urc.state import CacheState
from urc.tables.packed import NULL, Row, cells, run

_ALIGNMENT = 16
"""Entries: slots begin where a CPU's vectors do."""


class Layout(NamedTuple):
    """Where what belongs to one key lies in its row, in entries."""

    lead: int  # numbers in front
    places: dict[str, int]  # where a component's slots begin
    rooms: dict[str, int]  # how many there may be
    size: int  # of the row


@functools.cache
def layout(config: CacheConfig, tokens: int, lead: int = 0) -> Layout:
    """Of rows for keys of at most `tokens` tokens: as many slots as an insert of one takes. `lead`: see `Layout`."""
    unit = _ALIGNMENT if lead else 1
    up = lambda n: -(-n // unit) * unit
    rooms = {component.name: max(component.counts(tokens, tokens)) for component in config.components}
    places, end = {}, up(lead)
    for name, room in rooms.items():
        places[name], end = end, end + up(room)
    return Layout(up(lead), places, rooms, end)


def by_component(rows: Any, layout: Layout) -> dict[str, Any]:
    """Per component the slots i32[..., n] in rows i32[..., m]."""
    return {name: rows[..., place : place + layout.rooms[name]] for name, place in layout.places.items()}


def read_slots(state: CacheState, node: jax.Array, cut: jax.Array, width: int) -> dict[str, jax.Array]:
    """Per component the slots i32[n] of the path that ends at `node`, or `cut` > 0 tokens into it.

    n: what an insert of a key of `width` tokens takes at most.
    """
    form = layout(state.config, width)
    out = jnp.full(form.size, NULL, jnp.int32)
    return by_component(write_slots(state, node, cut, out, jnp.int32(0), form), form)


def write_slots(
    state: CacheState, node: jax.Array, cut: jax.Array, out: jax.Array, row: jax.Array, form: Layout
) -> jax.Array:
    """`out` (i32[m]) with the slots of a path (see `read_slots`) in the row that begins at out[row] (i32[])."""
    config = state.config

    def row_of(at: jax.Array) -> Row:
        row = state.nodes.cells(at)
        front, inside = front_part(row, cut, config)[0], (at == node) & (cut > 0)
        return cells(lambda name: jnp.where(inside, front[name], row[name]))

    end = row_of(node)["end"]
    for component in config.components:  # each climbs as far as it reads
        place = row + form.places[component.name]

        def body(
            carry: tuple[jax.Array, jax.Array], component: Any = component, place: jax.Array = place
        ) -> tuple[jax.Array, jax.Array]:
            out, at = carry
            row = row_of(at)
            out, parent = component.read(state.stores[component.name], row, end, out, place), row["parent"]
            return out, jnp.where(component.reads(state.nodes.cells(parent), end), parent, NULL)

        out, _ = lax.while_loop(lambda carry: carry[1] > 0, body, (out, node))
    return out


Head = Callable[[Any], jax.Array]
"""What a row begins with (i32[.., k], k <= `Layout.lead`), of a result."""

One = Callable[
    [CacheState, jax.Array, Callable[[CacheState], Walk]],
    tuple[CacheState, Any, jax.Array | None, jax.Array, jax.Array],
]
"""`one(state, i, walk)` makes of the walk of key i (`walk(state)`) the state, a result, the numbers that its row begins
with (i32[k], or None), and the node to the end of whose path, or how far into which, slots are wanted."""


class Keys(NamedTuple):
    """B keys in one array."""

    tokens: jax.Array  # i32[n]
    bases: jax.Array  # i32[B], where each begins; from there on there is a page at least
    lengths: jax.Array  # i32[B], tokens; those in whole pages count
    namespaces: jax.Array  # i32[B]
    width: int  # the most tokens of one

    @classmethod
    def of(cls, config: CacheConfig, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array) -> "Keys":
        """Of rows i32[B, K]."""
        padded = jax.vmap(lambda key: whole_page(key, config))(keys)
        bases = jnp.arange(len(keys), dtype=jnp.int32) * padded.shape[1]
        return cls(padded.reshape(-1), bases, lengths, namespaces, keys.shape[1])

    def rows(self) -> jax.Array:
        """i32[B, width]; what lies behind a key is any token."""
        return jax.vmap(lambda base: run(self.tokens, base, self.width))(self.bases)


def each_in_place(state: CacheState, keys: Keys, one: One, form: Layout) -> tuple[CacheState, Any, jax.Array]:
    """B keys in turn, which are read, and slots written, where they lie: none of them is copied.

    Returns the state, all results, and the rows, one after the other (i32[B * form.size]).
    """
    number = len(keys.bases)
    lengths = whole_pages(jnp.clip(jnp.asarray(keys.lengths, jnp.int32), 0, keys.width), state.config)

    def step(carry: tuple[CacheState, jax.Array], query: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        state, out = carry
        i, base, length, namespace = query
        walk_of = lambda s: walk(s.config, s.nodes, s.heads, s.tokens, keys.tokens, length, namespace, base)
        state, result, head, node, cut = one(state, i, walk_of)
        out = write_slots(state, node, cut, out, i * form.size, form)
        if head is not None:
            out = lax.dynamic_update_slice(out, head, (i * form.size,))
        return (state, out), result

    queries = jnp.arange(number, dtype=jnp.int32), keys.bases, lengths, keys.namespaces
    out = jnp.full(number * form.size, NULL, jnp.int32)
    (state, out), results = lax.scan(step, (state, out), queries)
    return state, results, out
