"""The walks of a batch, all keys a node further in every step: few steps, for devices that pay for each of them.

`urc.ops.walk` compares as it goes: a loop over nodes, and in it one over the chunks of a run. A GPU waits for the host
in each iteration of a loop whose end it does not know. Here a step looks at the first page of a node alone and takes it
that the key agrees with the rest; what the steps have passed is then compared with the keys all at once, and a walk
that went too far goes back to where it was wrong, now knowing how much agrees. As children of a node differ in their
first page, there is no other child to try, and it ends there.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.config import CacheConfig
from urc.errors import Stop
from urc.ops.walk import Walk, front_part, whole_pages
from urc.state import ROOT
from urc.tables import children
from urc.tables.packed import CHUNK, NULL, Row, Table, select

LEVELS = 8
"""Steps after which what they have passed is compared: a deeper tree takes several rounds, and each compares a chunk
for every step, also for those that were not taken."""

LINKS = 2
"""Rows of a bucket's chain that one step looks at; a longer chain takes several steps."""


def _hit_of(name: str) -> str:
    """The column of a place that says how far a component alone could resume."""
    return f"{name}.hit"


class Query(struct.PyTreeNode):
    """One key. Under vmap, a batch of them."""

    key: jax.Array  # i32[K + pad], so that a page and a chunk can be read at any place of it
    length: jax.Array  # i32[], whole pages
    namespace: jax.Array  # i32[]


class Place(struct.PyTreeNode):
    """How far a walk is. It is over where the column `candidate` is NULL."""

    at: Row
    resumes: dict[str, Any]  # what each component carries down the path


class Step(struct.PyTreeNode):
    """What one step took the key to agree with."""

    before: Place
    node: jax.Array  # i32[], the row looked at last
    start: jax.Array  # i32[], its run in the arena
    agree: jax.Array  # i32[], tokens of it; 0: it is not the child that was looked for


def _child_slot(
    config: CacheConfig, heads: jax.Array, query: Query, node: jax.Array, pos: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(hash of the edge by which `node` would go on at `pos`, first row of its bucket)."""
    page = lax.dynamic_slice(query.key, (pos,), (config.page_size,))
    edge = children.page_hash(node, query.namespace, page)
    return edge, jnp.where(pos < query.length, heads[children.bucket_of(heads, edge)], NULL)


def _begin(config: CacheConfig, heads: jax.Array, query: Query) -> Place:
    """At the root."""
    edge, first = _child_slot(config, heads, query, jnp.int32(ROOT), jnp.int32(0))
    fields = ("node", "candidate", "edge", "pos", "deepest", "cut", "inside_len", "usable", "usable_len")
    start = dict.fromkeys((*fields, "whole", "whole_len", *(_hit_of(c.name) for c in config.components)), 0)
    return Place(
        at=Row.of(start | {"candidate": first, "edge": edge}),
        resumes={component.name: component.start() for component in config.components},
    )


def _look(
    config: CacheConfig, nodes: Table, tokens: jax.Array, query: Query, at: Row
) -> tuple[jax.Array, Row, jax.Array]:
    """(row index, row, tokens) of the child by which the key goes on, if it is among the next LINKS of the chain.

    `tokens`: those that the two have in common if they have the whole run in common; 0 if it is not the child, but the
    last that was looked at, NULL at the end of the chain. The result would be the same without a look at the page, but
    each pair of children whose hashes collide, by chance or by intent, would then cost a round.
    """
    page = config.page_size
    asked = lax.dynamic_slice(query.key, (at["pos"],), (page,))

    def look(candidate: jax.Array) -> tuple[Row, jax.Array]:
        row = nodes.get(candidate)
        here = (row["hash"] == at["edge"]) & (row["parent"] == at["node"]) & (row["namespace"] == query.namespace)
        equal = jnp.all(lax.dynamic_slice(tokens, (row["start"],), (page,)) == asked)
        return row, (candidate >= 0) & here & equal

    candidate = at["candidate"]
    row, found = look(candidate)
    for _ in range(LINKS - 1):
        candidate = jnp.where(found | (candidate < 0), candidate, row["next"])
        row, found = look(candidate)
    return candidate, row, jnp.where(found, jnp.minimum(row["length"], query.length - at["pos"]), 0)


def _go(
    config: CacheConfig, heads: jax.Array, query: Query, place: Place, node: jax.Array, row: Row, agree: jax.Array
) -> Place:
    """On by `agree` tokens (i32[], whole pages) of a node; by 0, to the next row of the chain."""
    at, found = place.at, agree > 0
    ends = found & (agree == row["length"])
    inside = found & ~ends
    pos = at["pos"] + agree
    edge, first = _child_slot(config, heads, query, node, pos)
    onward = jnp.where(node < 0, NULL, row["next"])
    visited = select(inside, front_part(row, agree, config)[0], row)
    agreed, resumes, hits = found, {}, {}
    for component in config.components:
        before, hit = place.resumes[component.name], _hit_of(component.name)
        after, valid = component.resume(before, visited)
        resumes[component.name] = jax.tree.map(lambda new, old: jnp.where(found, new, old), after, before)
        hits[hit] = jnp.where(found & valid, pos, at[hit])
        agreed = agreed & valid
    return Place(
        at=Row.of(
            {
                "node": jnp.where(ends, node, at["node"]),
                "candidate": jnp.where(found, jnp.where(ends, first, NULL), onward),
                "edge": jnp.where(found, edge, at["edge"]),
                "pos": pos,
                "deepest": jnp.where(found, node, at["node"]),
                "cut": jnp.where(inside, agree, 0),
                "inside_len": jnp.where(inside, row["length"], 0),
                "usable": jnp.where(agreed, node, at["usable"]),
                "usable_len": jnp.where(agreed, pos, at["usable_len"]),
                "whole": jnp.where(agreed & ends, node, at["whole"]),
                "whole_len": jnp.where(agreed & ends, pos, at["whole_len"]),
                **hits,
            }
        ),
        resumes=resumes,
    )


def _first_difference(tokens: jax.Array, query: Query, steps: Step, width: int) -> tuple[jax.Array, jax.Array]:
    """(step, tokens): the first of S steps whose run is not what the key says, and how much of it is; S where all are.

    All chunks of all runs are compared at once: the S runs of a key of at most `width` tokens have at most
    width / CHUNK + S of them.
    """
    levels = steps.agree.shape[0]
    chunks = (steps.agree + (CHUNK - 1)) // CHUNK
    until = jnp.cumsum(chunks)  # chunks of the steps so far
    item = jnp.arange(width // CHUNK + levels, dtype=jnp.int32)
    of = jnp.minimum(jnp.sum(until <= item[:, None], axis=1, dtype=jnp.int32), levels - 1)
    offset = (item - (until - chunks)[of]) * CHUNK
    size = steps.agree[of] - offset  # below 1 for what is beyond the last chunk
    read = jax.vmap(lambda array, start: lax.dynamic_slice(array, (start,), (CHUNK,)), in_axes=(None, 0))
    run = read(tokens, steps.start[of] + offset)
    asked = read(query.key, steps.before.at["pos"][of] + offset)
    lane = jnp.arange(CHUNK, dtype=jnp.int32)
    agree = jnp.min(jnp.where((run != asked) & (lane < size[:, None]), lane, CHUNK), axis=1)
    differs = agree < CHUNK
    first = jnp.argmax(differs)
    return jnp.where(jnp.any(differs), of[first], levels), offset[first] + agree[first]


def _where(flag: jax.Array, yes: Any, no: Any) -> Any:
    """`yes` for the keys (axis 0) for which `flag` (bool[B]), else `no`."""
    return jax.tree.map(lambda a, b: jnp.where(flag.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def _outcome(config: CacheConfig, at: Row, length: jax.Array) -> Walk:
    """The result of a walk that is over."""
    usable_len = at["usable_len"]
    stop = jnp.where(at["cut"] > 0, Stop.DIVERGED, Stop.NO_CHILD)
    stop = jnp.where(at["pos"] == length, Stop.KEY_EXHAUSTED, stop)
    short = jnp.int32(NULL)  # of two components that stop equally short, that of the higher rank says why
    for component in sorted(config.components, key=lambda component: component.rank):
        hit = at[_hit_of(component.name)]
        shorter = (usable_len < at["pos"]) & ((short < 0) | (hit <= short))
        stop, short = jnp.where(shorter, component.stop, stop), jnp.where(shorter, hit, short)
    same = ("deepest", "cut", "inside_len", "usable", "usable_len", "whole", "whole_len")
    return Walk(
        **{name: at[name] for name in same},
        length=at["pos"],
        hits={component.name: at[_hit_of(component.name)] for component in config.components},
        stop=stop.astype(jnp.int32),
    )


def walks(
    config: CacheConfig,
    nodes: Table,
    heads: jax.Array,
    tokens: jax.Array,
    keys: jax.Array,
    lengths: jax.Array,
    namespaces: jax.Array,
    *,
    levels: int = LEVELS,
) -> Walk:
    """`walk` of B keys (i32[B, K]; lengths i32[B], whole pages, at most K; namespaces i32[B]): the same, bit for bit.

    Every field of the result is [B]. `levels`: steps between comparisons.
    """
    batch, width = keys.shape
    padded = jnp.pad(keys, ((0, 0), (0, max(CHUNK, config.page_size))))
    queries = Query(key=padded, length=lengths, namespace=namespaces)

    def step(carry: tuple[jax.Array, Place, Step]) -> tuple[jax.Array, Place, Step]:
        number, place, steps = carry
        node, row, agree = jax.vmap(lambda q, p: _look(config, nodes, tokens, q, p.at))(queries, place)
        taken = Step(before=place, node=node, start=row["start"], agree=agree)
        steps = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, number, 0), steps, taken)
        new = jax.vmap(lambda *each: _go(config, heads, *each))(queries, place, node, row, agree)
        return number + 1, _where(place.at["candidate"] >= 0, new, place), steps

    def again(query: Query, steps: Step, which: jax.Array, agree: jax.Array) -> Place:
        """The place after a step that was wrong, had it known how much agrees."""
        taken = jax.tree.map(lambda all_: all_[jnp.minimum(which, levels - 1)], steps)
        return _go(config, heads, query, taken.before, taken.node, nodes.get(taken.node), whole_pages(agree, config))

    def some(place: Place) -> jax.Array:
        return jnp.any(place.at["candidate"] >= 0)

    def rounds(place: Place) -> Place:
        nothing = jnp.zeros(batch, jnp.int32)
        empty = Step(before=place, node=nothing, start=nothing, agree=nothing)
        steps = jax.tree.map(lambda one: jnp.zeros((levels, *one.shape), one.dtype), empty)
        more = lambda carry: (carry[0] < levels) & some(carry[1])
        _, place, steps = lax.while_loop(more, step, (jnp.int32(0), place, steps))
        which, agree = jax.vmap(lambda q, s: _first_difference(tokens, q, s, width), (0, 1))(queries, steps)
        ends = jax.vmap(again, (0, 1, 0, 0))(queries, steps, which, agree)
        return _where(which < levels, ends, place)

    start = jax.vmap(lambda query: _begin(config, heads, query))(queries)
    place = lax.while_loop(some, rounds, start)
    return jax.vmap(lambda at, length: _outcome(config, at, length))(place.at, lengths)
