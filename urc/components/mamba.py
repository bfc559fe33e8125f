"""Mamba and other recurrences: one state, which stands for all tokens up to one position."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from urc.components.base import Component, Insertion, Ledger
from urc.errors import InvalidInput
from urc.tables import pool
from urc.tables.packed import NULL, Row

if TYPE_CHECKING:
    from urc.config import CacheConfig


class MambaStore(struct.PyTreeNode):
    """The free states."""

    pool: jax.Array  # i32[pool size + CHUNK]


class Mamba(Component):
    """The state after exactly `end` tokens, at the end of a node; the column `value` is its slot.

    Attributes:
        checkpoint_interval: tokens between the positions at which the model's kernel can hand a state out.
        max_states_per_path: states that a path keeps when one is committed at its end. Those at the end, at forks and
            of locked nodes are spared, though counted; of the others the deepest stay. None: no such limit.

    """

    checkpoint_interval: int = struct.field(pytree_node=False, default=1)
    max_states_per_path: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self) -> None:
        """InvalidInput unless both are positive."""
        for field in ("checkpoint_interval", "max_states_per_path"):
            value = getattr(self, field)
            if value is None and field == "max_states_per_path":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**30:
                raise InvalidInput(f"Mamba needs {field} in [1, 2**30), got {value!r}")

    @property
    def rank(self) -> int:
        """The lowest."""
        return 10

    @property
    def alignment(self) -> int:
        """As the kernel hands states out."""
        return self.checkpoint_interval

    @property
    def copies_on_write(self) -> bool:
        """A state is overwritten by every token, and the one in the tree is shared."""
        return True

    @property
    def most_per_path(self) -> int | None:
        """As configured."""
        return self.max_states_per_path

    def init(self, config: "CacheConfig") -> MambaStore:
        """All states free."""
        size = config.pool_size(self.name)
        return MambaStore(
            pool=pool.init(config.pool_room(self.name), empty=size is None),
        )

    def resume(self, carry: Any, row: Row) -> tuple[Any, jax.Array]:
        """Only where a state is."""
        return carry, self.has_value(row)

    def size(self, row: Row) -> jax.Array:
        """One state, or none."""
        return self.has_value(row).astype(jnp.int32)

    def read(self, store: MambaStore, row: Row, end: jax.Array, out: jax.Array, at: jax.Array) -> jax.Array:
        """The state at `end`."""
        return out.at[at].set(jnp.where(row["end"] == end, row[self.column("value")], out[at]))

    def counts(self, tokens: int, whole: int) -> tuple[int, ...]:
        """One state, that after the whole pages, or none."""
        return 0, 1

    def needed(self, start: Any, end: Any) -> Any:
        """None but the one that it writes into."""
        return 0

    def handed_over(self, slots: np.ndarray, prev_len: int, evicted_len: int) -> np.ndarray:
        """The state."""
        return slots

    def matched(self, length: int) -> int:
        """The state at the end."""
        return min(length, 1)

    def held(self, store: MambaStore, columns: Mapping[str, np.ndarray], index: int) -> tuple[int, ...] | None:
        """The state's slot."""
        value = int(columns[self.column("value")][index])
        return None if value == NULL else (value,)

    def split(self, front: Row, rear: Row) -> tuple[Row, Row]:
        """The state is that at the end: it stays with the rear part, and so do those who hold it."""
        nothing = {"value": NULL, "lock": 0, "host_lock": 0, "session": 0}
        return front | {self.column(field): value for field, value in nothing.items()}, rear

    def commit(
        self, store: MambaStore, ledger: Ledger, row: Row, insertion: Insertion
    ) -> tuple[MambaStore, Ledger, Row]:
        """The end node takes the state; if it has one already, the new one is a duplicate."""
        given = insertion.applies & (insertion.given_len > 0)
        adopts = given & ~self.has_value(row) & (insertion.key_len > 0)
        back = (given & ~adopts).astype(jnp.int32)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, jnp.int32(0), back)
        locked = row[self.column("lock")] > 0
        ledger = ledger | {
            "used": used,
            "evictable": ledger["evictable"] + (adopts & ~locked),
            "protected": ledger["protected"] + (adopts & locked),
        }
        value = jnp.where(adopts, insertion.slots[0], row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}

    def reads(self, row: Row, end: jax.Array) -> jax.Array:
        """The end node alone."""
        return row["end"] == end

    def held_from(self, row: Row) -> jax.Array:
        """What is held is the end, not the run before it."""
        return row["end"] - 1

    def release(
        self, store: MambaStore, ledger: Ledger, row: Row, applies: jax.Array
    ) -> tuple[MambaStore, Ledger, Row]:
        """The state goes back to the pool."""
        count = jnp.where(applies, self.size(row), 0)
        free, used = pool.give(store.pool, ledger["used"], row[self.column("value")][None], jnp.int32(0), count)
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] - count}
        value = jnp.where(applies, NULL, row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}
