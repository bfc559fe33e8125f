"""Example states and one call of every transition, for the contract that all of them keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import urc
from urc import ops
from urc.state import NodeRef

WIDTH = 61  # of keys: no size of the state below, so that a copy of a key is not taken for one of the state

CONFIG = urc.CacheConfig(page_size=2, pools={"full": 1999}, max_nodes=700)


class Case(NamedTuple):
    """A transition as (state, *args) -> (state, result)."""

    call: Callable[..., Any]
    args: tuple[Any, ...]


def key(tokens: list[int], width: int = WIDTH) -> np.ndarray:
    """Tokens padded to a width."""
    out = np.full(width, -1, np.int32)
    out[: len(tokens)] = tokens
    return out


SHARED = [1, 2, 3, 4, 5, 6]
KEYS = [[*SHARED, 7, 8, 9, 10], [*SHARED, 7, 8, 11, 12], [*SHARED[:4], 20, 21], [30, 31, 32, 33, 34, 35], [40, 41]]


HELD = 4  # slots 0 .. 3 are held by the caller in a filled state


def filled(config: urc.CacheConfig = CONFIG) -> urc.CacheState:
    """A state with a few branches, made by inserts of fresh slots."""
    alloc = jax.jit(lambda state, n: ops.alloc(state, "full", n, width=WIDTH))
    insert = jax.jit(lambda state, tokens, n, slots: ops.insert(state, tokens, n, {"full": slots}))
    state, _, _ = alloc(urc.init(config), jnp.int32(HELD))
    for tokens in KEYS:
        state, slots, _ = alloc(state, jnp.int32(len(tokens)))
        state, inserted = insert(state, key(tokens), jnp.int32(len(tokens)), slots)
        assert int(inserted.status) == urc.Status.OK
    return state


def _insert(state: urc.CacheState, tokens: Any, length: Any, slots: Any) -> Any:
    return ops.insert(state, tokens, length, {"full": slots})


def _evict(state: urc.CacheState, target: Any) -> Any:
    return ops.evict(state, {"full": target})


def _lock(state: urc.CacheState, node: NodeRef) -> Any:
    state, receipt, status = ops.lock(state, node)
    return state, (receipt, status)


def _lock_and_unlock(state: urc.CacheState, node: NodeRef) -> Any:
    state, receipt, _ = ops.lock(state, node)
    return ops.unlock(state, receipt)


def _alloc(state: urc.CacheState, count: Any) -> Any:
    state, slots, status = ops.alloc(state, "full", count, width=WIDTH)
    return state, (slots, status)


def _free(state: urc.CacheState, slots: Any, count: Any) -> Any:
    return ops.free(state, "full", slots, count), ()


def _compact(state: urc.CacheState, applies: Any) -> Any:
    return ops.compact(state, applies), ()


def _probe(state: urc.CacheState, tokens: Any, length: Any) -> Any:
    return state, ops.probe(state, tokens, length)


_SPLITS = key([*SHARED[:2], 50, 51])
_NODE = NodeRef(index=jnp.int32(1), generation=jnp.int32(0))

CASES: dict[str, Case] = {
    "match_prefix": Case(ops.match_prefix, (_SPLITS, jnp.int32(4))),
    "match_prefixes": Case(ops.match_prefixes, (np.stack([_SPLITS, key(KEYS[3])]), np.array([4, 5], np.int32))),
    "probe": Case(_probe, (_SPLITS, jnp.int32(4))),
    "insert": Case(_insert, (_SPLITS, jnp.int32(4), key([0, 1, 2, 3]))),
    "split": Case(ops.split, (jnp.int32(4), jnp.int32(2))),
    "evict": Case(_evict, (jnp.int32(5),)),
    "lock": Case(_lock, (_NODE,)),
    "lock, unlock": Case(_lock_and_unlock, (_NODE,)),
    "alloc": Case(_alloc, (jnp.int32(3),)),
    "free": Case(_free, (key([0, 1, 2]), jnp.int32(3))),
    "compact": Case(_compact, (jnp.bool_(True),)),
}


def request(state: urc.CacheState, tokens: Any, length: Any) -> Any:
    """A whole request in one program: match, lock, evict, allocate, insert, unlock."""
    state, found = ops.match_prefix(state, tokens, length)
    state, receipt, _ = ops.lock(state, found.node)
    rest = length - found.device_len
    state, evicted = ops.evict(state, {"full": rest})
    state, fresh, _ = ops.alloc(state, "full", rest, width=WIDTH)
    slots = jnp.where(jnp.arange(WIDTH) < found.device_len, found.slots["full"], jnp.roll(fresh, found.device_len))
    state, inserted = ops.insert(state, tokens, length, {"full": slots}, prev_prefix_len=found.device_len)
    state, status = ops.unlock(state, receipt)
    return state, (found, evicted, inserted, status)


CASES["a whole request"] = Case(request, (_SPLITS, jnp.int32(4)))
