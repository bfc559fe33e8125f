"""The walk down the tree that match, probe and insert share: read-only, small carries, so it vectorises."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.config import CacheConfig
from urc.errors import Stop
from urc.state import ROOT
from urc.tables import children
from urc.tables.packed import CHUNK, NULL, Row, Table, select


class Walk(struct.PyTreeNode):
    """How far a key goes. Lengths in tokens, all i32[]; `node`s are rows."""

    deepest: jax.Array  # node in which the walk ended: at its end, or `cut` tokens into it
    cut: jax.Array  # 0 if the walk ended at a node's end
    inside_len: jax.Array  # the length of `deepest` where `cut` > 0; shows whether the node has been split since
    length: jax.Array  # tokens of the key that are in the tree
    usable: jax.Array  # node in which the deepest prefix ends at which all components agree
    usable_len: jax.Array
    whole: jax.Array  # the same, for prefixes that end at a node's end
    whole_len: jax.Array
    hits: dict[str, jax.Array]  # how far each component alone could resume
    stop: jax.Array


def padded(key: jax.Array, config: CacheConfig) -> jax.Array:
    """The key (i32[K]) with room for a page and a chunk to be read at any place of it."""
    if jnp.ndim(key) != 1:
        raise ValueError(f"a key is i32[K], got shape {jnp.shape(key)}: use the batched form, or jax.vmap")
    return jnp.pad(key, (0, max(CHUNK, config.page_size)))


def key_length(length: jax.Array | int, key: jax.Array, config: CacheConfig) -> jax.Array:
    """Tokens in the whole pages of key[:length]; `length` (i32[...]) is at least 0 and at most all of the key."""
    return whole_pages(jnp.clip(jnp.asarray(length, jnp.int32), 0, key.shape[-1]), config)


def whole_pages(length: jax.Array, config: CacheConfig) -> jax.Array:
    """Tokens in the whole pages of `length` tokens."""
    return length // config.page_size * config.page_size


def front_part(row: Row, cut: jax.Array, config: CacheConfig) -> tuple[Row, Row]:
    """(front, rear): the rows of a node cut after `cut` of its tokens, the tree's links left as they are."""
    rest = row["length"] - cut
    front = row | {"length": cut, "end": row["end"] - rest}
    rear = row | {"start": row["start"] + cut, "length": rest}
    for component in config.components:
        front, rear = component.split(front, rear)
    return front, rear


def common_prefix(tokens: jax.Array, start: jax.Array, key: jax.Array, pos: jax.Array, limit: jax.Array) -> jax.Array:
    """Tokens (i32[], at most `limit`) on which the run at tokens[start:] and key[pos:] agree."""
    lane = jnp.arange(CHUNK, dtype=jnp.int32)

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done, _ = carry
        run = lax.dynamic_slice(tokens, (start + done,), (CHUNK,))
        asked = lax.dynamic_slice(key, (pos + done,), (CHUNK,))
        agree = jnp.min(jnp.where(run != asked, lane, CHUNK))
        return done + agree, agree == CHUNK

    more = lambda c: c[1] & (c[0] < limit)
    return jnp.minimum(lax.while_loop(more, body, (jnp.int32(0), jnp.bool_(True)))[0], limit)


def hit_of(name: str) -> str:
    """The column of a walk that says how far a component alone could resume."""
    return f"{name}.hit"


def walk(
    config: CacheConfig,
    nodes: Table,
    heads: jax.Array,
    tokens: jax.Array,
    key: jax.Array,
    length: jax.Array,
    namespace: jax.Array,
) -> Walk:
    """Follows `key` (i32[K + pad], see `padded`) for `length` (i32[], whole pages) tokens."""
    page = config.page_size

    def child_slot(node: jax.Array, pos: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(hash of the edge by which `node` would go on at `pos`, first row of its bucket)."""
        edge = children.page_hash(node, namespace, lax.dynamic_slice(key, (pos,), (page,)))
        first = heads[children.bucket_of(heads, edge)]
        return edge, jnp.where(pos < length, first, NULL)

    def body(carry: tuple[Row, dict[str, Any]]) -> tuple[Row, dict[str, Any]]:
        at, resumes = carry
        candidate, pos = at["candidate"], at["pos"]
        row = nodes.get(candidate)
        plausible = (row["hash"] == at["edge"]) & (row["parent"] == at["node"]) & (row["namespace"] == namespace)
        limit = jnp.where(plausible, jnp.minimum(row["length"], length - pos), 0)
        agree = whole_pages(common_prefix(tokens, row["start"], key, pos, limit), config)
        found = agree > 0  # a hash alone never decides: at least the first page is equal
        ends = found & (agree == row["length"])
        inside = found & ~ends
        pos = pos + agree
        following, first = child_slot(candidate, pos)

        visited = select(inside, front_part(row, agree, config)[0], row)
        agreed, now, hits = found, {}, {}
        for component in config.components:
            before = resumes[component.name]
            after, valid = component.resume(before, visited)
            now[component.name] = jax.tree.map(lambda new, old: jnp.where(found, new, old), after, before)
            hits[hit_of(component.name)] = jnp.where(found & valid, pos, at[hit_of(component.name)])
            agreed = agreed & valid
        at = Row.of(
            {
                "node": jnp.where(ends, candidate, at["node"]),
                "candidate": jnp.where(found, jnp.where(ends, first, NULL), row["next"]),
                "edge": jnp.where(found, following, at["edge"]),
                "pos": pos,
                "deepest": jnp.where(found, candidate, at["node"]),
                "cut": jnp.where(inside, agree, 0),
                "inside_len": jnp.where(inside, row["length"], 0),
                "usable": jnp.where(agreed, candidate, at["usable"]),
                "usable_len": jnp.where(agreed, pos, at["usable_len"]),
                "whole": jnp.where(agreed & ends, candidate, at["whole"]),
                "whole_len": jnp.where(agreed & ends, pos, at["whole_len"]),
                **hits,
            }
        )
        return at, now

    edge, first = child_slot(jnp.int32(ROOT), jnp.int32(0))
    fields = ("node", "candidate", "edge", "pos", "deepest", "cut", "inside_len", "usable", "usable_len")
    start = dict.fromkeys((*fields, "whole", "whole_len", *(hit_of(c.name) for c in config.components)), 0)
    resumes = {component.name: component.start() for component in config.components}
    first_step = (Row.of(start | {"candidate": first, "edge": edge}), resumes)
    end, _ = lax.while_loop(lambda carry: carry[0]["candidate"] >= 0, body, first_step)
    usable_len = end["usable_len"]
    stop = jnp.where(
        end["pos"] == length,
        Stop.KEY_EXHAUSTED,
        jnp.where(end["cut"] > 0, Stop.DIVERGED, Stop.NO_CHILD),
    )
    short = jnp.int32(
        NULL
    )  # the least that a component alone could resume at; of two, that of the higher rank says why
    for component in sorted(config.components, key=lambda component: component.rank):
        hit = end[hit_of(component.name)]
        shorter = (usable_len < end["pos"]) & ((short < 0) | (hit <= short))
        stop, short = jnp.where(shorter, component.stop, stop), jnp.where(shorter, hit, short)
    return Walk(
        deepest=end["deepest"],
        cut=end["cut"],
        inside_len=end["inside_len"],
        length=end["pos"],
        usable=end["usable"],
        usable_len=usable_len,
        whole=end["whole"],
        whole_len=end["whole_len"],
        hits={component.name: end[hit_of(component.name)] for component in config.components},
        stop=stop.astype(jnp.int32),
    )
