"""The contract between the tree and one kind of attention state.

A component is a pytree module of static fields: what it is, not what it holds. What it holds is its *store*, a
pytree of its own that the tree passes through and never looks into, and its own columns of the node table. The
tree calls it in the order of a value's life: valid -> split -> overlap -> commit -> lock -> evict.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from urc.errors import Stop
from urc.tables.packed import NULL, Row, none_null

if TYPE_CHECKING:
    from urc.config import CacheConfig

Store = Any
"""A component's own arrays: any pytree of int32 arrays. One with a field `pool` and a method `replace` (such as a
`flax.struct.PyTreeNode`) needs no `pool` and `with_pool` of its own."""

Ledger = dict[str, jax.Array]
"""A component's counters i32[]: `used` (slots not free), `evictable`, `protected` (held by unlocked, locked nodes)."""

COLUMNS = ("value", "lock", "host_lock", "session", "stamp_hi", "stamp_lo")
"""Columns that every component has in the node table: `value` is NULL on a tombstone and otherwise the component's
own; `lock`, `host_lock` and `session` count holders; the two words of `stamp` are its last access."""

Key = tuple[jax.Array, ...]
"""Four words i32[n], compared in order: which of n nodes goes first."""


class Insertion(NamedTuple):
    """What one insert hands to one component, once the place in the tree is known. Lengths i32[], in tokens but one."""

    slots: jax.Array  # i32[n], as `counts` takes them; NULL behind the slots given
    prev_len: jax.Array  # what lies below it is the tree's own already
    evicted_len: jax.Array  # what lies below it was given up by the caller before
    given_len: jax.Array  # how many slots are given; what lies beyond key_len belongs to no page
    key_len: jax.Array  # whole pages of the key
    prefix_len: jax.Array  # the tree held this much of the key
    applies: jax.Array  # bool[]; if not, the insert is refused and nothing may change


class Component(struct.PyTreeNode):
    """One kind of per-prefix state. Subclass, override, and list it in `CacheConfig.components`.

    Methods are pure, traced once per compiled operation, and see a node as its row: the tree's columns by name
    (`length`, `end` in tokens, `start` in the arena, ...) and this component's by `column(...)`.

    Attributes:
        split_refreshes: count a split as an access of both parts in this component's order. SGLang 0.5.23 does so for
            Full; by default a split is not an access.
    """

    split_refreshes: bool = struct.field(pytree_node=False, default=False)

    @functools.cached_property
    def name(self) -> str:
        """What users call it, e.g. in `pools` and `slots`."""
        return type(self).__name__.lower()

    @property
    def rank(self) -> int:
        """On an internal node, evicting one component takes those of lower rank with it."""
        raise NotImplementedError

    @property
    def is_base(self) -> bool:
        """Whether every node of the tree holds this component, so that a node without it is none."""
        return False

    @property
    def evicts_internal(self) -> bool:
        """Whether it evicts its values from internal nodes too, by its own order, or from leaves only."""
        return True

    @property
    def gives_up(self) -> bool:
        """Whether a running request may give slots up before it ends (`evicted_len`)."""
        return False

    @property
    def stop(self) -> Stop:
        """Why a match ends before a node, where this component cannot resume."""
        return Stop.NO_STATE

    @property
    def alignment(self) -> int:
        """Tokens between the positions at which a running request can leave a value of this component."""
        return 1

    @property
    def copies_on_write(self) -> bool:
        """Whether a request writes into one slot of its own, into which what it has matched is copied first."""
        return False

    @property
    def most_per_path(self) -> int | None:
        """How many values one path keeps, but for those that are spared (see `urc.ops.thin`); None: all."""
        return None

    def column(self, field: str) -> str:
        """The node table's name for one of this component's COLUMNS."""
        return f"{self.name}.{field}"

    def init(self, config: "CacheConfig") -> Store:
        """The store of an empty cache."""
        raise NotImplementedError

    # -- valid ---------------------------------------------------------------------------------------------------

    def start(self) -> Any:
        """What `resume` carries from node to node down a path, at the root."""
        return ()

    def resume(self, carry: Any, row: Row) -> tuple[Any, jax.Array]:
        """(carry, bool[]): could a request resume exactly at the end of this node? Called root first."""
        raise NotImplementedError

    def has_value(self, row: Row) -> jax.Array:
        """bool: the node holds this component's value on the device."""
        return row[self.column("value")] != NULL

    def size(self, row: Row) -> jax.Array:
        """Slots (i32) that the node holds of this component."""
        raise NotImplementedError

    def read(self, store: Store, row: Row, end: jax.Array, out: jax.Array, at: jax.Array) -> jax.Array:
        """Writes the slots of this node that a request which resumes at `end` (tokens) reads to their place in `out`.

        Their places are those in which an insert of the same key takes them, counted from out[at] (i32[]) on: as many
        as `counts` takes at most. The rest of `out` (i32[m]) is other requests'.
        """
        raise NotImplementedError

    # -- at the host edge ----------------------------------------------------------------------------------------

    def counts(self, tokens: int, whole: int) -> tuple[int, ...]:
        """How many slots an insert of a key of `tokens` tokens, `whole` in whole pages, may hand in."""
        raise NotImplementedError

    def needed(self, start: Any, end: Any) -> Any:
        """Slots that a request needs for its tokens [start, end); 0 if it `copies_on_write`, as it has that slot.

        On the host of ints; in whole steps of i32[]. So `needed(0, position)` is also where, in a request's row of
        slots, those from a position on begin; and that of all tokens is one of `counts`.
        """
        raise NotImplementedError

    def outlived(self, length: int) -> int:
        """Tokens at the front of the first `length` that a request resumed at `length`, or later, would not read."""
        return 0

    def handed_over(self, slots: np.ndarray, prev_len: int, evicted_len: int) -> np.ndarray:
        """Of the slots given to an insert (i32[n]), the last ones: those that are still the caller's to hand over.

        Nothing else of `slots` is looked at.
        """
        raise NotImplementedError

    def matched(self, length: int) -> int:
        """How many of the slots that `read` has put in place, the first ones, a match of `length` tokens returns."""
        raise NotImplementedError

    def held(self, store: Store, columns: Mapping[str, np.ndarray], index: int) -> tuple[int, ...] | None:
        """The slots that row `index` holds, None on a tombstone; on the host, for eyes and checks."""
        raise NotImplementedError

    # -- split ---------------------------------------------------------------------------------------------------

    def split(self, front: Row, rear: Row) -> tuple[Row, Row]:
        """Shares this component's columns out. Both rows come with the old node's columns, and their new lengths.

        The counters do not change: both parts keep the lock, or the value goes to the part that has it.
        """
        raise NotImplementedError

    # -- overlap, commit -----------------------------------------------------------------------------------------

    def well_formed(self, insertion: Insertion) -> jax.Array:
        """bool[]: none of the slots that an insert hands over is NULL."""
        return none_null(insertion.slots, jnp.int32(0), insertion.given_len)

    def cuts(self, insertion: Insertion, page_size: int) -> tuple[jax.Array, ...]:
        """Positions (i32[], whole pages) of the key at which a node that lacks this component is cut by the insert.

        0 or less: none. The new leaf is such a node. A fixed number, as each is a step of the compiled insert.
        """
        return ()

    def overlaps_from(self, insertion: Insertion) -> jax.Array | None:
        """`overlap` is called for the nodes of the key that end beyond this position (i32[]); None: never."""
        return None

    def overlap(
        self, store: Store, ledger: Ledger, row: Row, insertion: Insertion
    ) -> tuple[Store, Ledger, Row, jax.Array]:
        """Adopts or frees what the caller hands in for the span of one node, new or old. Last: bool[], adopted.

        What is adopted is `protected` where the node is locked, else `evictable`; what is freed is not `used` any more.
        """
        raise NotImplementedError

    def commit(self, store: Store, ledger: Ledger, row: Row, insertion: Insertion) -> tuple[Store, Ledger, Row]:
        """Takes over the slots that `overlap` does not: adopts them at the end node (`row`), or frees them.

        Where `prefix_len < key_len` the node is a new leaf that holds the difference, with `value` NULL, not cut
        yet; else it is the node at which the walk ended. The counters are the component's to keep.
        """
        raise NotImplementedError

    def move(self, store: Store, to: jax.Array, start: jax.Array, length: jax.Array) -> Store:
        """Follows a run of the token arena that moves down from `start` to `to` (compaction)."""
        return store

    # -- lock, access --------------------------------------------------------------------------------------------

    def reads(self, row: Row, end: jax.Array) -> jax.Array:
        """bool: a request that has matched up to `end` (tokens) reads this node of its path. A lock covers these.

        They are the lower part of the path: a node is read only if all below it are.
        """
        raise NotImplementedError

    def held_from(self, row: Row) -> jax.Array:
        """The position (i32) beyond which the parts of this node end that stay held, whatever is split later."""
        return row["end"] - row["length"]

    def touches(self, row: Row, end: jax.Array, page_size: int) -> jax.Array:
        """bool: using the path up to `end` counts as an access of this node of it."""
        return self.reads(row, end)

    # -- evict ---------------------------------------------------------------------------------------------------

    def victim(self, row: Row, is_leaf: jax.Array, config: "CacheConfig") -> tuple[jax.Array, Key]:
        """(bool[n], key): which nodes (rows as columns i32[n]) may be evicted for this component, and in what order.

        `is_leaf` (bool[n]): a device leaf, that is childless and not locked by any component. The default is the
        component's own LRU order over all unlocked nodes that hold it; of two nodes that were accessed together
        the one nearer to the root goes first.
        """
        candidate = self.has_value(row) & (row[self.column("lock")] == 0)
        recency = (row[self.column("stamp_hi")], row[self.column("stamp_lo")])
        return candidate, (jnp.zeros_like(recency[0]), *recency, row["end"])

    def release(self, store: Store, ledger: Ledger, row: Row, applies: jax.Array) -> tuple[Store, Ledger, Row]:
        """Frees the node's value: slots to the pool, `value` NULL, `evictable` down. No-op unless `applies`."""
        raise NotImplementedError

    def pool(self, store: Store) -> jax.Array:
        """The slot pool in the store (see urc.tables.pool)."""
        return store.pool

    def with_pool(self, store: Store, pool: jax.Array) -> Store:
        """The store with another pool."""
        return store.replace(pool=pool)
