"""Cutting a node in two."""

import jax
import jax.numpy as jnp

from urc.ops.path import touched
from urc.ops.walk import front_part
from urc.state import CacheState, once
from urc.tables import children
from urc.tables.packed import NULL, Row, read_first


def split(state: CacheState, node: jax.Array, cut: jax.Array) -> tuple[CacheState, jax.Array]:
    """Cuts `node` (i32[], a row) after `cut` of its tokens (i32[], whole pages); no tokens or slots move.

    Returns the state and the row of the front part, NULL if nothing was done: `cut` does not lie inside the node,
    or no row is free. The front part is new and takes the node's place under its parent; the rear part keeps the
    node's row. Not an access, except for components whose `split_refreshes`.
    """
    state, front = cut_node(state, node, cut)
    return state.refresh(front, jnp.where(front >= 0, node, NULL)), front


def cut_node(state: CacheState, node: jax.Array, cut: jax.Array) -> tuple[CacheState, jax.Array]:
    """`split`, but for the victim orders: both parts have other lengths than the node had, and so perhaps another
    place in them, and are the caller's to refresh.
    """
    config = state.config
    page = config.page_size
    length = read_first(state.true(), lambda nodes: nodes.cells(node)["length"], state.nodes)
    inside = (node > 0) & (cut > 0) & (cut < length) & (cut % page == 0)
    applies = inside & (state.scalars.get(0)["free_head"] >= 0)
    refreshing = [component for component in config.components if component.split_refreshes]
    now = (jnp.int32(0), jnp.int32(0))
    if refreshing:
        state, now = state.tick(applies)

    def read(state: CacheState) -> dict[str, jax.Array | Row]:
        row, scalars = state.nodes.get(node), state.scalars.get(0)
        at = row["start"] + cut
        edge = children.edge_hash(scalars["free_head"], row["namespace"], state.tokens, at, page)
        return {
            "row": row,
            "scalars": scalars,
            "free": state.nodes.get(scalars["free_head"]),
            "edge": edge,
            "before": children.predecessor(state.heads, state.nodes, node, row["hash"]),
            "old_head": state.heads[children.bucket_of(state.heads, row["hash"])],
            "rear_head": state.heads[children.bucket_of(state.heads, edge)],
        }

    def cut_in_two(state: CacheState) -> tuple[CacheState, jax.Array]:
        plan = read_first(state.true(), read, state)
        row, before, scalars, free = plan["row"], plan["before"], plan["scalars"], plan["free"]
        at = scalars["free_head"]
        front, rear = front_part(row, cut, config)
        front |= {"children": 1, "generation": free["generation"]}
        for component in refreshing:
            front, rear = (touched(row, component, now, jnp.bool_(True)) for row in (front, rear))

        # The front takes the node's place in its bucket, whose chain may start with it; then the rear joins its own.
        old, new = (children.bucket_of(state.heads, edge) for edge in (row["hash"], plan["edge"]))
        leads = before < 0
        following = jnp.where(leads & (old == new), at, plan["rear_head"])
        heads = state.heads.at[old].set(jnp.where(leads, at, plan["old_head"])).at[new].set(node)
        nodes = state.nodes.put(at, front).put(node, rear | {"parent": at, "hash": plan["edge"], "next": following})
        state = state.replace(nodes=nodes.set(before, next=at), heads=heads)
        state = state.with_scalars(free_head=free["next"], free_nodes=scalars["free_nodes"] - 1)
        return state, at

    return once(applies, cut_in_two, state, jnp.int32(NULL))
