"""match_prefix and probe: the longest prefix of a key from which a request can resume."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.config import CacheConfig
from urc.errors import Stop
from urc.ops import parallel
from urc.ops.path import NOTHING, refresh_path, stamp, walk_up
from urc.ops.rows import Keys, by_component, each_in_place, layout, read_slots
from urc.ops.split import cut_node
from urc.ops.walk import Walk, key_length, walk, whole_page
from urc.state import CacheState, NodeRef
from urc.tables.packed import NULL, on_cpu, read_first


class Match(struct.PyTreeNode):
    """What the tree holds of a key. Lengths in tokens, whole pages, i32[]."""

    node: NodeRef  # ends at `device_len`; of a probe: the node in which `device_len` ends
    device_len: jax.Array  # the request can resume here: all components agree
    full_len: jax.Array  # how far the first component alone would go
    hits: dict[str, jax.Array]  # how far each component alone would go
    slots: dict[str, jax.Array]  # i32[n] per component, as an insert of the key takes them; NULL from `device_len` on
    branching_len: jax.Array  # a state left there would let the next such request hit up to there; 0: nowhere
    stop: jax.Array  # i32[], a `Stop`


def _branching(config: CacheConfig, full_len: jax.Array, device_len: jax.Array) -> jax.Array:
    """The last position in what Full has at which a request can leave a state, if it lies beyond the usable ones."""
    position = full_len // config.alignment * config.alignment
    return jnp.where(position > device_len, position, 0)


def walk_of(state: CacheState, key: jax.Array, length: jax.Array, namespace: jax.Array) -> Walk:
    """The walk of a key (see `whole_page`)."""
    return walk(state.config, state.nodes, state.heads, state.tokens, key, length, namespace)


def _walks(
    state: CacheState, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array
) -> tuple[Walk, tuple[jax.Array, ...]]:
    """The walks of B keys side by side, and what each needs to be walked again."""
    lengths = key_length(lengths, keys, state.config)
    found = parallel.walks(state.config, state.nodes, state.heads, state.tokens, keys, lengths, namespaces)
    return found, (jax.vmap(lambda key: whole_page(key, state.config))(keys), lengths, namespaces)


def settle(state: CacheState, found: Walk, width: int) -> tuple[CacheState, Match]:
    """What a match does once the walk is known: split where it ended, touch the path, read the slots."""
    read = lambda state, node: read_slots(state, node, jnp.int32(0), width)
    state, match, slots = _settle(state, found, read)
    return state.after(*(jnp.sum(held[:1]) for held in slots.values())), match.replace(slots=slots)


def _settle(
    state: CacheState, found: Walk, read: Callable[[CacheState, jax.Array], Any]
) -> tuple[CacheState, Match, Any]:
    """`settle`; of slots, what `read(state, node)` makes of them, and none in the `Match`."""
    state, front = cut_node(state, found.deepest, found.cut)
    # The deepest usable prefix may be the front part; without it, it is the deepest that ends at a node.
    inside = (found.usable == found.deepest) & (found.cut > 0)
    missed = inside & (front < 0)
    node = jnp.where(missed, found.whole, jnp.where(inside, front, found.usable))
    length = jnp.where(missed, found.whole_len, found.usable_len)
    state, now = state.tick(length > 0)
    config, base = state.config, state.config.components[0].name
    state = state.replace(nodes=walk_up(state.nodes, node, lambda row: stamp(row, config, length, now)))
    parts = (front, jnp.where(front >= 0, found.deepest, NULL))
    state = refresh_path(state, node, length, above=NOTHING, also=parts)
    ref, slots = read_first(state.true(), lambda state: (state.ref(node), read(state, node)), state)
    state = state.after(ref.generation)
    full_len = jnp.where(missed, length, found.hits[base])
    match = Match(
        node=ref,
        device_len=length,
        full_len=full_len,
        branching_len=_branching(config, full_len, length),
        hits={name: jnp.where(missed, jnp.minimum(hit, length), hit) for name, hit in found.hits.items()},
        slots={},
        stop=jnp.where(missed, Stop.NO_FREE_NODE, found.stop).astype(jnp.int32),
    )
    return state, match, slots


def match_prefix(
    state: CacheState, key: jax.Array, length: jax.Array, *, namespace: jax.Array | int = 0
) -> tuple[CacheState, Match]:
    """Finds the longest prefix of key[:length] from which a request can resume, and marks it as used.

    Args:
        state: the cache.
        key: i32[K], token ids; what lies beyond `length` does not matter.
        length: i32[], tokens; cut down to whole pages.
        namespace: i32[], isolates keys from each other.

    Returns:
        The state, in which a node is split where the key ends or leaves it and the path used is the most recent of
        the access order; and the `Match`. If no row is free for the split, the match ends at the node's start.

    """
    namespace = jnp.asarray(namespace, jnp.int32)
    length = key_length(length, key, state.config)
    found = read_first(state.true(), walk_of, state, whole_page(key, state.config), length, namespace)
    return settle(state, found, key.shape[0])


def match_prefixes(
    state: CacheState, keys: jax.Array, lengths: jax.Array, *, namespaces: jax.Array | int = 0
) -> tuple[CacheState, Match]:
    """`match_prefix` of B keys (i32[B, K], i32[B], i32[B]), as if one after the other; every result field [B, ...].

    On an accelerator the walks run side by side; then, in order, each match takes effect. A walk that ended inside a
    node which an earlier match of the batch has split since is walked again. A CPU takes one after the other.
    """
    namespaces = jnp.broadcast_to(jnp.asarray(namespaces, jnp.int32), lengths.shape)
    return on_cpu(_in_turn, side_by_side, state, keys, lengths, namespaces)


def settle_without_slots(state: CacheState, found: Walk) -> tuple[CacheState, Match]:
    """`settle`, for who reads the slots otherwise."""
    state, match, _ = _settle(state, found, lambda *_: ())
    return state, match


def _in_turn(state: CacheState, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array) -> tuple[CacheState, Match]:
    def one(state: CacheState, _: jax.Array, walk_of: Callable[[CacheState], Walk]) -> tuple:
        state, match = settle_without_slots(state, read_first(state.true(), walk_of, state))
        return state, match, None, match.node.index, jnp.int32(0)

    form, queries = layout(state.config, keys.shape[1]), Keys.of(state.config, keys, lengths, namespaces)
    state, matches, out = each_in_place(state, queries, one, form)
    return state, matches.replace(slots=by_component(out.reshape(-1, form.size), form))


def side_by_side(
    state: CacheState, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array
) -> tuple[CacheState, Match]:
    """`match_prefixes`, all keys walked at once."""
    walks, queries = read_first(state.true(), _walks, state, keys, lengths, namespaces)

    def step(state: CacheState, query: tuple[Walk, tuple[jax.Array, ...]]) -> tuple[CacheState, Match]:
        planned, asked = query
        again = (planned.cut > 0) & (state.nodes.get(planned.deepest)["length"] != planned.inside_len)
        found = lax.cond(again, lambda s: walk_of(s, *asked), lambda _: planned, state)
        return settle(state, found, keys.shape[1])

    return lax.scan(step, state, (walks, queries))


def used_cut(found: Walk) -> jax.Array:
    """How far into `usable` a walk's usable prefix ends; 0 if at its end."""
    return jnp.where(found.usable == found.deepest, found.cut, 0)


def probed(state: CacheState, found: Walk) -> Match:
    """The result of a walk that changes nothing, but for the slots."""
    full_len = found.hits[state.config.components[0].name]
    return Match(
        node=state.ref(found.usable),
        device_len=found.usable_len,
        full_len=full_len,
        branching_len=_branching(state.config, full_len, found.usable_len),
        hits=found.hits,
        slots={},
        stop=found.stop,
    )


def probe(state: CacheState, key: jax.Array, length: jax.Array, *, namespace: jax.Array | int = 0) -> Match:
    """`match_prefix` without any side effect: no split, no touch."""
    namespace = jnp.asarray(namespace, jnp.int32)
    length = key_length(length, key, state.config)

    def read(state: CacheState) -> Match:
        found = walk_of(state, whole_page(key, state.config), length, namespace)
        return probed(state, found).replace(slots=read_slots(state, found.usable, used_cut(found), key.shape[0]))

    return read_first(state.true(), read, state)


def probes(state: CacheState, keys: jax.Array, lengths: jax.Array, *, namespaces: jax.Array | int = 0) -> Match:
    """`probe` of B keys (i32[B, K], i32[B], i32[B]), walked side by side; every result field [B, ...]."""
    namespaces = jnp.broadcast_to(jnp.asarray(namespaces, jnp.int32), lengths.shape)

    def in_turn(state: CacheState) -> Match:
        def one(_: CacheState, i: jax.Array, walk_of: Callable) -> tuple:
            found = walk_of(state)
            return state, probed(state, found), None, found.usable, used_cut(found)

        form, queries = layout(state.config, keys.shape[1]), Keys.of(state.config, keys, lengths, namespaces)
        _, matches, out = each_in_place(state, queries, one, form)
        return matches.replace(slots=by_component(out.reshape(-1, form.size), form))

    def side_by_side(state: CacheState) -> Match:
        found = _walks(state, keys, lengths, namespaces)[0]
        read = lambda one: read_slots(state, one.usable, used_cut(one), keys.shape[1])
        return lax.map(lambda one: probed(state, one).replace(slots=read(one)), found)

    read = lambda state: on_cpu(in_turn, side_by_side, state)
    return read_first(state.true(), read, state)
