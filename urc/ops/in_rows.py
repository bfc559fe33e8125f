"""The transitions with each result as one row, see `urc.ops.rows`: one array comes out, however many components.

`head` makes the numbers of a result, with which its row begins; `form` says where its slots are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from urc.ops import match as matches
from urc.ops import request as requests
from urc.ops.match import probed, settle_without_slots, used_cut, walk_of
from urc.ops.rows import Head, Keys, Layout, each_in_place, write_slots
from urc.ops.walk import Walk, key_length, whole_page
from urc.state import CacheState
from urc.tables.packed import NULL, none_null, on_cpu, read_first


def row_of(state: CacheState, node: jax.Array, cut: jax.Array | int, head: jax.Array, form: Layout) -> jax.Array:
    """A row (i32[form.size]): numbers (i32[k]), then the slots of a path, see `urc.ops.rows.read_slots`."""
    out = jnp.full(form.size, NULL, jnp.int32)
    out = write_slots(state, node, jnp.int32(cut), out, jnp.int32(0), form)
    return lax.dynamic_update_slice(out, head, (0,))


def joined(head: jax.Array, slots: dict[str, jax.Array], form: Layout) -> jax.Array:
    """Rows (i32[.., form.size]): numbers (i32[.., k]), and of slots (i32[.., n] each) as many as there is room for."""
    out = jnp.full((*head.shape[:-1], form.size), NULL, jnp.int32).at[..., : head.shape[-1]].set(head)
    for name, row in slots.items():
        place, row = form.places[name], row[..., : form.rooms[name]]
        out = out.at[..., place : place + row.shape[-1]].set(row)
    return out


def _if_tokens(found: Walk, key: jax.Array, length: jax.Array) -> tuple[Walk, jax.Array]:
    """What a walk has found, if key[:length] are tokens, that is >= 0 (bool[]); if not, what an empty key finds.

    Those that the tree holds are, so only the others are looked at.
    """
    fine = none_null(key, found.length, jnp.minimum(length, key.shape[0]))
    return jax.tree.map(lambda some: jnp.where(fine, some, jnp.zeros_like(some)), found), fine


def _or_refused(match: matches.Match, fine: jax.Array) -> matches.Match:
    return match.replace(stop=jnp.where(fine, match.stop, NULL))


def match_prefix(
    state: CacheState, key: jax.Array, length: jax.Array, namespace: jax.Array, head: Head, form: Layout
) -> tuple[CacheState, jax.Array]:
    """`urc.ops.match_prefix`; `stop` is NULL, and nothing done, if a token of the key is negative."""
    padded, whole = whole_page(key, state.config), key_length(length, key, state.config)

    def walk(state: CacheState) -> tuple[Walk, jax.Array]:
        return _if_tokens(walk_of(state, padded, whole, namespace), padded, length)

    found, fine = read_first(state.true(), walk, state)
    state, match = settle_without_slots(state, found)
    return state, row_of(state, match.node.index, 0, head(_or_refused(match, fine)), form)


def match_prefixes(state: CacheState, keys: Keys, head: Head, form: Layout) -> tuple[CacheState, jax.Array]:
    """`urc.ops.match_prefixes`."""

    def one(state: CacheState, _: jax.Array, walk: Callable[[CacheState], Walk]) -> tuple:
        state, match = settle_without_slots(state, read_first(state.true(), walk, state))
        return state, (), head(match), match.node.index, jnp.int32(0)

    def in_turn(state: CacheState) -> tuple[CacheState, jax.Array]:
        state, _, out = each_in_place(state, keys, one, form)
        return state, out.reshape(-1, form.size)

    def together(state: CacheState) -> tuple[CacheState, jax.Array]:
        state, match = matches.side_by_side(state, keys.rows(), keys.lengths, keys.namespaces)
        return state, joined(head(match), match.slots, form)

    return on_cpu(in_turn, together, state)


def probe(
    state: CacheState, key: jax.Array, length: jax.Array, namespace: jax.Array, head: Head, form: Layout
) -> jax.Array:
    """`urc.ops.probe`; `stop` is NULL, and nothing found, if a token of the key is negative."""
    padded = whole_page(key, state.config)
    found = walk_of(state, padded, key_length(length, key, state.config), namespace)
    found, fine = _if_tokens(found, padded, length)
    return row_of(state, found.usable, used_cut(found), head(_or_refused(probed(state, found), fine)), form)


def probes(state: CacheState, keys: Keys, head: Head, form: Layout) -> jax.Array:
    """`urc.ops.probes`."""

    def one(_: CacheState, i: jax.Array, walk: Callable[[CacheState], Walk]) -> tuple:
        found = walk(state)
        return state, (), head(probed(state, found)), found.usable, used_cut(found)

    def in_turn(state: CacheState) -> jax.Array:
        return each_in_place(state, keys, one, form)[2].reshape(-1, form.size)

    def together(state: CacheState) -> jax.Array:
        match = matches.probes(state, keys.rows(), keys.lengths, namespaces=keys.namespaces)
        return joined(head(match), match.slots, form)

    return on_cpu(in_turn, together, state)


def begin(
    state: CacheState, key: jax.Array, length: jax.Array, namespace: jax.Array, head: Head, form: Layout
) -> tuple[CacheState, jax.Array]:
    """`urc.ops.begin`."""
    config, wanted = state.config, length >= 0
    length, padded = key_length(length, key, config), whole_page(key, config)
    state, begun = requests.begin_one(
        state, wanted, lambda state: walk_of(state, padded, length, namespace), settle_without_slots
    )
    return state, row_of(state, begun.match.node.index, 0, head(begun), form)


def begins(state: CacheState, keys: Keys, head: Head, form: Layout) -> tuple[CacheState, jax.Array]:
    """`urc.ops.begins`."""

    def in_turn(state: CacheState) -> tuple[CacheState, jax.Array]:
        state, _, out = requests.begin_each(state, keys, form, head)
        return state, out.reshape(-1, form.size)

    def together(state: CacheState) -> tuple[CacheState, jax.Array]:
        state, begun = requests.begins(state, keys.rows(), keys.lengths, namespaces=keys.namespaces)
        return state, joined(head(begun), begun.match.slots, form)

    return on_cpu(in_turn, together, state)


def admits(state: CacheState, keys: Keys, more: jax.Array, head: Head, form: Layout) -> tuple[CacheState, jax.Array]:
    """`urc.ops.admits`; in each row the slots taken follow those matched."""
    config = state.config
    rest = [component for component in config.components if not component.copies_on_write]
    widths = {component.name: form.rooms[component.name] for component in rest}

    def in_turn(state: CacheState) -> tuple[CacheState, jax.Array]:
        state, begun, out = requests.begin_each(state, keys, form)
        place = lambda i, c, matched: i * form.size + form.places[c.name] + c.needed(0, matched)
        state, out, *_ = requests.admit_each(state, begun, keys.lengths + more, out, place, widths, head)
        return state, out.reshape(-1, form.size)

    def together(state: CacheState) -> tuple[CacheState, jax.Array]:
        width = max(widths.values())
        state, begun, taken = requests.admits(
            state, keys.rows(), keys.lengths, more=more, namespaces=keys.namespaces, width=width
        )
        slots: dict[str, Any] = dict(begun.match.slots)
        for component in rest:
            name, room = component.name, widths[component.name]
            matched = jnp.pad(slots[name], ((0, 0), (0, max(room - slots[name].shape[1], 0))), constant_values=NULL)
            lane = jnp.arange(room, dtype=jnp.int32) - component.needed(0, begun.match.device_len)[:, None]
            behind = jnp.take_along_axis(taken[name], jnp.maximum(lane, 0), axis=1)
            slots[name] = jnp.where(lane >= 0, behind, matched[:, :room])
        return state, joined(head(begun), slots, form)

    return on_cpu(in_turn, together, state)
