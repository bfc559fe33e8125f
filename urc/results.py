"""What the host handle returns: plain Python and NumPy."""

import dataclasses
from collections.abc import Callable

import numpy as np

from urc import view
from urc.arguments import Namespace
from urc.errors import Stop
from urc.state import ROOT

_ROW_BITS = 31


def node_handle(index: int, generation: int) -> int:
    """A node as one opaque int, of its row and the row's generation; the root is always 0."""
    return index | generation << _ROW_BITS if index else 0


def node_parts(node: int) -> tuple[int, int]:
    """(row, generation) of a handle."""
    return node & ((1 << _ROW_BITS) - 1), node >> _ROW_BITS


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


def node_views(nodes: list[view.Node], name_of: Callable[[int], Namespace]) -> list[NodeView]:
    """Nodes as the handle shows them: rows as handles, namespaces by name."""
    handles = {node.index: node_handle(node.index, node.generation) for node in nodes} | {ROOT: 0}
    views = []
    for node in nodes:
        fields = {f.name: getattr(node, f.name) for f in dataclasses.fields(NodeView) if f.name != "node"}
        fields |= {"parent": handles[node.parent], "namespace": name_of(node.namespace)}
        views.append(NodeView(node=handles[node.index], **fields))
    return views
