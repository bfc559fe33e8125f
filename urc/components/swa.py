"""Sliding-window attention: one KV slot per token, of which a request reads the last `window`."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from urc.components.base import Insertion, Ledger
from urc.components.per_token import PerToken, PerTokenStore
from urc.errors import InvalidInput, Stop
from urc.tables import pool
from urc.tables.packed import Row, copy_run, none_null


class SWA(PerToken):
    """A window's slots. A node of the tree may lack them (a tombstone), and get them back from a later insert.

    Attributes:
        window: tokens that attention looks back, the current one included.

    """

    window: int = struct.field(pytree_node=False, default=0)

    def __post_init__(self) -> None:
        """InvalidInput unless the window is a positive int."""
        if isinstance(self.window, bool) or not isinstance(self.window, int) or not 0 < self.window < 2**30:
            raise InvalidInput(f"SWA needs window=, its tokens, in [1, 2**30), got {self.window!r}")

    @property
    def rank(self) -> int:
        """Between Full and Mamba."""
        return 50

    @property
    def gives_up(self) -> bool:
        """What decoding has moved past is of no more use to the request."""
        return True

    @property
    def stop(self) -> Stop:
        """The window before the match's end is not whole."""
        return Stop.WINDOW_BROKEN

    def start(self) -> jax.Array:
        """At the root a whole window is at hand: tokens (i32[]) without a tombstone, up to the window."""
        return jnp.int32(self.window)

    def resume(self, carry: jax.Array, row: Row) -> tuple[jax.Array, jax.Array]:
        """Where a whole window lies behind, or everything since the root."""
        run = jnp.minimum(carry + row["length"], self.window)
        run = jnp.where(self.has_value(row), run, 0)
        return run, run == self.window

    def read(self, store: PerTokenStore, row: Row, end: jax.Array, out: jax.Array, at: jax.Array) -> jax.Array:
        """The part of the run that lies in the window: only that is locked for the request."""
        start = row["end"] - row["length"]
        first = jnp.maximum(start, end - self.window)
        count = jnp.where(self.has_value(row), row["end"] - first, 0)
        return copy_run(out, at + first, store.slots, row["start"] + (first - start), count)

    def counts(self, tokens: int, whole: int) -> tuple[int, ...]:
        """One slot per token, or only those of the whole pages, or none."""
        return tokens, whole, 0

    def outlived(self, length: int) -> int:
        """All but the window."""
        return max(length - self.window, 0)

    def handed_over(self, slots: np.ndarray, prev_len: int, evicted_len: int) -> np.ndarray:
        """All but the prefix that the tree holds already and what was given up."""
        return slots[max(prev_len, evicted_len) :]

    def _first(self, insertion: Insertion) -> jax.Array:
        """The first position (i32[]) whose slot the caller hands over; as far as all that is given, where none is."""
        return jnp.maximum(insertion.prev_len, insertion.evicted_len)

    def well_formed(self, insertion: Insertion) -> jax.Array:
        """Those that are not handed over do not matter."""
        return none_null(insertion.slots, self._first(insertion), insertion.given_len)

    def cuts(self, insertion: Insertion, page_size: int) -> tuple[jax.Array, ...]:
        """Where what is handed over begins; and so that what is adopted ends in one window, which a lock pins alone."""
        begin = (self._first(insertion) + (page_size - 1)) // page_size * page_size
        tail = insertion.key_len - -(-self.window // page_size) * page_size
        given = insertion.given_len > 0
        return jnp.where(given, begin, 0), jnp.where(given & (tail > begin), tail, 0)

    def overlaps_from(self, insertion: Insertion) -> jax.Array:
        """Where what is handed over begins."""
        return jnp.where(insertion.given_len > 0, self._first(insertion), insertion.key_len)

    def overlap(
        self, store: PerTokenStore, ledger: Ledger, row: Row, insertion: Insertion
    ) -> tuple[PerTokenStore, Ledger, Row, jax.Array]:
        """A tombstone takes the caller's slots if they cover it; where the node has its own they are duplicates."""
        start, first = row["end"] - row["length"], self._first(insertion)
        given = insertion.applies & (insertion.given_len >= row["end"])
        adopts = given & ~self.has_value(row) & (start >= first)
        count = jnp.where(given, row["end"] - jnp.maximum(start, first), 0)
        taken = jnp.where(adopts, count, 0)
        slots = copy_run(store.slots, row["start"], insertion.slots, start, taken)
        back = jnp.where(adopts, 0, count)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, jnp.maximum(start, first), back)
        locked = row[self.column("lock")] > 0
        ledger = ledger | {
            "used": used,
            "evictable": ledger["evictable"] + jnp.where(locked, 0, taken),
            "protected": ledger["protected"] + jnp.where(locked, taken, 0),
        }
        value = jnp.where(adopts, 0, row[self.column("value")])
        return store.replace(slots=slots, pool=free), ledger, row | {self.column("value"): value}, adopts

    def commit(
        self, store: PerTokenStore, ledger: Ledger, row: Row, insertion: Insertion
    ) -> tuple[PerTokenStore, Ledger, Row]:
        """What lies beyond the whole pages is useless."""
        first = jnp.maximum(insertion.key_len, self._first(insertion))
        tail = jnp.where(insertion.applies, insertion.given_len - first, 0)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, first, tail)
        return store.replace(pool=free), ledger | {"used": used}, row

    def reads(self, row: Row, end: jax.Array) -> jax.Array:
        """The nodes of the trailing window."""
        return row["end"] > end - self.window

    def touches(self, row: Row, end: jax.Array, page_size: int) -> jax.Array:
        """The nodes of the trailing window and one page: so the tails of paths outlive their interiors."""
        return row["end"] > end - (self.window + page_size)
