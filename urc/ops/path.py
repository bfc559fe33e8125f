"""What happens along a path, from a node up to the root."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from urc.components.base import Component
from urc.config import CacheConfig
from urc.state import CacheState
from urc.tables.packed import NULL, Row, Table

NOTHING = 2**31 - 1
"""A position beyond every node's end: from there on, there is nothing."""


def walk_up(nodes: Table, node: jax.Array, visit: Callable[[Row], Row]) -> Table:
    """`nodes` with every row from `node` (i32[]) up to, not including, the root replaced by `visit` of it."""

    def body(carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
        nodes, at = carry
        nodes = nodes.put(at, visit(nodes.get(at)))
        return nodes, nodes.cells(at)["parent"]  # read after the write: the two reads would not be ordered before it

    return lax.while_loop(lambda carry: carry[1] > 0, body, (nodes, node))[0]


def touched(row: Row, component: Component, now: tuple[jax.Array, jax.Array], applies: jax.Array) -> Row:
    """The row after an access by one component at the time `now`, where it `applies` (bool[])."""
    columns = [component.column(field) for field in ("stamp_hi", "stamp_lo")]
    words = zip(columns, now, strict=True)
    return row | {column: jnp.where(applies, word, row[column]) for column, word in words}


def stamp(row: Row, config: CacheConfig, end: jax.Array, now: tuple[jax.Array, jax.Array]) -> Row:
    """The row after a use of the path up to `end` (i32[], tokens) at the time `now`."""
    for component in config.components:
        row = touched(row, component, now, component.touches(row, end, config.page_size))
    return row


def refresh_path(
    state: CacheState, node: jax.Array, end: jax.Array, *, above: jax.Array | int, also: tuple[jax.Array, ...] = ()
) -> CacheState:
    """Puts the nodes of the path up to `node` (i32[], NULL: none) that have changed where they now belong.

    Only a path's last node can be a leaf. Of the nodes above it, those matter that end beyond `above` (i32[], tokens),
    and to a component which evicts from internal nodes too, those that it touches, using the path up to `end`; they are
    the path's lower part, so the climb ends where they do. `also`: nodes (i32[], NULL: none) beside it.
    """
    page_size = state.config.page_size

    def climb(component: Component, nodes: Table, at: jax.Array) -> jax.Array:
        parent = nodes.cells(at)["parent"]
        row = nodes.cells(parent)
        goes_on = row["end"] > above
        if component.evicts_internal:
            goes_on = goes_on | component.touches(row, end, page_size)
        return jnp.where((parent > 0) & goes_on, parent, NULL)

    return state.refresh(*also, jnp.where(node > 0, node, NULL), climb=climb)
