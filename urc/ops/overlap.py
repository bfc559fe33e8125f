"""What an insert does along the nodes of its key: cuts them where values begin, adopts or frees slot by slot, thins."""

import jax
import jax.numpy as jnp
from jax import lax

from urc.components.base import Component, Insertion
from urc.config import CacheConfig
from urc.ops.evict import release
from urc.ops.path import touched
from urc.ops.split import cut_node
from urc.ops.walk import Walk
from urc.state import CacheState
from urc.tables.packed import NULL, Row, Table, read_first

Insertions = dict[str, Insertion]
"""Component name -> what the insert hands to it."""


def _containing(nodes: Table, node: jax.Array, position: jax.Array) -> tuple[jax.Array, Row]:
    """The node (i32[]) of the path up to `node` that starts before `position` and ends there or beyond, and its row."""

    def climb(carry: tuple[jax.Array, Row]) -> tuple[jax.Array, Row]:
        parent = carry[1]["parent"]
        return parent, nodes.get(parent)

    above = lambda carry: (carry[0] > 0) & (carry[1]["end"] - carry[1]["length"] >= position)
    return lax.while_loop(above, climb, (node, nodes.get(node)))


def planned_cuts(config: CacheConfig, nodes: Table, found: Walk, insertions: Insertions) -> tuple[jax.Array, jax.Array]:
    """The positions (i32[n]) at which the insert cuts its path once it is there, 0 for none; and how many there are.

    A component's cut applies if it lies strictly inside a node that lacks the component; `found` is the path so far.
    """
    positions: list[jax.Array] = []
    for component in config.components:
        insertion = insertions[component.name]
        for position in component.cuts(insertion, config.page_size):
            node, row = _containing(nodes, found.deepest, position)
            end = jnp.where(
                node == found.deepest, found.length, row["end"]
            )  # as it will be cut where the key leaves it
            walked = (position > row["end"] - row["length"]) & (position < end) & ~component.has_value(row)
            made = (position > found.length) & (position < insertion.key_len)
            wanted = (position > 0) & (walked | made)
            for other in positions:
                wanted = wanted & (position != other)
            positions.append(jnp.where(wanted, position, 0))
    cuts = jnp.stack(positions) if positions else jnp.zeros(0, jnp.int32)
    return cuts, jnp.sum(cuts > 0, dtype=jnp.int32)


def cut_path(state: CacheState, end: jax.Array, cuts: jax.Array) -> CacheState:
    """The path up to `end` (i32[]) cut at the positions (i32[n]; 0: none). Victim orders are the caller's to mend."""
    if not cuts.size:
        return state

    def body(carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
        state, cuts = carry
        cut = jnp.max(cuts)  # from the deepest up, so that what is above stays one node till it is cut itself
        node, row = read_first(state.true(), lambda nodes: _containing(nodes, end, cut), state.nodes)
        state, _ = cut_node(state, node, cut - (row["end"] - row["length"]))
        return state, jnp.where(cuts == cut, 0, cuts)

    return lax.while_loop(lambda carry: jnp.max(carry[1]) > 0, body, (state, cuts))[0]


def overlap_path(
    state: CacheState, end: jax.Array, insertions: Insertions, now: tuple[jax.Array, jax.Array]
) -> tuple[CacheState, jax.Array]:
    """Every component adopts or frees what is handed in for the nodes of the path up to `end` (i32[]).

    Returns the state and the least position (i32[]) at which a node that has adopted anything starts.
    """
    config = state.config
    froms = {c.name: c.overlaps_from(insertions[c.name]) for c in config.components}
    froms = {name: position for name, position in froms.items() if position is not None}
    nothing = insertions[config.components[0].name].key_len
    if not froms:
        return state, nothing
    least = jnp.min(jnp.stack(list(froms.values())))
    involved = [component for component in config.components if component.name in froms]

    def body(carry: tuple[CacheState, jax.Array, jax.Array]) -> tuple[CacheState, jax.Array, jax.Array]:
        state, at, adopted_from = carry
        row = read_first(state.true(), lambda nodes: nodes.get(at), state.nodes)
        for component in involved:
            name = component.name
            ledger = state.ledger(component, state.scalars.get(0))
            store, ledger, row, adopts = component.overlap(state.stores[name], ledger, row, insertions[name])
            row = touched(row, component, now, adopts)
            state = state.with_store(component, store, ledger)
            start = row["end"] - row["length"]
            adopted_from = jnp.where(adopts, jnp.minimum(adopted_from, start), adopted_from)
        nodes = state.nodes.put(at, row)
        row = nodes.get(at)  # as written: see `walk_up`
        goes_on = row["end"] - row["length"] > least
        return state.replace(nodes=nodes), jnp.where(goes_on, row["parent"], NULL), adopted_from

    starts = jnp.where((end > 0) & (nothing > least), end, NULL)
    state, _, adopted_from = lax.while_loop(lambda carry: carry[1] > 0, body, (state, starts, nothing))
    return state, adopted_from


def thin(state: CacheState, end: jax.Array, component: Component) -> CacheState:
    """Leaves at most `most_per_path` values of a component on the path up to `end` (i32[]; NULL: no-op).

    Spared, though counted, are those of the end node, of forks, and of nodes that the component has locked: what others
    resume at. Of the rest the deepest stay.
    """
    most = component.most_per_path
    if most is None:
        return state
    lock = component.column("lock")

    def spared(row: Row, at: jax.Array) -> jax.Array:
        return (at == end) | (row["children"] != 1) | (row[lock] > 0)

    def surplus(nodes: Table) -> tuple[jax.Array, Row]:
        """The first node, from the end up, whose value is one too many."""

        def count(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            at, fixed = carry
            row = nodes.get(at)
            return row["parent"], fixed + (component.has_value(row) & spared(row, at))

        def climb(carry: tuple[jax.Array, Row, jax.Array]) -> tuple[jax.Array, Row, jax.Array]:
            at, row, kept = carry
            counts = component.has_value(row) & ~spared(row, at)
            return row["parent"], nodes.get(row["parent"]), kept + counts

        def fits(carry: tuple[jax.Array, Row, jax.Array]) -> jax.Array:
            at, row, kept = carry
            return (at > 0) & (~component.has_value(row) | spared(row, at) | (kept < most))

        _, fixed = lax.while_loop(lambda carry: carry[0] > 0, count, (end, jnp.int32(0)))
        at, row, _ = lax.while_loop(fits, climb, (end, nodes.get(end), fixed))
        return at, row

    def body(carry: tuple[CacheState, jax.Array, Row]) -> tuple[CacheState, jax.Array, Row]:
        state, at, row = carry
        goes = {c.name: jnp.bool_(c.name == component.name) for c in state.config.components}
        state, row, counters = release(state, row, goes)
        state = state.with_scalars(**counters)
        state = state.replace(nodes=state.nodes.put(at, row)).refresh(at)
        return (state, *read_first(state.true(), surplus, state.nodes))

    first = read_first(state.true(), surplus, state.nodes)
    return lax.while_loop(lambda carry: carry[1] > 0, body, (state, *first))[0]
