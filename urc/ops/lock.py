"""lock, release_early, unlock: what a running request reads is protected from eviction."""

import jax
import jax.numpy as jnp
from flax import struct

from urc.errors import InvalidInput, Status
from urc.ops.hold import Since, drop, hold, holds, is_held
from urc.ops.path import NOTHING
from urc.state import ROOT, CacheState, NodeRef
from urc.tables.packed import NULL, read_first


class Receipt(struct.PyTreeNode):
    """What a lock took: of the path up to `node`, per component, the nodes that end beyond a position.

    Positions survive every split, so the receipt, and not today's values, decides what an unlock releases.
    """

    node: NodeRef
    end: jax.Array  # i32[], tokens
    since: Since  # i32[] per component; at `end` or beyond: nothing, or no longer


def lock(state: CacheState, node: NodeRef) -> tuple[CacheState, Receipt, jax.Array]:
    """Protects what a request that resumes at the end of `node` reads, tombstones in it too.

    Returns the state, the `Receipt` that `unlock` takes, and a `Status` (i32[]): STALE_NODE, and no change, if the
    node has left the tree. The root may be locked, to no effect.
    """
    row, alive = read_first(state.true(), holds, state, node)
    state, since = hold(state, jnp.where(alive, node.index, NULL), row["end"], "lock")
    status = jnp.where(alive, Status.OK, Status.STALE_NODE).astype(jnp.int32)
    return state, Receipt(node=node, end=row["end"], since=since), status


def _release(state: CacheState, receipt: Receipt, since: Since) -> tuple[CacheState, jax.Array]:
    """Releases what a receipt holds from the positions `since` on. Returns the state and the `Status`."""
    row, alive = read_first(state.true(), holds, state, receipt.node)
    held = is_held(state, row, receipt.end, since, "lock")
    state = drop(state, jnp.where(alive & held, receipt.node.index, NULL), since, "lock")
    status = jnp.where(alive, jnp.where(held, Status.OK, Status.NOT_LOCKED), Status.STALE_NODE)
    return state, status.astype(jnp.int32)


def unlock(state: CacheState, receipt: Receipt) -> tuple[CacheState, jax.Array]:
    """Releases exactly what the lock behind `receipt` took and still holds, whatever was split or revived since.

    Returns the state and a `Status` (i32[]): STALE_NODE or NOT_LOCKED, and no change, where there is nothing to
    release. That one receipt is not used twice while others hold the node is for the caller to see to; the host
    handle does.
    """
    state, status = _release(state, receipt, receipt.since)
    at_root = (receipt.node.index == ROOT) & (status == Status.NOT_LOCKED)  # where nothing is to hold
    return state, jnp.where(at_root, Status.OK, status)


def release_early(state: CacheState, receipt: Receipt, name: str) -> tuple[CacheState, Receipt, jax.Array]:
    """Gives back what a lock took of one component, and of those of lower rank, before the rest.

    For a request whose decoding has moved past the window. Returns the state, the receipt to go on with, and a
    `Status` (i32[]): NOT_LOCKED, and no change, if that much was given back before.

    Raises:
        InvalidInput: the component is the one that nodes live on, which a request reads to its end.

    """
    config = state.config
    early = config.component(name)
    if early.is_base:
        raise InvalidInput(f"a request reads {name!r} until it ends: unlock it then")
    lower = [c.name for c in config.components if not c.is_base and c.rank <= early.rank]
    nothing = jnp.int32(NOTHING)
    had = receipt.since[name] < receipt.end
    since = {n: jnp.where(had, held, nothing) if n in lower else nothing for n, held in receipt.since.items()}
    state, status = _release(state, receipt, since)
    left = {n: jnp.where((status == Status.OK) & (n in lower), nothing, h) for n, h in receipt.since.items()}
    return state, receipt.replace(since=left), status
