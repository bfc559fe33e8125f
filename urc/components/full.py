"""Full attention: one KV slot per token, needed from the first token to the last."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from urc.components.base import Insertion, Key, Ledger
from urc.components.per_token import PerToken, PerTokenStore
from urc.tables import pool
from urc.tables.packed import Row, copy_run, none_null

if TYPE_CHECKING:
    from urc.config import CacheConfig


class Full(PerToken):
    """A node of the tree always has it; the tree's leaves go by the configured policy."""

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

    def resume(self, carry: Any, row: Row) -> tuple[Any, jax.Array]:
        """Wherever the node has its value."""
        return carry, self.has_value(row)

    def read(self, store: PerTokenStore, row: Row, end: jax.Array, out: jax.Array, at: jax.Array) -> jax.Array:
        """The run's slots, beside its tokens."""
        return copy_run(out, at + (row["end"] - row["length"]), store.slots, row["start"], self.size(row))

    def counts(self, tokens: int, whole: int) -> tuple[int, ...]:
        """One slot per token, or only those of the whole pages."""
        return tokens, whole

    def handed_over(self, slots: np.ndarray, prev_len: int, evicted_len: int) -> np.ndarray:
        """All but the prefix that the tree holds already."""
        return slots[prev_len:]

    def well_formed(self, insertion: Insertion) -> jax.Array:
        """Those below `prev_len` do not matter."""
        return none_null(insertion.slots, insertion.prev_len, insertion.given_len)

    def commit(
        self, store: PerTokenStore, ledger: Ledger, row: Row, insertion: Insertion
    ) -> tuple[PerTokenStore, Ledger, Row]:
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

    def reads(self, row: Row, end: jax.Array) -> jax.Array:
        """The whole path."""
        return jnp.bool_(True)

    def victim(self, row: Row, is_leaf: jax.Array, config: "CacheConfig") -> tuple[jax.Array, Key]:
        """Device leaves by the configured policy."""
        recency = (row[self.column("stamp_hi")], row[self.column("stamp_lo")])
        return is_leaf & self.has_value(row), (*config.policy.score(row, recency), row["end"])
