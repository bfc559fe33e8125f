"""What full and sliding-window attention share: a node holds one slot per token, beside its tokens, or none."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from urc.components.base import Component, Ledger
from urc.tables import pool
from urc.tables.packed import CHUNK, NULL, Row, move_run

if TYPE_CHECKING:
    from urc.config import CacheConfig


class PerTokenStore(struct.PyTreeNode):
    """Slots of all nodes, and the free ones."""

    slots: jax.Array  # i32[arena_tokens + CHUNK], parallel to the token arena
    pool: jax.Array  # i32[pool size + CHUNK]


class PerToken(Component):
    """One slot per token. The column `value` is 0 where the node has its slots, NULL on a tombstone."""

    def init(self, config: "CacheConfig") -> PerTokenStore:
        """All slots free, no node."""
        size = config.pool_size(self.name)
        return PerTokenStore(
            slots=jnp.full(config.arena_tokens + CHUNK, NULL, jnp.int32),
            pool=pool.init(config.pool_room(self.name), empty=size is None),
        )

    def size(self, row: Row) -> jax.Array:
        """One slot per token of the run."""
        return jnp.where(self.has_value(row), row["length"], 0)

    def needed(self, start: Any, end: Any) -> Any:
        """One slot per token."""
        return end - start

    def held(self, store: PerTokenStore, columns: Mapping[str, np.ndarray], index: int) -> tuple[int, ...] | None:
        """One slot per token of the run."""
        if columns[self.column("value")][index] == NULL:
            return None
        start, length = columns["start"][index], columns["length"][index]
        return tuple(np.asarray(store.slots)[start : start + length].tolist())

    def matched(self, length: int) -> int:
        """The prefix."""
        return length

    def split(self, front: Row, rear: Row) -> tuple[Row, Row]:
        """Both parts keep everything: slots lie beside the tokens, and whoever holds a span holds both parts of it."""
        return front, rear

    def move(self, store: PerTokenStore, to: jax.Array, start: jax.Array, length: jax.Array) -> PerTokenStore:
        """Slots follow their tokens."""
        return store.replace(slots=move_run(store.slots, to, start, length))

    def release(
        self, store: PerTokenStore, ledger: Ledger, row: Row, applies: jax.Array
    ) -> tuple[PerTokenStore, Ledger, Row]:
        """The run's slots go back to the pool."""
        count = jnp.where(applies, self.size(row), 0)
        free, used = pool.give(store.pool, ledger["used"], store.slots, row["start"], count)
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] - count}
        value = jnp.where(applies, NULL, row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}
