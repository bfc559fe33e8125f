"""The transitions as the host handle calls them: compiled once per shape, state donated, results in one array.

A call costs about a microsecond per array that goes in or comes out, so lengths and options travel together.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from urc import ops
from urc.errors import Status
from urc.ops.match import Match
from urc.state import CacheState, NodeRef


def _names(state: CacheState) -> list[str]:
    return [component.name for component in state.config.components]


def _numbers(names: list[str], match: Match) -> jax.Array:
    """(node, generation, device_len, full_len, branching_len, stop, hits..) on the last axis, i32."""
    node = (match.node.index, match.node.generation)
    hits = [match.hits[name] for name in names]
    fields = (*node, match.device_len, match.full_len, match.branching_len, match.stop, *hits)
    return jnp.stack(fields, axis=-1)


@partial(jax.jit, donate_argnums=0)
def match_prefix(
    state: CacheState, key: jax.Array, where: jax.Array
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """`where`: (length, namespace)."""
    state, match = ops.match_prefix(state, key, where[0], namespace=where[1])
    return state, _numbers(_names(state), match), match.slots


@partial(jax.jit, donate_argnums=0)
def match_prefixes(
    state: CacheState, keys: jax.Array, where: jax.Array
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """`where`: i32[B, 2]."""
    state, match = ops.match_prefixes(state, keys, where[:, 0], namespaces=where[:, 1])
    return state, _numbers(_names(state), match), match.slots


@jax.jit
def probe(state: CacheState, key: jax.Array, where: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`where`: (length, namespace)."""
    match = ops.probe(state, key, where[0], namespace=where[1])
    return _numbers(_names(state), match), match.slots


@jax.jit
def probes(state: CacheState, keys: jax.Array, where: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`where`: i32[B, 2]."""
    match = ops.probes(state, keys, where[:, 0], namespaces=where[:, 1])
    return _numbers(_names(state), match), match.slots


def _options(names: list[str], numbers: jax.Array) -> dict[str, Any]:
    """`numbers`: (length, namespace, prev_prefix_len, inserted_len, priority, stamp, given.., evicted_len..)."""
    return {
        "namespace": numbers[1],
        "prev_prefix_len": numbers[2],
        "inserted_len": numbers[3],
        "priority": numbers[4],
        "given": {name: numbers[6 + j] for j, name in enumerate(names)},
        "evicted_len": {name: numbers[6 + len(names) + j] for j, name in enumerate(names)},
    }


def _inserted(
    state: CacheState, inserted: ops.Inserted, numbers: jax.Array
) -> tuple[CacheState, tuple[jax.Array, ...]]:
    """(status, prefix_len, node, generation, (existed, freed)..); the state notes the namespace."""
    before = state.scalars.get(0)
    new = (inserted.status == Status.OK) & (numbers[1] > before["named"])
    named, stamp = jnp.where(new, numbers[1], before["named"]), jnp.where(new, numbers[5], before["names"])
    state = state.with_scalars(named=named, names=stamp)
    names = _names(state)
    each = [number for name in names for number in (inserted.existed[name], *inserted.freed[name])]
    return state, (inserted.status, inserted.prefix_len, inserted.node.index, inserted.node.generation, *each)


@partial(jax.jit, donate_argnums=0)
def insert(
    state: CacheState, key: jax.Array, slots: dict[str, jax.Array], numbers: jax.Array
) -> tuple[CacheState, jax.Array]:
    """`numbers`: see `_options`."""
    state, inserted = ops.insert(state, key, numbers[0], slots, **_options(_names(state), numbers))
    state, fields = _inserted(state, inserted, numbers)
    return state, jnp.stack(fields)


@partial(jax.jit, donate_argnums=0)
def evict(state: CacheState, targets: jax.Array) -> tuple[CacheState, jax.Array]:
    """Targets and the (start, count) of what was freed, in the order of the components."""
    names = _names(state)
    state, evicted = ops.evict(state, {name: targets[j] for j, name in enumerate(names)})
    return state, jnp.stack([number for name in names for number in evicted.freed[name]])


def _receipt(state: CacheState, numbers: jax.Array) -> ops.Receipt:
    """(row, generation, end, since..)."""
    since = {name: numbers[3 + j] for j, name in enumerate(_names(state))}
    return ops.Receipt(node=NodeRef(index=numbers[0], generation=numbers[1]), end=numbers[2], since=since)


@partial(jax.jit, donate_argnums=0)
def lock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(row, generation) -> (status, end, since..)."""
    state, receipt, status = ops.lock(state, NodeRef(index=numbers[0], generation=numbers[1]))
    return state, jnp.stack([status, receipt.end, *(receipt.since[name] for name in _names(state))])


@partial(jax.jit, donate_argnums=0)
def unlock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """A receipt's numbers -> status."""
    return ops.unlock(state, _receipt(state, numbers))


@partial(jax.jit, donate_argnums=0, static_argnames="name")
def release_early(state: CacheState, numbers: jax.Array, *, name: str) -> tuple[CacheState, jax.Array]:
    """A receipt's numbers -> (status, end, since..)."""
    state, receipt, status = ops.release_early(state, _receipt(state, numbers), name)
    return state, jnp.stack([status, receipt.end, *(receipt.since[name] for name in _names(state))])


@partial(jax.jit, donate_argnums=0)
def open_session(state: CacheState) -> tuple[CacheState, jax.Array]:
    """(status, row, generation)."""
    state, session, status = ops.open_session(state)
    return state, jnp.stack([status, session.index, session.generation])


@partial(jax.jit, donate_argnums=0)
def advance_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(session's row, generation, node's row, generation) -> status."""
    node = NodeRef(index=numbers[2], generation=numbers[3])
    return ops.advance_session(state, ops.SessionRef(index=numbers[0], generation=numbers[1]), node)


@partial(jax.jit, donate_argnums=0)
def recede_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(session's row, generation, length) -> status."""
    return ops.recede_session(state, ops.SessionRef(index=numbers[0], generation=numbers[1]), numbers[2])


@partial(jax.jit, donate_argnums=0)
def close_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(session's row, generation) -> status."""
    return ops.close_session(state, ops.SessionRef(index=numbers[0], generation=numbers[1]))


alloc = jax.jit(ops.alloc, donate_argnums=0, static_argnums=1, static_argnames="width")
free = jax.jit(ops.free, donate_argnums=0, static_argnums=1)


def _since(state: CacheState, receipt: ops.Receipt) -> list[jax.Array]:
    return [receipt.end, *(receipt.since[name] for name in _names(state))]


def _begun(state: CacheState, begun: ops.Begun) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(status, a match's numbers.., end, since.., own slots..) on the last axis, i32."""
    fields = [*_since(state, begun.receipt), *begun.own.values()]
    head, match = begun.status[..., None], _numbers(_names(state), begun.match)
    return jnp.concatenate([head, match, jnp.stack(fields, axis=-1)], axis=-1), begun.match.slots


@partial(jax.jit, donate_argnums=0)
def begin(state: CacheState, key: jax.Array, where: jax.Array) -> tuple[CacheState, tuple[jax.Array, dict]]:
    """`where`: (length, namespace)."""
    state, begun = ops.begin(state, key, where[0], namespace=where[1])
    return state, _begun(state, begun)


@partial(jax.jit, donate_argnums=0)
def begins(state: CacheState, keys: jax.Array, where: jax.Array) -> tuple[CacheState, tuple[jax.Array, dict]]:
    """`where`: i32[B, 2]; a length of -1 stands for no request."""
    state, begun = ops.begins(state, keys, where[:, 0], namespaces=where[:, 1])
    return state, _begun(state, begun)


@partial(jax.jit, donate_argnums=0, static_argnames="widths")
def reserve(
    state: CacheState, counts: jax.Array, *, widths: tuple[int, ...]
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """Counts and widths in the order of the components."""
    names = _names(state)
    wanted = {name: counts[j] for j, name in enumerate(names) if widths[j]}
    room = {name: widths[j] for j, name in enumerate(names) if widths[j]}
    state, slots, _, status = ops.reserve(state, wanted, widths=room)
    return state, status, slots


@partial(jax.jit, donate_argnums=0, static_argnames="finished")
def commit(
    state: CacheState, key: jax.Array, slots: dict[str, jax.Array], numbers: jax.Array, *, finished: bool
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """`numbers`: as for an insert, then a receipt's, then whether the state may stay in the tree.

    Returns what an insert does, then (end, since.., left..) of what the request holds now.
    """
    names, at = _names(state), 6 + 2 * len(state.config.components)
    receipt = _receipt(state, numbers[at:])
    options = _options(names, numbers)
    state, done = ops.commit(
        state, receipt, key, numbers[0], slots, finished=finished, leaves=numbers[-1] > 0, **options
    )
    state, fields = _inserted(state, done.inserted, numbers)
    return state, jnp.stack([*fields, *_since(state, done.receipt), *done.left.values()]), done.slots


@partial(jax.jit, donate_argnums=0)
def abort(
    state: CacheState, slots: dict[str, jax.Array], counts: jax.Array, receipt: jax.Array
) -> tuple[CacheState, jax.Array]:
    """Frees slots, the first `counts` of each component, and unlocks."""
    for j, name in enumerate(_names(state)):
        state = ops.free(state, name, slots[name], counts[j])
    return ops.unlock(state, _receipt(state, receipt))
