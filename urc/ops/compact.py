"""Closing the holes that deleted runs leave in the token arena."""

import jax
import jax.numpy as jnp
from jax import lax

from urc.state import CacheState
from urc.tables.packed import move_run, read_first


def compact(state: CacheState, applies: jax.Array) -> CacheState:
    """Moves all runs down, in order, so that `arena_top` = `arena_live`. No-op unless `applies` (bool[]).

    In place, one run after the other: O(nodes log nodes + tokens). An arena that is a constant factor larger than
    what lives in it pays this back: O(1) per inserted token.
    """
    config = state.config

    def body(carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
        state, _ = carry
        start, length = (state.nodes.data[:, state.nodes.columns.index(name)] for name in ("start", "length"))
        order = jnp.argsort(jnp.where(length > 0, start, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)
        live = jnp.sum(length > 0, dtype=jnp.int32)

        def move(i: jax.Array, carry: tuple[CacheState, jax.Array]) -> tuple[CacheState, jax.Array]:
            state, top = carry
            row = read_first(state.true(), lambda nodes: nodes.get(order[i]), state.nodes)
            tokens = move_run(state.tokens, top, row["start"], row["length"])
            stores = {c.name: c.move(state.stores[c.name], top, row["start"], row["length"]) for c in config.components}
            nodes = state.nodes.put(order[i], row | {"start": top})
            return state.replace(nodes=nodes, tokens=tokens, stores=stores), top + row["length"]

        state, top = lax.fori_loop(0, live, move, (state, jnp.int32(0)))
        return state.with_scalars(arena_top=top), jnp.bool_(False)

    return lax.while_loop(lambda carry: carry[1], body, (state, applies))[0]
