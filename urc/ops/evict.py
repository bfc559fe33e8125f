"""evict: each component frees from its own order until its target is met or nothing evictable is left."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from urc.components.base import Component
from urc.state import CacheState, is_device_leaf, next_generation, once
from urc.tables import children
from urc.tables.packed import NULL, Row, Table, on_cpu, read_first, select


class Evicted(struct.PyTreeNode):
    """What an eviction did, per component."""

    evicted: dict[str, jax.Array]  # i32[], slots freed
    freed: dict[str, tuple[jax.Array, jax.Array]]  # (start, count) i32[]: the same slots, as a run of the pool


def _receded(sessions: Table, node: jax.Array, parent: jax.Array, end: jax.Array, referenced: jax.Array) -> Table:
    """Sessions that end at `node`, which leaves the tree, end at its parent, at `end`. No-op unless `referenced`."""
    column, rows = sessions.columns.index("node"), sessions.data.shape[0]

    def in_turn(sessions: Table) -> Table:
        def body(carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
            sessions, at = carry
            row = sessions.get(at)
            here = row["node"] == node
            return sessions.put(at, select(here, row | {"node": parent, "end": end}, row)), at + 1

        start = jnp.where(referenced, 0, rows)
        return lax.while_loop(lambda carry: carry[1] < rows - 1, body, (sessions, start))[0]

    def at_once(sessions: Table) -> Table:
        def first(sessions: Table) -> jax.Array:
            here = sessions.data[:, column] == node
            return jnp.max(jnp.where(here, np.arange(rows, dtype=np.int32), NULL))

        def body(carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
            sessions, at = carry
            sessions = sessions.put(at, sessions.get(at) | {"node": parent, "end": end})
            return sessions, first(sessions)

        start = lax.cond(referenced, first, lambda _: jnp.int32(NULL), sessions)
        return lax.while_loop(lambda carry: carry[1] >= 0, body, (sessions, start))[0]

    return on_cpu(in_turn, at_once, sessions)


def _unlinked(state: CacheState, node: jax.Array, row: Row) -> CacheState:
    """Takes a childless node (i32[]; NULL: no-op) out of its bucket and from under its parent; its `row` is the old."""

    def read(state: CacheState) -> dict[str, jax.Array]:
        return {
            "before": children.predecessor(state.heads, state.nodes, node, row["hash"]),
            "head": state.heads[children.bucket_of(state.heads, row["hash"])],
            "siblings": state.nodes.cells(row["parent"])["children"] - 1,
        }

    def unlink(state: CacheState) -> tuple[CacheState, tuple[()]]:
        plan = read_first(state.true(), read, state)
        before = plan["before"]
        nodes = state.nodes.set(before, next=row["next"]).set(row["parent"], children=plan["siblings"])
        bucket = children.bucket_of(state.heads, row["hash"])
        heads = state.heads.at[bucket].set(jnp.where(before < 0, row["next"], plan["head"]))
        return state.replace(nodes=nodes, heads=heads), ()

    return once(node >= 0, unlink, state, ())[0]


def release(state: CacheState, row: Row, goes: dict[str, jax.Array]) -> tuple[CacheState, Row, dict[str, jax.Array]]:
    """Frees the values of a node (its `row`) of the components that go (bool[]), as far as they are not locked.

    Returns, for the caller to write, the row without them, and the scalars that have changed.
    """
    counters = {}
    for component in state.config.components:
        name = component.name
        free = goes[name] & component.has_value(row) & (row[component.column("lock")] == 0)
        ledger = state.ledger(component, state.scalars.get(0))
        store, ledger, row = component.release(state.stores[name], ledger, row, free)
        state = state.replace(stores={**state.stores, name: store})
        counters |= {component.column(field): value for field, value in ledger.items()}
    return state, row, counters


def _evict_one(state: CacheState, driver: Component) -> CacheState:
    """Evicts the first in the driver's victim order: a leaf whole, on an internal node the driver and lower ranks."""
    config = state.config
    node = state.first_victim(driver)
    old = read_first(state.true(), lambda nodes: nodes.get(node), state.nodes)
    leaf = is_device_leaf(old, config.components)
    lower = {c.name: (c.name == driver.name) | (c.rank < driver.rank) for c in config.components}
    state, row, counters = release(state, old, {name: leaf | goes for name, goes in lower.items()})
    scalars, generation = state.scalars.get(0), next_generation(old["generation"])
    gone = {"parent": NULL, "length": 0, "next": scalars["free_head"], "generation": generation}
    gone |= {component.column("session"): 0 for component in config.components}
    state = state.replace(nodes=state.nodes.put(node, select(leaf, row | gone, row)))
    state = state.with_scalars(
        **counters,
        free_head=jnp.where(leaf, node, scalars["free_head"]),
        free_nodes=scalars["free_nodes"] + leaf,
        arena_live=scalars["arena_live"] - jnp.where(leaf, old["length"], 0),
    )
    state = _unlinked(state, jnp.where(leaf, node, NULL), old)
    referenced = leaf & (old[config.components[0].column("session")] > 0)
    sessions = _receded(state.sessions, node, old["parent"], old["end"] - old["length"], referenced)
    parent = jnp.where(leaf & (old["parent"] > 0), old["parent"], NULL)
    return state.replace(sessions=sessions).refresh(node, parent)


def evict(state: CacheState, targets: dict[str, jax.Array]) -> tuple[CacheState, Evicted]:
    """Frees at least `targets[name]` (i32[], slots) per component, the least valuable first, if that much can go.

    What one component's eviction frees of the others counts toward their targets. Nodes that no session refers to go
    before all others. Leaves go whole, so more may be freed than asked; falling short is no error, the result tells.
    Nothing locked is ever freed. Cost: O(log nodes) and the slots freed, per victim.
    """
    config = state.config
    for name in targets:
        config.component(name)
    before = {c.name: state.ledger(c, state.scalars.get(0))["used"] for c in config.components}

    def freed(state: CacheState, component: Component) -> jax.Array:
        return before[component.name] - state.ledger(component, state.scalars.get(0))["used"]

    for component in config.components:
        if component.name not in targets:
            continue
        target = jnp.asarray(targets[component.name], jnp.int32)

        def short(state: CacheState, component: Component = component, target: jax.Array = target) -> jax.Array:
            left = state.first_victim(component) >= 0
            return left & (freed(state, component) < target)

        state = lax.while_loop(short, lambda state, c=component: _evict_one(state, c), state)
    counts = {c.name: freed(state, c) for c in config.components}
    runs = {c.name: (before[c.name] - counts[c.name], counts[c.name]) for c in config.components}
    return state.drained(), Evicted(evicted=counts, freed=runs)
