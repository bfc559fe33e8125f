"""Example states and one call of every transition, for the contract that all of them keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import urc
from tests.components.compressed import Compressed
from urc import ops
from urc.state import NodeRef

WIDTH = 61  # of keys: no size of the state below, so that a copy of a key is not taken for one of the state

# Pools of distinct sizes, so that a copy of one array is not taken for a copy of another.
POOLS = {"full": 1999, "compressed": 1201, "swa": 1777, "mamba": 1301}


def config_of(*components: urc.Component) -> urc.CacheConfig:
    """Pages of 2."""
    pools = {component.name: POOLS[component.name] for component in components}
    return urc.CacheConfig(components=components, page_size=2, pools=pools, max_nodes=700, max_sessions=100)


FULL, SWA, MAMBA, FOURTH = urc.Full(), urc.SWA(window=4), urc.Mamba(max_states_per_path=2), Compressed(ratio=3)
CONFIGS = {
    "full": config_of(FULL),
    "full, swa": config_of(FULL, SWA),
    "full, mamba": config_of(FULL, MAMBA),
    "full, swa, mamba": config_of(FULL, SWA, MAMBA),
    "full, a fourth": config_of(FULL, FOURTH),
    "full, a fourth, swa, mamba": config_of(FULL, FOURTH, SWA, MAMBA),
}
CONFIG, ALL = CONFIGS["full"], CONFIGS["full, a fourth, swa, mamba"]


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


def count(component: urc.Component, tokens: Any) -> Any:
    """Slots that an insert of `tokens` tokens hands in."""
    return 1 if component.name == "mamba" else component.needed(0, tokens)


def slots_of(state: urc.CacheState, start: Any, length: Any) -> dict[str, Any]:
    """Slots for an insert: for each component, the numbers from `start` on."""
    lane = jnp.arange(WIDTH, dtype=jnp.int32)
    return {c.name: jnp.where(lane < count(c, length), start + lane, -1) for c in state.config.components}


def given(state: urc.CacheState, length: Any) -> dict[str, Any]:
    return {c.name: jnp.int32(count(c, length)) for c in state.config.components}


def filled(config: urc.CacheConfig = CONFIG) -> urc.CacheState:
    """A state with a few branches, made by inserts of fresh slots."""
    names = [c.name for c in config.components]
    alloc = jax.jit(
        lambda state, n: ops.reserve(state, dict(zip(names, n, strict=True)), widths=dict.fromkeys(names, WIDTH))
    )
    insert = jax.jit(lambda state, tokens, n, slots, given: ops.insert(state, tokens, n, slots, given=given))
    state = alloc(urc.init(config), [jnp.int32(HELD)] * len(names))[0]
    for tokens in KEYS:
        counts = [jnp.int32(count(c, len(tokens))) for c in config.components]
        state, slots, *_ = alloc(state, counts)
        handed = dict(zip(names, counts, strict=True))
        state, inserted = insert(state, key(tokens), jnp.int32(len(tokens)), slots, handed)
        assert int(inserted.status) == urc.Status.OK
    return state


def _insert(state: urc.CacheState, tokens: Any, length: Any) -> Any:
    """The first HELD slots are the caller's."""
    return ops.insert(state, tokens, length, slots_of(state, 0, length), given=given(state, length))


def _evict(state: urc.CacheState, target: Any) -> Any:
    return ops.evict(state, {c.name: target for c in state.config.components})


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


def _release_early(state: urc.CacheState, node: NodeRef) -> Any:
    state, receipt, _ = ops.lock(state, node)
    results = ()
    for component in state.config.components[1:]:
        state, receipt, status = ops.release_early(state, receipt, component.name)
        results = (*results, status)
    return state, (receipt, results)


def _sessions(state: urc.CacheState, node: NodeRef) -> Any:
    state, session, opened = ops.open_session(state)
    state, advanced = ops.advance_session(state, session, node)
    state, receded = ops.recede_session(state, session, jnp.int32(4))
    return state, (session, opened, advanced, receded)


def _session_closed(state: urc.CacheState, node: NodeRef) -> Any:
    state, (session, *_) = _sessions(state, node)
    return ops.close_session(state, session)


def _life(state: urc.CacheState, tokens: Any, length: Any, *, finished: bool) -> Any:
    """A request from its begin to a commit, in one program."""
    state, begun = ops.begin(state, tokens, length)
    had, parts = begun.match.device_len, [c for c in state.config.components if not c.copies_on_write]
    widths = {c.name: begun.match.slots[c.name].shape[0] for c in parts}
    state, fresh, _, reserved = ops.reserve(state, {c.name: c.needed(had, length) for c in parts}, widths=widths)
    rows = {name: slot[None] for name, slot in begun.own.items()}
    for component in parts:
        name, first = component.name, component.needed(0, had)
        lane = jnp.arange(widths[name], dtype=jnp.int32)
        rows[name] = jnp.where(lane < first, begun.match.slots[name], jnp.roll(fresh[name], first))
    handed = {c.name: jnp.int32(1) if c.copies_on_write else c.needed(0, length) for c in state.config.components}
    state, done = ops.commit(
        state, begun.receipt, tokens, length, rows, finished=finished, given=handed, prev_prefix_len=had
    )
    return state, (begun, reserved, done)


_SPLITS = key([*SHARED[:2], 50, 51])
_NODE = NodeRef(index=jnp.int32(1), generation=jnp.int32(0))
_KEY = (_SPLITS, jnp.int32(4))

CASES: dict[str, Case] = {
    "match_prefix": Case(ops.match_prefix, _KEY),
    "match_prefixes": Case(ops.match_prefixes, (np.stack([_SPLITS, key(KEYS[3])]), np.array([4, 5], np.int32))),
    "probe": Case(_probe, _KEY),
    "insert": Case(_insert, _KEY),
    "split": Case(ops.split, (jnp.int32(4), jnp.int32(2))),
    "evict": Case(_evict, (jnp.int32(5),)),
    "lock": Case(_lock, (_NODE,)),
    "lock, unlock": Case(_lock_and_unlock, (_NODE,)),
    "lock, release early": Case(_release_early, (_NODE,)),
    "sessions": Case(_sessions, (_NODE,)),
    "a session closed": Case(_session_closed, (_NODE,)),
    "alloc": Case(_alloc, (jnp.int32(3),)),
    "free": Case(_free, (key([0, 1, 2]), jnp.int32(3))),
    "compact": Case(_compact, (jnp.bool_(True),)),
}
SINGLE = tuple(CASES)  # the rest is made of these
CASES["a request, finished"] = Case(lambda *args: _life(*args, finished=True), _KEY)
CASES["a request, unfinished"] = Case(lambda *args: _life(*args, finished=False), _KEY)
