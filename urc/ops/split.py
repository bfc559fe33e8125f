"""Cutting a node in two."""

import jax
import jax.numpy as jnp
from jax import lax

from urc.ops.path import touched
from urc.ops.walk import front_part
from urc.state import CacheState
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

    def read(state: CacheState) -> dict[str, jax.Array | Row]:
        row = state.nodes.get(node)
        scalars = state.scalars.get(0)
        free = scalars["free_head"]
        inside = (node > 0) & (cut > 0) & (cut < row["length"]) & (cut % page == 0)
        first_page = lax.dynamic_slice(state.tokens, (row["start"] + cut,), (page,))
        edge = children.page_hash(free, row["namespace"], first_page)
        before = children.predecessor(state.heads, state.nodes, jnp.where(inside, node, 0))
        return {
            "row": row,
            "free_row": state.nodes.get(free),
            "front": jnp.where(inside, free, NULL),
            "free_nodes": scalars["free_nodes"],
            "edge": edge,
            "before": before,
            "old_head": state.heads[children.bucket_of(state.heads, row["hash"])],
            "rear_head": state.heads[children.bucket_of(state.heads, edge)],
        }

    plan = read_first(state.true(), read, state)
    row, front_index, before = plan["row"], plan["front"], plan["before"]
    applies = front_index >= 0
    front, rear = front_part(row, cut, config)
    front |= {"children": jnp.int32(1), "generation": plan["free_row"]["generation"]}
    rear |= {"parent": front_index, "hash": plan["edge"]}
    refreshing = [component for component in config.components if component.split_refreshes]
    if refreshing:
        state, now = state.tick(applies)
        for component in refreshing:
            front, rear = (touched(row, component, now, jnp.bool_(True)) for row in (front, rear))

    # The front takes the node's place in its bucket, whose chain may start with it; then the rear joins its own.
    leads = before < 0
    old_bucket = children.bucket_of(state.heads, row["hash"])
    new_bucket = children.bucket_of(state.heads, plan["edge"])
    rear |= {"next": jnp.where(leads & (old_bucket == new_bucket), front_index, plan["rear_head"])}
    heads = state.heads.at[old_bucket].set(jnp.where(applies & leads, front_index, plan["old_head"]))
    heads = heads.at[new_bucket].set(
        jnp.where(applies, node, jnp.where(old_bucket == new_bucket, plan["old_head"], plan["rear_head"]))
    )
    nodes = state.nodes.put(front_index, front)
    nodes = nodes.put(jnp.where(applies, node, NULL), rear)
    nodes = nodes.set(jnp.where(applies, before, NULL), next=front_index)
    state = state.replace(nodes=nodes, heads=heads)
    scalars = state.scalars.get(0)
    state = state.with_scalars(
        free_head=jnp.where(applies, plan["free_row"]["next"], scalars["free_head"]),
        free_nodes=scalars["free_nodes"] - applies,
    )
    return state, front_index
