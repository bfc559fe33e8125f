"""Counting who holds the nodes of a path: the requests that lock them, the sessions that refer to them."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from urc.components.base import Component
from urc.ops.path import NOTHING, refresh_path
from urc.state import ROOT, CacheState, NodeRef
from urc.tables.packed import NULL, Row

Since = dict[str, jax.Array]
"""Component -> i32[]: of a path, the nodes that end beyond this position are held; splits do not change that."""


def holds(state: CacheState, node: NodeRef) -> tuple[Row, jax.Array]:
    """The row of a node, and whether (bool[]) it still holds that node."""
    row = state.nodes.get(node.index)
    alive = (node.index == ROOT) | (row["length"] > 0)
    inside = (node.index >= 0) & (node.index < state.nodes.spare)
    return row, inside & alive & (row["generation"] == node.generation)


def _count(
    state: CacheState,
    node: jax.Array,
    end: jax.Array,
    column: str,
    change: int,
    held: Callable[[Component, Row], jax.Array],
    least: jax.Array | int,
) -> tuple[CacheState, Since]:
    """Adds `change` to a count of what each component holds of the path up to `node`, as far as nodes end beyond
    `least`. Returns from where on that is.
    """
    config = state.config
    kinds = len(config.components)
    node = jnp.where(state.true(), node, NULL)  # so that what is written comes after all that was read before

    def visit(row: Row) -> Row:
        for component in config.components:
            count = component.column(column)
            row = row | {count: row[count] + jnp.where(held(component, row), change, 0)}
        return row

    def body(carry: tuple) -> tuple:
        nodes, moved, since, at = carry
        nodes = nodes.put(at, visit(nodes.get(at)))
        row = nodes.cells(at)  # as written: see `walk_up`
        sizes, froms = [], []
        for j, component in enumerate(config.components):
            takes = held(component, row)
            turns = takes & (row[component.column(column)] == max(change, 0))
            sizes.append(jnp.where(turns, component.size(row), 0))
            froms.append(jnp.where(takes, component.held_from(row), since[j]))
        ends = row["end"] - row["length"] <= least
        return nodes, moved + jnp.stack(sizes), jnp.stack(froms), jnp.where(ends, NULL, row["parent"])

    carry = (state.nodes, jnp.zeros(kinds, jnp.int32), jnp.full(kinds, NOTHING, jnp.int32), node)
    nodes, moved, froms, _ = lax.while_loop(lambda carry: carry[3] > 0, body, carry)
    state, since = state.replace(nodes=nodes), {}
    scalars, counters = state.scalars.get(0), {}
    for j, component in enumerate(config.components):
        since[component.name], taken = froms[j], moved[j] * change
        evictable, protected = (component.column(field) for field in ("evictable", "protected"))
        counters |= {evictable: scalars[evictable] - taken, protected: scalars[protected] + taken}
    if column == "lock":
        state = state.with_scalars(**counters)
    inner = [since[c.name] for c in config.components if c.evicts_internal]
    above = functools.reduce(jnp.minimum, inner, jnp.int32(NOTHING))
    return refresh_path(state, node, jnp.int32(NOTHING), above=above), since


def hold(state: CacheState, node: jax.Array, end: jax.Array, column: str) -> tuple[CacheState, Since]:
    """Counts one more that reads the path up to `node` (i32[]; NULL: no-op), which ends at `end`."""
    return _count(state, node, end, column, 1, lambda component, row: component.reads(row, end), 0)


def drop(state: CacheState, node: jax.Array, since: Since, column: str) -> CacheState:
    """Counts one less on exactly what a `hold` took that returned `since`. `node` (i32[]; NULL: no-op)."""
    least = functools.reduce(jnp.minimum, since.values())
    held = lambda component, row: row["end"] > since[component.name]
    return _count(state, node, jnp.int32(0), column, -1, held, least)[0]


def is_held(state: CacheState, row: Row, end: jax.Array, since: Since, column: str) -> jax.Array:
    """bool[]: a hold that ends at `row` may be dropped: something is left of it, and it is counted there."""
    left, counted = jnp.bool_(False), jnp.bool_(True)
    for component in state.config.components:
        mine = since[component.name] < end
        left = left | mine
        counted = counted & (~mine | (row[component.column(column)] > 0))
    return left & counted
