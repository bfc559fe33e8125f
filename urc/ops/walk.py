"""The walk down the tree that match, probe and insert share: read-only, small carries, so it vectorises."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from urc.config import CacheConfig
from urc.errors import Stop
from urc.state import ROOT
from urc.tables import children
from urc.tables.packed import NULL, Row, Table, common_run, loop


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


def whole_page(key: jax.Array, config: CacheConfig) -> jax.Array:
    """The key (i32[K]), at least a page long."""
    if jnp.ndim(key) != 1:
        raise ValueError(f"a key is i32[K], got shape {jnp.shape(key)}: use the batched form, or jax.vmap")
    return jnp.pad(key, (0, max(config.page_size - key.shape[0], 0)))


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


def walk(
    config: CacheConfig,
    nodes: Table,
    heads: jax.Array,
    tokens: jax.Array,
    key: jax.Array,
    length: jax.Array,
    namespace: jax.Array,
    base: jax.Array | int = 0,
) -> Walk:
    """Follows key[base:] (i32[K], see `whole_page`; i32[]) for `length` (i32[], whole pages) tokens."""
    page = config.page_size

    def child_slot(node: jax.Array, pos: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(hash of the edge by which `node` would go on at `pos`, first row of its bucket)."""
        edge = children.edge_hash(node, namespace, key, base + pos, page)
        first = heads[children.bucket_of(heads, edge)]
        return edge, jnp.where(pos < length, first, NULL)

    def body(at: dict[str, Any]) -> dict[str, Any]:
        candidate, pos = at["candidate"], at["pos"]
        row = nodes.cells(candidate)
        plausible = (row["hash"] == at["edge"]) & (row["parent"] == at["node"]) & (row["namespace"] == namespace)
        limit = jnp.where(plausible, jnp.minimum(row["length"], length - pos), 0)
        agree = whole_pages(common_run(tokens, row["start"], key, base + pos, limit), config)
        found = agree > 0  # a hash alone never decides: at least the first page is equal
        ends = found & (agree == row["length"])
        pos = pos + agree
        following, first = child_slot(candidate, pos)
        agreed, resumes, hits = ends, {}, {}
        for component in config.components:
            name = component.name
            before = at["resumes"][name]
            after, valid = component.resume(before, row)
            resumes[name] = jax.tree.map(lambda new, old: jnp.where(ends, new, old), after, before)
            hits[name] = jnp.where(ends & valid, pos, at["hits"][name])
            agreed = agreed & valid
        return {
            "candidate": jnp.where(ends, first, jnp.where(found, NULL, row["next"])),
            "edge": jnp.where(ends, following, at["edge"]),
            "pos": pos,
            "node": jnp.where(ends, candidate, at["node"]),
            "deepest": jnp.where(found, candidate, at["deepest"]),
            "whole": jnp.where(agreed, candidate, at["whole"]),
            "resumes": resumes,
            "hits": hits,
        }

    edge, first = child_slot(jnp.int32(ROOT), jnp.int32(0))
    zero = jnp.int32(0)
    start = {
        "candidate": first,
        "edge": edge,
        **dict.fromkeys(("pos", "node", "deepest", "whole"), zero),
        "resumes": {component.name: component.start() for component in config.components},
        "hits": {component.name: zero for component in config.components},
    }
    end = loop(lambda at: at["candidate"] >= 0, body, start)

    # Where the key leaves the last node inside, a request may resume at the end of the node's front part.
    pos, deepest, whole, hits = end["pos"], end["deepest"], end["whole"], end["hits"]
    last = nodes.get(deepest)
    whole_len = nodes.get(whole)["end"]
    inside = deepest != end["node"]
    cut = jnp.where(inside, pos - (last["end"] - last["length"]), 0)
    front, agreed = front_part(last, cut, config)[0], inside
    for component in config.components:
        _, valid = component.resume(end["resumes"][component.name], front)
        hits = hits | {component.name: jnp.where(inside & valid, pos, hits[component.name])}
        agreed = agreed & valid
    usable, usable_len = jnp.where(agreed, deepest, whole), jnp.where(agreed, pos, whole_len)
    stop = jnp.where(
        pos == length,
        Stop.KEY_EXHAUSTED,
        jnp.where(cut > 0, Stop.DIVERGED, Stop.NO_CHILD),
    )
    # Whoever alone could resume at the least says why; of two, the one of the higher rank.
    short = jnp.int32(NULL)
    for component in sorted(config.components, key=lambda component: component.rank):
        hit = hits[component.name]
        shorter = (usable_len < pos) & ((short < 0) | (hit <= short))
        stop, short = jnp.where(shorter, component.stop, stop), jnp.where(shorter, hit, short)
    return Walk(
        deepest=deepest,
        cut=cut,
        inside_len=jnp.where(inside, last["length"], 0),
        length=pos,
        usable=usable,
        usable_len=usable_len,
        whole=whole,
        whole_len=whole_len,
        hits={component.name: hits[component.name] for component in config.components},
        stop=stop.astype(jnp.int32),
    )
