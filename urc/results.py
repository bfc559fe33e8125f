"""What the host handle returns: plain Python and NumPy."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from urc import view
from urc.arguments import Namespace
from urc.config import CacheConfig
from urc.errors import Status, Stop
from urc.ops.rows import Layout
from urc.state import ROOT

_ROW_BITS = 31
_STOPS = tuple(Stop)


def node_handle(index: int, generation: int) -> int:
    """A node as one opaque int, of its row and the row's generation; the root is always 0."""
    return index | generation << _ROW_BITS if index else 0


def _handles(index: np.ndarray, generation: np.ndarray) -> list[int]:
    """`node_handle` of each (i32[n])."""
    return np.where(index == ROOT, ROOT, index | generation.astype(np.int64) << _ROW_BITS).tolist()


def node_parts(node: Any) -> tuple[Any, Any]:
    """(row, generation) of a handle; of an array of them, arrays."""
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


Result = TypeVar("Result")


class Batch(Sequence[Result]):
    """Results of a batched call, in order; each is made when it is asked for."""

    def _make(self, i: int) -> Result:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        """One of them, or a list of some."""
        places = range(len(self))[index]
        return self._make(places) if isinstance(places, int) else [self._make(i) for i in places]

    def __iter__(self) -> Iterator[Result]:
        return map(self._make, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (Batch, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class MatchBatch(Batch[MatchResult]):
    """The `MatchResult` of each of B keys, and some of what they say as arrays of all.

    Slots are views of one array of the whole batch: who keeps a few of many for long may want to copy them.
    """

    def __init__(self, config: CacheConfig, rows: np.ndarray, form: Layout) -> None:
        """Of rows (i32[B, ..]) as compiled functions return them."""
        self._config, self._rows, self._form = config, rows, form

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _numbers(self) -> list[list[int]]:
        return self._rows[:, : 6 + len(self._config.components)].tolist()

    def _make(self, i: int) -> MatchResult:
        return match_result(self._config, self._numbers[i], self._rows[i], self._form)

    @property
    def device_len(self) -> np.ndarray:
        """i32[B]."""
        return self._rows[:, 2]

    @property
    def full_len(self) -> np.ndarray:
        """i32[B]."""
        return self._rows[:, 3]

    @cached_property
    def nodes(self) -> list[int]:
        """`node` of each."""
        return _handles(self._rows[:, 0], self._rows[:, 1])

    def slots(self, name: str) -> list[np.ndarray]:
        """`slots[name]` of each, i32[..]; read-only."""
        matched, place = self._config.component(name).matched, self._form.places[name]
        ends = [place + matched(length) for length in self.device_len.tolist()]
        return [row[place:end] for row, end in zip(self._rows, ends, strict=True)]


def match_result(config: CacheConfig, numbers: Sequence[int], row: np.ndarray, form: Layout) -> MatchResult:
    """Of a row as compiled functions return it, and a match's numbers in it."""
    index, generation, device_len, full_len, branching_len, stop = numbers[:6]
    slots, hits = {}, {}
    for (name, place), component, hit in zip(form.places.items(), config.components, numbers[6:], strict=True):
        slots[name] = row[place : place + component.matched(device_len)]
        hits[name] = hit
    node = node_handle(index, generation)
    return MatchResult(device_len, node, slots, 0, node, full_len, hits, branching_len, _STOPS[stop])


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


class HandedOver(NamedTuple):
    """Slots of one component that many inserts have handed over, one after the other, and which of them the tree has.

    Both arrays are nobody else's.
    """

    slots: np.ndarray  # i32[n]
    ends: list[int]  # of those of each insert
    stays: np.ndarray  # bool[n]

    def adopted_and_freed(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of insert i that the tree has, and the others."""
        own = slice(self.ends[i - 1] if i else 0, self.ends[i])
        slots, stays = self.slots[own], self.stays[own]
        return (slots, slots[:0]) if stays.all() else (slots[stays], slots[~stays])


class InsertBatch(Batch["InsertResult | None"]):
    """The `InsertResult` of each of B keys, None where it was refused; and some of what they say as arrays of all."""

    def __init__(self, rows: np.ndarray, shares: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]]) -> None:
        """Of rows (i32[B, ..]) as compiled functions return them; `shares[name](i)`: what was adopted and freed."""
        self._rows, self._shares = rows, shares

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _numbers(self) -> list[list[int]]:
        return self._rows.tolist()

    def _make(self, i: int) -> InsertResult | None:
        status, prefix_len, index, generation, *each = self._numbers[i]
        if status != Status.OK:
            return None
        adopted, freed, existed = {}, {}, {}
        for j, (name, share) in enumerate(self._shares.items()):
            adopted[name], freed[name] = share(i)
            existed[name] = bool(each[3 * j])
        return InsertResult(prefix_len, node_handle(index, generation), adopted, freed, existed)

    @property
    def inserted(self) -> np.ndarray:
        """bool[B]: it was not refused."""
        return self._rows[:, 0] == Status.OK

    @property
    def prefix_len(self) -> np.ndarray:
        """i32[B]."""
        return self._rows[:, 1]

    @cached_property
    def nodes(self) -> list[int]:
        """`node` of each; of one that was refused it means nothing."""
        return _handles(self._rows[:, 2], self._rows[:, 3])


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


class CommitBatch(Batch["CommitResult | None"]):
    """The `CommitResult` of each request that a step finishes, None where it did not fit."""

    def __init__(self, inserted: InsertBatch) -> None:
        """Of what each has put into the tree."""
        self._inserted = inserted

    def __len__(self) -> int:
        return len(self._inserted)

    def _make(self, i: int) -> CommitResult | None:
        result = self._inserted[i]
        return None if result is None else CommitResult(*result, slots={}, copies={})

    @property
    def inserted(self) -> np.ndarray:
        """bool[B]: it did fit."""
        return self._inserted.inserted

    @property
    def prefix_len(self) -> np.ndarray:
        """i32[B]."""
        return self._inserted.prefix_len


@dataclasses.dataclass(kw_only=True, eq=False)
class Request:
    """A running request: the handle keeps it up to date.

    Attributes:
        match: what it found when it began.
        slots: per component, the row of slots that it uses: one per token of `length`, -1 where it needs none any more;
            of `Mamba` the one that it writes into. Read-only.
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
