"""For tests of the cache and of what is built on it."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from urc.cache import UnifiedRadixCache
from urc.state import CacheState
from urc.tables import clock


def set_clock(cache: UnifiedRadixCache, value: int) -> None:
    """Sets the access clock (0 <= value < 2**62, not before now) of a cache, as if that many accesses had passed."""
    high, low = clock.split_words(value)
    state = cache.state
    cache.state = state.with_scalars(clock_hi=jnp.int32(high), clock_lo=jnp.int32(low))


def big_copies(op: Callable[..., Any], state: CacheState, *args: Any, least: int = 1000, **kwargs: Any) -> list[str]:
    """Lines of the compiled text of `op(state, *args)`, state donated, that copy an array as big as one of the state's.

    `least`: entries from which an array of the state counts as big; its sizes should be distinct from those of `args`.
    The state may be given as shapes (`jax.eval_shape`).
    """
    shapes = {leaf.shape for leaf in jax.tree.leaves(state) if leaf.size >= least}
    text = jax.jit(op, donate_argnums=0).lower(state, *args, **kwargs).compile().as_text() or ""
    copies = []
    for line in text.splitlines():
        found = re.search(r"= \(?s32\[([\d,]+)\][^ ]* copy(?:-start)?\(", line)
        if found and tuple(map(int, found[1].split(","))) in shapes:
            copies.append(line.strip())
    return copies
