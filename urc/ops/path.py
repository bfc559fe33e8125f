"""What happens along a path, from a node up to the root."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from urc.state import CacheState
from urc.tables.packed import NULL, Row, Table, read_first


def walk_up(nodes: Table, node: jax.Array, visit: Callable[[Row], Row]) -> Table:
    """`nodes` with every row from `node` (i32[]) up to, not including, the root replaced by `visit` of it."""

    def body(carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
        nodes, at = carry
        nodes = nodes.put(at, visit(nodes.get(at)))
        return nodes, nodes.get(at)["parent"]  # read after the write: the two reads would not be ordered before it

    return lax.while_loop(lambda carry: carry[1] > 0, body, (nodes, node))[0]


def stamp(row: Row, state: CacheState, end: jax.Array, now: tuple[jax.Array, jax.Array]) -> Row:
    """The row after a use of the path up to `end` (i32[], tokens) at the time `now`."""
    for component in state.config.components:
        touched = component.touches(row, end)
        for field, word in zip(("stamp_hi", "stamp_lo"), now, strict=True):
            column = component.column(field)
            row = row | {column: jnp.where(touched, word, row[column])}
    return row


def refresh_path(state: CacheState, node: jax.Array, end: jax.Array) -> CacheState:
    """Puts the nodes of the path up to `node` (i32[]) that a use or a lock has changed where they now belong.

    Only a path's last node can be a leaf. Of the nodes above it, those matter that a component reads or touches which
    evicts from internal nodes too; they are the path's lower part, so the climb ends where they do.
    """
    state = state.refresh(jnp.where(node > 0, node, NULL))
    inner = [component for component in state.config.components if component.evicts_internal]
    if not inner:
        return state

    def step(carry: tuple[CacheState, jax.Array, jax.Array]) -> tuple[CacheState, jax.Array, jax.Array]:
        state, at, _ = carry
        row = read_first(state.true(), lambda nodes: nodes.get(at), state.nodes)
        used = jnp.bool_(False)
        for component in inner:
            used = used | component.reads(row, end) | component.touches(row, end)
        return state.refresh(jnp.where(used, at, NULL)), jnp.where(used, row["parent"], NULL), used

    above = read_first(state.true(), lambda nodes: nodes.get(node)["parent"], state.nodes)
    first = (state, jnp.where(node > 0, above, NULL), jnp.bool_(True))
    return lax.while_loop(lambda carry: carry[1] > 0, step, first)[0]
