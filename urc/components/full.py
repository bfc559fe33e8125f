"""Full attention: one KV slot per token, needed from the first token to the last."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from urc.components.base import Component, Insertion, Ledger
from urc.tables import pool, victims
from urc.tables.packed import CHUNK, NULL, Row, copy_run, move_run
from urc.tables.victims import Key

if TYPE_CHECKING:
    from urc.config import CacheConfig


class FullStore(struct.PyTreeNode):
    """Slots of all nodes, the free ones, and the leaves in the order in which they go."""

    slots: jax.Array  # i32[arena_tokens + CHUNK], parallel to the token arena
    pool: jax.Array  # i32[pool size + CHUNK]
    victims: jax.Array  # i32[winners, 5]


class Full(Component):
    """One slot per token. A node of the tree always has it; the tree's leaves go by the configured policy."""

    @property
    def rank(self) -> int:
        """The highest: evicting Full takes everything else on the node."""
        return 100

    @property
    def is_base(self) -> bool:
        """A node is a run of tokens with Full."""
        return True

    @property
    def evicts_internal(self) -> bool:
        """Only leaves go."""
        return False

    def init(self, config: "CacheConfig") -> FullStore:
        """All slots free, no leaf."""
        size = config.pool_size(self.name)
        return FullStore(
            slots=jnp.full(config.arena_tokens + CHUNK, NULL, jnp.int32),
            pool=pool.init(config.pool_room(self.name), empty=size is None),
            victims=victims.init(config.node_rows),
        )

    def resume(self, carry: Any, row: Row) -> tuple[Any, jax.Array]:
        """Wherever the node has its value."""
        return carry, self.has_value(row)

    def size(self, row: Row) -> jax.Array:
        """One slot per token of the run."""
        return jnp.where(self.has_value(row), row["length"], 0)

    def read(self, store: FullStore, row: Row, out: jax.Array) -> jax.Array:
        """The run's slots, beside its tokens."""
        return copy_run(out, row["end"] - row["length"], store.slots, row["start"], self.size(row))

    def counts(self, tokens: int, whole: int) -> tuple[int, ...]:
        """One slot per token, or only those of the whole pages."""
        return tokens, whole

    def handed_over(self, slots: np.ndarray, prev_len: int, evicted_len: int) -> np.ndarray:
        """All but the prefix that the tree holds already."""
        return slots[prev_len:]

    def matched(self, slots: np.ndarray, length: int) -> np.ndarray:
        """The prefix."""
        return slots[:length]

    def held(self, store: FullStore, columns: Mapping[str, np.ndarray], index: int) -> tuple[int, ...] | None:
        """One slot per token of the run."""
        if columns[self.column("value")][index] == NULL:
            return None
        start, length = columns["start"][index], columns["length"][index]
        return tuple(np.asarray(store.slots)[start : start + length].tolist())

    def split(self, front: Row, rear: Row) -> tuple[Row, Row]:
        """Both parts keep everything: slots lie beside the tokens, and whoever locks the path locks both."""
        return front, rear

    def commit(self, store: FullStore, ledger: Ledger, row: Row, insertion: Insertion) -> tuple[FullStore, Ledger, Row]:
        """A new leaf takes the slots beyond the prefix; those of the prefix are duplicates, the tail's are useless."""
        made = jnp.where(insertion.applies, insertion.key_len - insertion.prefix_len, 0)
        slots = copy_run(store.slots, row["start"], insertion.slots, insertion.prefix_len, made)
        duplicates = jnp.where(insertion.applies, insertion.prefix_len - insertion.prev_len, 0)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, insertion.prev_len, duplicates)
        tail = jnp.where(insertion.applies, insertion.given_len - insertion.key_len, 0)
        free, used = pool.give(free, used, insertion.slots, insertion.key_len, tail)
        value = jnp.where(made > 0, 0, row[self.column("value")])
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] + made}
        return store.replace(slots=slots, pool=free), ledger, row | {self.column("value"): value}

    def well_formed(self, slots: jax.Array, prev_len: jax.Array, given_len: jax.Array) -> jax.Array:
        """Those below `prev_len` do not matter."""
        lane = jnp.arange(slots.shape[0], dtype=jnp.int32)
        return ~jnp.any((lane >= prev_len) & (lane < given_len) & (slots < 0))

    def move(self, store: FullStore, to: jax.Array, start: jax.Array, length: jax.Array) -> FullStore:
        """Slots follow their tokens."""
        return store.replace(slots=move_run(store.slots, to, start, length))

    def reads(self, row: Row, end: jax.Array) -> jax.Array:
        """The whole path."""
        return jnp.bool_(True)

    def victim(self, row: Row, is_leaf: jax.Array, config: "CacheConfig") -> tuple[jax.Array, Key]:
        """Device leaves by the configured policy."""
        recency = (row[self.column("stamp_hi")], row[self.column("stamp_lo")])
        return is_leaf & self.has_value(row), (*config.policy.score(row, recency), row["end"])

    def release(self, store: FullStore, ledger: Ledger, row: Row, applies: jax.Array) -> tuple[FullStore, Ledger, Row]:
        """The run's slots go back to the pool."""
        count = jnp.where(applies, self.size(row), 0)
        free, used = pool.give(store.pool, ledger["used"], store.slots, row["start"], count)
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] - count}
        value = jnp.where(applies, NULL, row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}
