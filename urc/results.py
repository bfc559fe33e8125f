"""What the host handle returns: plain Python and NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

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


class MatchResult(NamedTuple):
    """What the cache holds of a key. Lengths in tokens; a `node` is opaque, 0 is the root.

    Attributes:
        device_len: a request can resume here: the deepest position at which all components agree.
        node: the node that ends there.
        slots: per component, what such a request reads; read-only. `Full`: one per token; `SWA`: the same, -1 before
            the window; `Mamba`: the state at `device_len`, or none.
        host_len: tokens to be brought back from the host.
        best_node: the deepest usable node on any tier.
        full_len: how far `Full` alone goes.
        hits: how far each component alone goes.
        branching_len: the last position up to `full_len`, and beyond `device_len`, at which a running request can leave
            a state, so that the next one like it hits up to there; 0 if there is none.
        stop: why `device_len` is not more.
    """

    device_len: int
    node: int
    slots: dict[str, np.ndarray]
    host_len: int
    best_node: int
    full_len: int
    hits: dict[str, int]
    branching_len: int
    stop: Stop


class InsertResult(NamedTuple):
    """What an insert did.

    Attributes:
        prefix_len: tokens of the key that were there already.
        node: the node that ends where the key's whole pages end.
        adopted: per component, of the slots handed over those that the tree holds now.
        freed: those that it does not: back in the pool, or the caller's again; and what made room for them.
        existed: per component, whether that node had its value before.
    """

    prefix_len: int
    node: int
    adopted: dict[str, np.ndarray]
    freed: dict[str, np.ndarray]
    existed: dict[str, bool]


class EvictResult(NamedTuple):
    """Per component, how many slots an eviction freed, and which."""

    evicted: dict[str, int]
    freed: dict[str, np.ndarray]


class Receipt(NamedTuple):
    """Proof of one lock; `unlock` takes it once."""

    node: int
    end: int
    serial: int
    handle: int


class CommitResult(NamedTuple):
    """What a request has put into the tree: as an `InsertResult`, and what the request goes on with.

    Attributes:
        prefix_len: tokens of the key that were there already.
        node: the node that ends where the key's whole pages end.
        adopted: per component, of the slots handed over those that the tree holds now.
        freed: those that it does not: back in the pool.
        existed: per component, whether that node had its value before.
        slots: per component, the row that the request uses from now on; none if it is over.
        copies: per component, (from, to): the slot whose state is to be copied to another one before it is written
            again, so that it stays in the tree.
    """

    prefix_len: int
    node: int
    adopted: dict[str, np.ndarray]
    freed: dict[str, np.ndarray]
    existed: dict[str, bool]
    slots: dict[str, np.ndarray]
    copies: dict[str, tuple[int, int]]


@dataclasses.dataclass(kw_only=True, eq=False)
class Request:
    """A running request: the handle keeps it up to date.

    Attributes:
        match: what it found when it began.
        slots: per component, the row of slots that it uses: one per token of `length`, -1 where it needs none any more;
            of `Mamba` the one that it writes into.
        copies: per component, (from, to): the state to be copied before the request first writes.
        length: tokens for which it has slots.
        committed: of those, tokens that are in the tree, and locked.
        inserted: tokens that it has committed itself: what lies below counts it no second time.
        receipt: of that lock.
        namespace: as begun.
        session: the session that refers to what it commits, or None.
        given_up: per component, tokens whose slots it has given back.
        tokens: those that it has committed.
        waiting: whether it waits in a streaming session, to be resumed.
        over: whether it was finished or aborted, or began after a moment to which the cache was rolled back.

    """

    match: MatchResult
    slots: dict[str, np.ndarray]
    copies: dict[str, tuple[int, int]]
    length: int
    committed: int
    receipt: Receipt
    namespace: Namespace = None
    session: int | None = None
    inserted: int = 0
    given_up: dict[str, int] = dataclasses.field(default_factory=dict)
    tokens: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int32))
    waiting: bool = False
    over: bool = False

    def saved(self) -> dict[str, Any]:
        """What it is now, to go back to."""
        kept = vars(self) | {"copies": dict(self.copies), "given_up": dict(self.given_up)}
        return kept | {"slots": {name: slots.copy() for name, slots in self.slots.items()}}


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
    sessions: dict[str, int]
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
