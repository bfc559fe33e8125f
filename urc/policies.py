"""Eviction policies: each a pure score of a leaf's fields. Whoever scores least is evicted first.

A policy returns the first words of a key; ties fall to the least recent access. Sources: SLRU (Karedla et al.
1994), T-LRU (Zhang et al. 2025, arXiv 2510.15152); the set is that of SGLang 0.5.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from urc.tables.packed import Row


class Policy(struct.PyTreeNode):
    """A score of nodes. Subclasses hold hyper-parameters only, as static fields, and override `score`."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Three int32 words per node, compared in order.

        `row`: the node table's columns, i32[n] each: `hits` (requests), `priority`, `created_hi/_lo`, `end` and
        `length` (tokens), `longest` (tokens of the longest insert through the node). `recency`: two words, the
        component's last access; larger is more recent. Every word lies in [-2**31, 2**31 - 1].
        """
        raise NotImplementedError


class Lru(Policy):
    """Least recently used."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(0, last access)."""
        return (jnp.zeros_like(recency[0]), *recency)


class Mru(Policy):
    """Most recently used."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(0, minus last access)."""
        return jnp.zeros_like(recency[0]), ~recency[0], ~recency[1]


class Fifo(Policy):
    """First in, first out."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(0, creation)."""
        return jnp.zeros_like(recency[0]), row["created_hi"], row["created_lo"]


class Filo(Policy):
    """First in, last out."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(0, minus creation)."""
        return jnp.zeros_like(recency[0]), ~row["created_hi"], ~row["created_lo"]


class Lfu(Policy):
    """Least frequently used, then least recently."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(requests, last access)."""
        return (row["hits"], *recency)


class Priority(Policy):
    """Lowest priority first, then least recently used."""

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(priority, last access)."""
        return (row["priority"], *recency)


class Slru(Policy):
    """Segmented LRU: nodes that fewer than `protected_hits` requests used go first; LRU within a segment."""

    protected_hits: int = struct.field(pytree_node=False, default=2)

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(in the protected segment, last access)."""
        return ((row["hits"] >= self.protected_hits).astype(jnp.int32), *recency)


class Tlru(Policy):
    """Tail-optimised LRU: what cannot improve tail latency goes first.

    A conversation of `longest` tokens whose next prompt adds `next_prompt` stays under the latency budget as long
    as all but `threshold` tokens are cached; a leaf is safe to evict if what is cached before it suffices.
    """

    threshold: int = struct.field(pytree_node=False, default=0)
    next_prompt: int = struct.field(pytree_node=False, default=0)

    def score(self, row: Row, recency: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(not safe, last access)."""
        needed = jnp.maximum(row["longest"] + (self.next_prompt - self.threshold), 0)
        safe = row["end"] - row["length"] >= needed
        return (1 - safe.astype(jnp.int32), *recency)


POLICIES: dict[str, type[Policy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "mru": Mru,
    "filo": Filo,
    "priority": Priority,
    "slru": Slru,
    "tlru": Tlru,
}
"""Name -> policy, for configurations and the command line."""


def resolve(policy: Any) -> Policy:
    """A policy by name or as an object; ValueError on anything else."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy.lower() in POLICIES:
        return POLICIES[policy.lower()]()
    raise ValueError(f"unknown policy {policy!r}: use one of {', '.join(POLICIES)}, or a urc.policies.Policy")
