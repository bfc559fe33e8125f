"""evict: each component frees from its own order until its target is met or nothing evictable is left."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from urc.components.base import Component
from urc.state import CacheState, is_device_leaf, next_generation
from urc.tables import children
from urc.tables.packed import NULL, Row, Table, read_first


class Evicted(struct.PyTreeNode):
    """What an eviction did, per component."""

    evicted: dict[str, jax.Array]  # i32[], slots freed
    freed: dict[str, tuple[jax.Array, jax.Array]]  # (start, count) i32[]: the same slots, as a run of the pool


def _receded(sessions: Table, node: jax.Array, parent: jax.Array, end: jax.Array, referenced: jax.Array) -> Table:
    """Sessions that end at `node`, which leaves the tree, end at its parent, at `end`. No-op unless `referenced`."""
    column = sessions.columns.index("node")

    def body(carry: tuple[Table, jax.Array]) -> tuple[Table, jax.Array]:
        sessions, at = carry
        sessions = sessions.put(at, sessions.get(at) | {"node": parent, "end": end})
        return sessions, first(sessions)

    def first(sessions: Table) -> jax.Array:
        here, rows = sessions.data[:, column] == node, np.arange(sessions.data.shape[0], dtype=np.int32)
        return jnp.max(jnp.where(here, rows, NULL))

    start = lax.cond(referenced, first, lambda _: jnp.int32(NULL), sessions)
    return lax.while_loop(lambda carry: carry[1] >= 0, body, (sessions, start))[0]


def remove_leaf(state: CacheState, node: jax.Array) -> tuple[CacheState, jax.Array]:
    """Takes a childless node (i32[]; NULL: no-op) that holds no values out of the tree. Returns its parent's row."""

    def read(state: CacheState) -> dict[str, jax.Array | Row]:
        row = state.nodes.get(node)
        return {
            "row": row,
            "parent_row": state.nodes.get(row["parent"]),
            "before": children.predecessor(state.heads, state.nodes, jnp.maximum(node, 0)),
            "head": state.heads[children.bucket_of(state.heads, row["hash"])],
            "scalars": state.scalars.get(0),
        }

    plan = read_first(state.true(), read, state)
    row, before, scalars = plan["row"], plan["before"], plan["scalars"]
    applies = node >= 0
    referenced = applies & (row[state.config.components[0].column("session")] > 0)
    sessions = _receded(state.sessions, node, row["parent"], plan["parent_row"]["end"], referenced)
    parent = jnp.where(applies, row["parent"], NULL)
    bucket = children.bucket_of(state.heads, row["hash"])
    head = jnp.where(applies & (before < 0), row["next"], plan["head"])
    nodes = state.nodes.set(jnp.where(applies, before, NULL), next=row["next"])
    nodes = nodes.set(parent, children=plan["parent_row"]["children"] - 1)
    gone = {"parent": NULL, "length": 0, "next": scalars["free_head"], "generation": next_generation(row["generation"])}
    gone |= {component.column("session"): 0 for component in state.config.components}
    nodes = nodes.put(node, row | gone)
    state = state.replace(nodes=nodes, heads=state.heads.at[bucket].set(head), sessions=sessions)
    state = state.with_scalars(
        free_head=jnp.where(applies, node, scalars["free_head"]),
        free_nodes=scalars["free_nodes"] + applies,
        arena_live=scalars["arena_live"] - jnp.where(applies, row["length"], 0),
    )
    return state, parent


def release(state: CacheState, node: jax.Array, row: Row, goes: dict[str, jax.Array]) -> CacheState:
    """Frees the values of `node` (i32[], `row`) of the components that go (bool[]), as far as they are not locked."""
    for component in state.config.components:
        name = component.name
        free = goes[name] & component.has_value(row) & (row[component.column("lock")] == 0)
        ledger = state.ledger(component, state.scalars.get(0))
        store, ledger, row = component.release(state.stores[name], ledger, row, free)
        state = state.with_store(component, store, ledger)
    return state.replace(nodes=state.nodes.put(node, row))


def _evict_one(state: CacheState, driver: Component) -> CacheState:
    """Evicts the first in the driver's victim order: a leaf whole, on an internal node the driver and lower ranks."""
    config = state.config
    node = state.first_victim(driver)
    row = read_first(state.true(), lambda nodes: nodes.get(node), state.nodes)
    leaf = is_device_leaf(row, config.components)
    lower = {c.name: (c.name == driver.name) | (c.rank < driver.rank) for c in config.components}
    state = release(state, node, row, {name: leaf | goes for name, goes in lower.items()})
    state, parent = remove_leaf(state, jnp.where(leaf, node, NULL))
    return state.refresh(node, jnp.where(parent > 0, parent, NULL))


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
