"""The transitions as the host handle calls them: compiled once per shape, state donated, results in one array.

A call costs about a microsecond per array that goes in or comes out, so lengths and options travel together.
"""

from functools import partial

import jax
import jax.numpy as jnp

from urc import ops
from urc.errors import Status
from urc.ops.match import Match
from urc.state import CacheState, NodeRef


def _numbers(match: Match) -> jax.Array:
    """(node, generation, device_len, full_len, stop) on the last axis, i32."""
    fields = (match.node.index, match.node.generation, match.device_len, match.full_len, match.stop)
    return jnp.stack(fields, axis=-1)


@partial(jax.jit, donate_argnums=0)
def match_prefix(
    state: CacheState, key: jax.Array, where: jax.Array
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """`where`: (length, namespace)."""
    state, match = ops.match_prefix(state, key, where[0], namespace=where[1])
    return state, _numbers(match), match.slots


@partial(jax.jit, donate_argnums=0)
def match_prefixes(
    state: CacheState, keys: jax.Array, where: jax.Array
) -> tuple[CacheState, jax.Array, dict[str, jax.Array]]:
    """`where`: i32[B, 2]."""
    state, match = ops.match_prefixes(state, keys, where[:, 0], namespaces=where[:, 1])
    return state, _numbers(match), match.slots


@jax.jit
def probe(state: CacheState, key: jax.Array, where: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`where`: (length, namespace)."""
    match = ops.probe(state, key, where[0], namespace=where[1])
    return _numbers(match), match.slots


@jax.jit
def probes(state: CacheState, keys: jax.Array, where: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`where`: i32[B, 2]."""
    match = ops.probes(state, keys, where[:, 0], namespaces=where[:, 1])
    return _numbers(match), match.slots


@partial(jax.jit, donate_argnums=0)
def insert(
    state: CacheState, key: jax.Array, slots: dict[str, jax.Array], numbers: jax.Array
) -> tuple[CacheState, jax.Array]:
    """`numbers`: (length, namespace, prev_prefix_len, inserted_len, priority, given.., evicted_len.., stamp)."""
    names = [component.name for component in state.config.components]
    state, inserted = ops.insert(
        state,
        key,
        numbers[0],
        slots,
        namespace=numbers[1],
        prev_prefix_len=numbers[2],
        inserted_len=numbers[3],
        priority=numbers[4],
        given={name: numbers[5 + j] for j, name in enumerate(names)},
        evicted_len={name: numbers[5 + len(names) + j] for j, name in enumerate(names)},
    )
    before = state.scalars.get(0)
    new = (inserted.status == Status.OK) & (numbers[1] > before["named"])
    named, stamp = jnp.where(new, numbers[1], before["named"]), jnp.where(new, numbers[-1], before["names"])
    state = state.with_scalars(named=named, names=stamp)
    runs = [number for name in names for number in inserted.freed[name]]
    return state, jnp.stack(
        [inserted.status, inserted.prefix_len, inserted.node.index, inserted.node.generation, *runs]
    )


@partial(jax.jit, donate_argnums=0)
def evict(state: CacheState, targets: jax.Array) -> tuple[CacheState, jax.Array]:
    """Targets and the (start, count) of what was freed, in the order of the components."""
    names = [component.name for component in state.config.components]
    state, evicted = ops.evict(state, {name: targets[j] for j, name in enumerate(names)})
    return state, jnp.stack([number for name in names for number in evicted.freed[name]])


@partial(jax.jit, donate_argnums=0)
def lock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(row, generation) -> (status, end)."""
    state, receipt, status = ops.lock(state, NodeRef(index=numbers[0], generation=numbers[1]))
    return state, jnp.stack([status, receipt.end])


@partial(jax.jit, donate_argnums=0)
def unlock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    """(row, generation, end) -> status."""
    node = NodeRef(index=numbers[0], generation=numbers[1])
    return ops.unlock(state, ops.Receipt(node=node, end=numbers[2]))


alloc = jax.jit(ops.alloc, donate_argnums=0, static_argnums=1, static_argnames="width")
free = jax.jit(ops.free, donate_argnums=0, static_argnums=1)
