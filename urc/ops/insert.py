"""insert: a key and the slots that hold its state enter the tree."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.arguments import MAX_INT32
from urc.components.base import Insertion
from urc.errors import Status
from urc.ops.compact import compact
from urc.ops.overlap import Insertions, cut_path, overlap_path, planned_cuts, thin
from urc.ops.path import refresh_path, stamp, walk_up
from urc.ops.split import cut_node
from urc.ops.walk import walk, whole_page, whole_pages
from urc.state import ROOT, CacheState, NodeRef, empty_row
from urc.tables import children, clock
from urc.tables.packed import NULL, Row, copy_run, read_first, select


class Inserted(struct.PyTreeNode):
    """Outcome of an insert; unless `status` is OK, nothing has changed and the caller keeps every slot."""

    status: jax.Array  # i32[], a `Status`
    prefix_len: jax.Array  # i32[], tokens of the key that the tree held already
    node: NodeRef  # ends where the key's whole pages end
    existed: dict[str, jax.Array]  # bool[]: the end node had this component's value before
    freed: dict[str, tuple[jax.Array, jax.Array]]  # (start, count) i32[]: what was freed, as a run of the pool


def insert(
    state: CacheState,
    key: jax.Array,
    length: jax.Array,
    slots: dict[str, jax.Array],
    *,
    given: dict[str, jax.Array] | None = None,
    namespace: jax.Array | int = 0,
    prev_prefix_len: jax.Array | int = 0,
    inserted_len: jax.Array | int = 0,
    evicted_len: dict[str, jax.Array] | None = None,
    priority: jax.Array | int = 0,
) -> tuple[CacheState, Inserted]:
    """Inserts key[:length], cut down to whole pages, and takes over the slots.

    Args:
        state: the cache.
        key: i32[K], token ids >= 0.
        length: i32[], tokens.
        slots: component name -> i32[K] (or shorter, for a component with few), slots of the caller's. That of a state
            is after exactly the whole pages of the key; hand in none (`given`) where there is no such state.
        given: component name -> i32[], how many of `slots` are given. Default: `length`. Those beyond the whole
            pages are freed.
        namespace: i32[], isolates keys from each other.
        prev_prefix_len: i32[], tokens whose slots are the tree's own already; at most the prefix it holds.
        inserted_len: i32[], what this same request has inserted before; only nodes beyond it count a hit.
        evicted_len: component name -> i32[], tokens whose slots the caller has given up before.
        priority: i32[], raises that of the nodes on the path.

    Returns:
        The state and an `Inserted`. Refused with BAD_SLOTS (one of them is negative), BAD_PREFIX, NO_FREE_NODE
        or ARENA_FULL. That the slots are the caller's is for the caller (or the host handle) to see to.

    """
    key, length = whole_page(key, state.config), jnp.clip(jnp.asarray(length, jnp.int32), 0, key.shape[0])
    return insert_from(
        state,
        key,
        jnp.int32(0),
        length,
        slots,
        given=given,
        namespace=namespace,
        prev_prefix_len=prev_prefix_len,
        inserted_len=inserted_len,
        evicted_len=evicted_len,
        priority=priority,
    )


def insert_from(
    state: CacheState,
    keys: jax.Array,
    base: jax.Array,
    length: jax.Array,
    slots: dict[str, jax.Array],
    *,
    given: dict[str, jax.Array] | None = None,
    namespace: jax.Array | int = 0,
    prev_prefix_len: jax.Array | int = 0,
    inserted_len: jax.Array | int = 0,
    evicted_len: dict[str, jax.Array] | None = None,
    priority: jax.Array | int = 0,
) -> tuple[CacheState, Inserted]:
    """`insert` of keys[base : base+length] (i32[n], at least a page from `base` on), without a copy of the key."""
    config = state.config
    if set(slots) != {c.name for c in config.components}:
        raise ValueError(f"insert needs slots of {[c.name for c in config.components]}, got {list(slots)}")
    namespace, prev_len, inserted_len, priority, length = (
        jnp.asarray(x, jnp.int32) for x in (namespace, prev_prefix_len, inserted_len, priority, length)
    )
    given = {c.name: length for c in config.components} | (given or {})
    given = {n: jnp.clip(jnp.asarray(count, jnp.int32), 0, slots[n].shape[0]) for n, count in given.items()}
    key_len = whole_pages(length, config)
    handed: Insertions = {
        c.name: Insertion(
            slots=slots[c.name],
            prev_len=prev_len,
            evicted_len=jnp.asarray((evicted_len or {}).get(c.name, 0), jnp.int32),
            given_len=given[c.name],
            key_len=key_len,
            prefix_len=jnp.int32(0),
            applies=jnp.bool_(True),
        )
        for c in config.components
    }

    # Where does it go, and does it fit?
    def find(state: CacheState) -> dict[str, Any]:
        found = walk(config, state.nodes, state.heads, state.tokens, keys, key_len, namespace, base)
        cuts, count = planned_cuts(config, state.nodes, found, handed)
        return {"found": found, "cuts": cuts, "count": count, "scalars": state.scalars.get(0)}

    plan = read_first(state.true(), find, state)
    found, scalars, cuts = plan["found"], plan["scalars"], plan["cuts"]
    prefix_len, made = found.length, key_len - found.length
    needed = (found.cut > 0).astype(jnp.int32) + (made > 0) + plan["count"]
    well_formed = jnp.bool_(True)
    for component in config.components:
        well_formed = well_formed & component.well_formed(handed[component.name])
    status = jnp.where(
        (prev_len > prefix_len) | (prev_len < 0),
        Status.BAD_PREFIX,
        jnp.where(
            needed > scalars["free_nodes"],
            Status.NO_FREE_NODE,
            jnp.where(made > config.arena_tokens - scalars["arena_live"], Status.ARENA_FULL, Status.OK),
        ),
    )
    status = jnp.where(well_formed, status, Status.BAD_SLOTS).astype(jnp.int32)
    applies = status == Status.OK
    grows = applies & (made > 0)
    state = compact(state, grows & (made > config.arena_tokens - scalars["arena_top"]))
    state, front = cut_node(state, jnp.where(applies, found.deepest, NULL), found.cut)
    parent = jnp.where(front >= 0, front, found.deepest)

    # The end node: a new leaf, or the node at which the key ends.
    def look(state: CacheState) -> dict[str, Any]:
        scalars = state.scalars.get(0)
        free = scalars["free_head"]
        edge = children.edge_hash(parent, namespace, keys, base + prefix_len, config.page_size)
        return {
            "scalars": scalars,
            "parent_row": state.nodes.get(parent),
            "free": free,
            "free_row": state.nodes.get(free),
            "edge": edge,
            "head": state.heads[children.bucket_of(state.heads, edge)],
        }

    plan = read_first(state.true(), look, state)
    parent_row, scalars = plan["parent_row"], plan["scalars"]
    now = clock.tick(scalars["clock_hi"], scalars["clock_lo"], applies & (key_len > 0))
    leaf = empty_row(config) | {
        "parent": parent,
        "start": scalars["arena_top"],
        "length": made,
        "end": key_len,
        "next": plan["head"],
        "hash": plan["edge"],
        "namespace": namespace,
        "generation": plan["free_row"]["generation"],
        "created_hi": now[0],
        "created_lo": now[1],
        "priority": priority,
    }
    end = jnp.where(grows, plan["free"], parent)
    row = select(grows, leaf, parent_row)
    tokens = copy_run(state.tokens, row["start"], keys, base + prefix_len, jnp.where(grows, made, 0))
    bucket = children.bucket_of(state.heads, plan["edge"])
    heads = state.heads.at[bucket].set(jnp.where(grows, end, plan["head"]))
    state = state.replace(tokens=tokens, heads=heads)
    changed = {
        "clock_hi": now[0],
        "clock_lo": now[1],
        "arena_top": scalars["arena_top"] + jnp.where(grows, made, 0),
        "arena_live": scalars["arena_live"] + jnp.where(grows, made, 0),
        "free_head": jnp.where(grows, plan["free_row"]["next"], scalars["free_head"]),
        "free_nodes": scalars["free_nodes"] - grows,
    }
    before = {c.name: state.ledger(c, scalars)["used"] for c in config.components}
    old = applies & ~grows & (key_len > 0)
    existed = {c.name: old & c.has_value(parent_row) for c in config.components}
    handed = {n: each._replace(prefix_len=prefix_len, applies=applies) for n, each in handed.items()}
    for component in config.components:
        name, ledger = component.name, state.ledger(component, scalars)
        store, ledger, row = component.commit(state.stores[name], ledger, row, handed[name])
        state = state.with_store(component, store)
        changed |= {component.column(field): value for field, value in ledger.items()}
    state = state.with_scalars(**changed)
    nodes = state.nodes.put(jnp.where(applies & (end != ROOT), end, NULL), row)
    nodes = nodes.set(jnp.where(grows, parent, NULL), children=parent_row["children"] + 1)
    state = state.replace(nodes=nodes)

    # The nodes of the key take what is theirs, and have been used once more.
    node = jnp.where(applies, end, NULL)
    state = cut_path(state, node, jnp.where(applies, cuts, 0))
    state, adopted_from = overlap_path(state, node, handed, now)

    def visit(row: Row) -> Row:
        row = stamp(row, config, key_len, now)
        return row | {
            "hits": row["hits"] + ((row["end"] > inserted_len) & (row["hits"] < MAX_INT32)),
            "priority": jnp.maximum(row["priority"], priority),
            "longest": jnp.maximum(row["longest"], key_len),
        }

    state = state.replace(nodes=walk_up(state.nodes, node, visit))
    changed_from = jnp.minimum(prefix_len, adopted_from)  # what ends there may be new, or has been a leaf
    state = refresh_path(
        state, node, key_len, above=changed_from - 1, also=(jnp.where(front >= 0, found.deepest, NULL),)
    )
    for component in config.components:
        new = component.has_value(row) & ~existed[component.name]
        state = thin(state, jnp.where(new, node, NULL), component)
    scalars = state.scalars.get(0)
    after = {c.name: state.ledger(c, scalars)["used"] for c in config.components}
    return state.drained(), Inserted(
        status=status,
        prefix_len=prefix_len,
        node=NodeRef(index=end, generation=row["generation"]),
        existed=existed,
        freed={name: (used, before[name] - used) for name, used in after.items()},
    )


def inserts(
    state: CacheState, keys: jax.Array, lengths: jax.Array, slots: dict[str, jax.Array], **options: Any
) -> tuple[CacheState, Inserted]:
    """`insert` of B keys in order, in one scan: arguments and results have a leading axis B; options may be scalars.

    A run in `freed` lies in the pool as it is at the end, unless the caller owns the slots: then the pool holds what
    the last insert freed.
    """

    def step(state: CacheState, each: tuple[Any, ...]) -> tuple[CacheState, Inserted]:
        key, length, held, options = each
        return insert(state, key, length, held, **options)

    batch = lambda x: jnp.broadcast_to(x, (len(keys), *jnp.shape(x)[1:]))
    return lax.scan(step, state, (keys, lengths, slots, jax.tree.map(batch, options)))
