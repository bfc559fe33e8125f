"""alloc and free: slots that requests hold, outside the tree."""

import jax
import jax.numpy as jnp

from urc.components.base import Component
from urc.errors import InvalidInput, Status
from urc.state import CacheState
from urc.tables import pool
from urc.tables.packed import NULL


def _pool(state: CacheState, name: str) -> tuple[Component, int]:
    """The component and the size of its pool; InvalidInput if the caller owns the pool."""
    component = state.config.component(name)
    size = state.config.pool_size(name)
    if size is None:
        raise InvalidInput(f"the pool of {name!r} is the caller's own (pools[{name!r}] is None)")
    return component, size


def alloc(state: CacheState, name: str, count: jax.Array, *, width: int) -> tuple[CacheState, jax.Array, jax.Array]:
    """Takes `count` (i32[], <= `width`) slots of a component out of its pool: all or nothing.

    Returns the state, the slots i32[width] (NULL behind them, or all NULL), and a `Status` (i32[]), POOL_EMPTY if
    fewer are free or `count` is not in [0, width].
    """
    return alloc_into(state, name, count, jnp.full(width, NULL, jnp.int32), jnp.int32(0), width=width)


def alloc_into(
    state: CacheState, name: str, count: jax.Array, out: jax.Array, at: jax.Array, *, width: int
) -> tuple[CacheState, jax.Array, jax.Array]:
    """`alloc`, with the slots written to `out` (i32[m]) from out[at] (i32[]) on, and nothing behind them."""
    component, size = _pool(state, name)
    store, ledger = state.stores[name], state.ledger(component, state.scalars.get(0))
    fits = (count >= 0) & (count <= width) & (count <= size - ledger["used"])
    count = jnp.where(fits, count, 0)
    out, used = pool.take_into(out, at, component.pool(store), ledger["used"], count)
    state = state.with_store(component, store, ledger | {"used": used})
    if out.shape[0]:
        state = state.after(out[jnp.minimum(at, out.shape[0] - 1)])
    return state, out, jnp.where(fits, Status.OK, Status.POOL_EMPTY).astype(jnp.int32)


def free(state: CacheState, name: str, slots: jax.Array, count: jax.Array) -> CacheState:
    """Puts slots[:count] (i32[n], i32[]) back. They must be held by the caller: this is for the caller to see to."""
    component, _ = _pool(state, name)
    store, ledger = state.stores[name], state.ledger(component, state.scalars.get(0))
    held, used = pool.give(component.pool(store), ledger["used"], slots, jnp.int32(0), count)
    return state.with_store(component, component.with_pool(store, held), ledger | {"used": used})


def freed_slots(state: CacheState, name: str, run: tuple[jax.Array, jax.Array], *, width: int) -> jax.Array:
    """The slots (i32[width], NULL behind them) that the transition just done freed: a run out of its result."""
    component = state.config.component(name)
    return pool.take(component.pool(state.stores[name]), run[0], run[1], width=width)[0]
