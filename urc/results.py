"""What the host handle returns: plain Python and NumPy."""

import dataclasses

import numpy as np

from urc.arguments import Namespace
from urc.errors import Stop


@dataclasses.dataclass(frozen=True)
class MatchResult:
    """What the cache holds of a key. Lengths in tokens; a `node` is opaque, 0 is the root."""

    device_len: int
    node: int
    slots: dict[str, np.ndarray]
    host_len: int
    best_node: int
    full_len: int
    stop: Stop


@dataclasses.dataclass(frozen=True)
class InsertResult:
    """What an insert did: `prefix_len` tokens were there already; of the slots handed over, who got which."""

    prefix_len: int
    node: int
    adopted: dict[str, np.ndarray]
    freed: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class EvictResult:
    """Per component, how many slots an eviction freed, and which."""

    evicted: dict[str, int]
    freed: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Receipt:
    """Proof of one lock; `unlock` takes it once."""

    node: int
    end: int
    serial: int
    handle: int


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Slots of one pool: free (None where the caller owns the pool), in unlocked nodes, in locked nodes."""

    free: int | None
    evictable: int
    protected: int


@dataclasses.dataclass(frozen=True)
class NodeView:
    """A node as `UnifiedRadixCache.tree` shows it."""

    node: int
    parent: int
    namespace: Namespace
    key: tuple[int, ...]
    prefix: tuple[int, ...]
    hit_count: int
    priority: int
    values: dict[str, tuple[int, ...] | None]
    locks: dict[str, int]
    is_leaf: bool
