"""lock and unlock: what a running request reads is protected from eviction."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.errors import Status
from urc.ops.path import refresh_path
from urc.state import ROOT, CacheState, NodeRef
from urc.tables.packed import NULL, Row, read_first


class Receipt(struct.PyTreeNode):
    """What a lock took: the path up to `node`, which ends at `end` tokens. A position survives every split."""

    node: NodeRef
    end: jax.Array  # i32[]


def _holds(state: CacheState, node: NodeRef) -> tuple[Row, jax.Array]:
    """The node's row, and whether (bool[]) the row still holds that node."""
    rows = state.nodes.spare
    row = state.nodes.get(node.index)
    alive = (node.index == ROOT) | (row["length"] > 0)
    return row, (node.index >= 0) & (node.index < rows) & alive & (row["generation"] == node.generation)


def _count(state: CacheState, node: jax.Array, end: jax.Array, change: int) -> CacheState:
    """Adds `change` (1 or -1) to the lock of every component on what it reads of the path up to `node`."""
    config = state.config
    ledgers = {c.name: state.ledger(c, state.scalars.get(0)) for c in config.components}

    def visit(row: Row) -> Row:
        new = row
        for component in config.components:
            column = component.column("lock")
            new = new | {column: row[column] + jnp.where(component.reads(row, end), change, 0)}
        return new

    def body(carry: tuple) -> tuple:
        nodes, ledgers, at = carry
        nodes = nodes.put(at, visit(nodes.get(at)))
        row, counts = nodes.get(at), {}  # as written: see `walk_up`
        for component in config.components:
            ledger = ledgers[component.name]
            turns = component.reads(row, end) & (row[component.column("lock")] == max(change, 0))
            moved = jnp.where(turns, component.size(row) * change, 0)
            counts[component.name] = ledger | {
                "evictable": ledger["evictable"] - moved,
                "protected": ledger["protected"] + moved,
            }
        return nodes, counts, row["parent"]

    nodes, ledgers, _ = lax.while_loop(lambda carry: carry[2] > 0, body, (state.nodes, ledgers, node))
    state = state.replace(nodes=nodes)
    for component in config.components:
        state = state.with_store(component, state.stores[component.name], ledgers[component.name])
    return refresh_path(state, node, end)


def lock(state: CacheState, node: NodeRef) -> tuple[CacheState, Receipt, jax.Array]:
    """Protects what a request that resumes at the end of `node` reads.

    Returns the state, the `Receipt` that `unlock` takes, and a `Status` (i32[]): STALE_NODE, and no change, if the
    node has left the tree. The root may be locked, to no effect.
    """
    row, alive = read_first(state.true(), _holds, state, node)
    state = _count(state, jnp.where(alive, node.index, NULL), row["end"], 1)
    status = jnp.where(alive, Status.OK, Status.STALE_NODE).astype(jnp.int32)
    return state, Receipt(node=node, end=row["end"]), status


def unlock(state: CacheState, receipt: Receipt) -> tuple[CacheState, jax.Array]:
    """Releases exactly what the lock behind `receipt` took, whatever was split since.

    Returns the state and a `Status` (i32[]): STALE_NODE or NOT_LOCKED, and no change, where there is nothing to
    release. That one receipt is not used twice while others hold the node is for the caller to see to; the host
    handle does.
    """
    row, alive = read_first(state.true(), _holds, state, receipt.node)
    held = receipt.node.index == ROOT
    for component in state.config.components:
        held = held | (component.reads(row, receipt.end) & (row[component.column("lock")] > 0))
    applies = alive & held
    state = _count(state, jnp.where(applies, receipt.node.index, NULL), receipt.end, -1)
    status = jnp.where(applies, Status.OK, jnp.where(alive, Status.NOT_LOCKED, Status.STALE_NODE))
    return state, status.astype(jnp.int32)
