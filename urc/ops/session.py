"""Sessions: conversations that will come back. What they refer to is evicted after everything else."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.errors import Status
from urc.ops.hold import Since, drop, hold, holds
from urc.ops.path import NOTHING
from urc.state import ROOT, CacheState, NodeRef, next_generation
from urc.tables.packed import NULL, Row, Table, read_first


class SessionRef(struct.PyTreeNode):
    """A session, told apart from others that its row has held or will hold."""

    index: jax.Array  # i32[]
    generation: jax.Array  # i32[]


def _since(state: CacheState, row: Row) -> Since:
    return {c.name: row[c.column("since")] for c in state.config.components}


def _find(sessions: Table, session: SessionRef) -> tuple[Row, jax.Array]:
    """The row of a session, and whether (bool[]) it is open."""
    row = sessions.get(session.index)
    inside = (session.index >= 0) & (session.index < sessions.spare)
    return row, inside & (row["node"] != NULL) & (row["generation"] == session.generation)


def open_session(state: CacheState) -> tuple[CacheState, SessionRef, jax.Array]:
    """Opens a session that refers to nothing yet. The state, the session, a `Status`: NO_SESSION if none is free."""

    def free(sessions: Table) -> tuple[jax.Array, Row]:
        is_free = sessions.data[:, sessions.columns.index("node")] == NULL
        index = jnp.where(jnp.any(is_free[:-1]), jnp.argmax(is_free).astype(jnp.int32), NULL)
        return index, sessions.get(index)

    index, row = read_first(state.true(), free, state.sessions)
    new = row | {"node": ROOT, "end": 0} | {c.column("since"): NOTHING for c in state.config.components}
    status = jnp.where(index >= 0, Status.OK, Status.NO_SESSION).astype(jnp.int32)
    state = state.replace(sessions=state.sessions.put(index, new)).after(index)
    return state, SessionRef(index=index, generation=row["generation"]), status


def _move(state: CacheState, session: SessionRef, row: Row, node: jax.Array, end: jax.Array) -> CacheState:
    """The session (its `row`) refers to the path up to `node` (i32[]) instead. `node` NULL: no-op."""
    applies = node >= 0
    state = drop(state, jnp.where(applies, row["node"], NULL), _since(state, row), "session")
    state, since = hold(state, node, end, "session")
    new = row | {"node": node, "end": end} | {c.column("since"): since[c.name] for c in state.config.components}
    return state.replace(sessions=state.sessions.put(jnp.where(applies, session.index, NULL), new))


def advance_session(state: CacheState, session: SessionRef, node: NodeRef) -> tuple[CacheState, jax.Array]:
    """The session refers to what a request reads that resumes at the end of `node`, and to nothing else.

    Returns the state and a `Status` (i32[]): NO_SESSION if it is closed, STALE_NODE if the node has left the tree;
    both without a change.
    """

    def read(state: CacheState) -> tuple[Row, jax.Array, Row, jax.Array]:
        return (*_find(state.sessions, session), *holds(state, node))

    row, is_open, node_row, alive = read_first(state.true(), read, state)
    state = _move(state, session, row, jnp.where(is_open & alive, node.index, NULL), node_row["end"])
    status = jnp.where(is_open, jnp.where(alive, Status.OK, Status.STALE_NODE), Status.NO_SESSION)
    return state, status.astype(jnp.int32)


def recede_session(state: CacheState, session: SessionRef, length: jax.Array) -> tuple[CacheState, jax.Array]:
    """The session goes back to the last node of its path that ends at `length` (i32[], tokens) or before.

    Returns the state and a `Status` (i32[]): NO_SESSION, and no change, if it is closed.
    """

    def read(state: CacheState) -> tuple[Row, jax.Array, jax.Array, jax.Array]:
        row, is_open = _find(state.sessions, session)
        first = jnp.maximum(row["node"], 0)
        deeper = lambda carry: (carry[0] > 0) & (carry[1]["end"] > length)
        up = lambda carry: (carry[1]["parent"], state.nodes.get(carry[1]["parent"]))
        node, node_row = lax.while_loop(deeper, up, (first, state.nodes.get(first)))
        return row, is_open, node, node_row["end"]

    row, is_open, node, end = read_first(state.true(), read, state)
    state = _move(state, session, row, jnp.where(is_open, node, NULL), end)
    return state, jnp.where(is_open, Status.OK, Status.NO_SESSION).astype(jnp.int32)


def close_session(state: CacheState, session: SessionRef) -> tuple[CacheState, jax.Array]:
    """The session refers to nothing any more, and whoever comes late with it changes nothing.

    Returns the state and a `Status` (i32[]): NO_SESSION, and no change, if it is closed already.
    """
    row, is_open = read_first(state.true(), lambda state: _find(state.sessions, session), state)
    state = drop(state, jnp.where(is_open, row["node"], NULL), _since(state, row), "session")
    closed = row | {"node": NULL, "generation": next_generation(row["generation"])}
    state = state.replace(sessions=state.sessions.put(jnp.where(is_open, session.index, NULL), closed))
    return state, jnp.where(is_open, Status.OK, Status.NO_SESSION).astype(jnp.int32)
