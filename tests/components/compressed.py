"""A fourth component, as a user would write it in a file of his own: compressed attention state, as DeepSeek-V4's
compressed layers need it, one slot per `ratio` tokens. Nothing in `urc` knows it.

Block i is computed when token `ratio * (i + 1) - 1` is; attention reads all blocks before a position, so a request can
resume only where none is missing. Its values may leave the nodes on their own, lower ranks with them.
"""

import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.components.base import Component
from urc.tables import pool
from urc.tables.packed import CHUNK, NULL, move_run


class CompressedStore(struct.PyTreeNode):
    slots: object  # i32[arena_tokens + CHUNK]: a block's slot stands beside its last token
    pool: object  # i32[pool size + CHUNK]


class Compressed(Component):
    """The column `value` is 0 where a node has the slots of all blocks that end in it, NULL where it lacks them."""

    ratio: int = struct.field(pytree_node=False, default=4)

    @property
    def rank(self):
        return 60

    def init(self, config):
        size = config.pool_size(self.name)
        return CompressedStore(
            slots=jnp.full(config.arena_tokens + CHUNK, NULL, jnp.int32),
            pool=pool.init(config.pool_room(self.name), empty=size is None),
        )

    def start(self):
        return jnp.bool_(True)

    def resume(self, carry, row):
        whole = carry & self.has_value(row)
        return whole, whole

    def _blocks(self, row):
        """(blocks before the node, blocks that end in it)."""
        before = (row["end"] - row["length"]) // self.ratio
        return before, row["end"] // self.ratio - before

    def size(self, row):
        return jnp.where(self.has_value(row), self._blocks(row)[1], 0)

    def _per_block(self, row, count, step, carry):
        """`step(carry, block, place in the arena)` for the first `count` blocks of a node."""
        before, start = self._blocks(row)[0], row["end"] - row["length"]
        place = lambda block: row["start"] + (block + 1) * self.ratio - 1 - start

        def body(state):
            i, carry = state
            return i + 1, step(carry, before + i, place(before + i))

        return lax.while_loop(lambda state: state[0] < count, body, (jnp.int32(0), carry))[1]

    def read(self, store, row, end, out, at):
        step = lambda out, block, place: out.at[at + block].set(store.slots[place])
        return self._per_block(row, self.size(row), step, out)

    def counts(self, tokens, whole):
        return tokens // self.ratio, whole // self.ratio

    def needed(self, start, end):
        return end // self.ratio - start // self.ratio

    def handed_over(self, slots, prev_len, evicted_len):
        return slots[prev_len // self.ratio :]

    def matched(self, length):
        return length // self.ratio

    def held(self, store, columns, index):
        if columns[self.column("value")][index] == NULL:
            return None
        end, start = int(columns["end"][index]), int(columns["end"][index] - columns["length"][index])
        blocks = range(start // self.ratio, end // self.ratio)
        offset = int(columns["start"][index]) - start
        return tuple(int(store.slots[offset + (block + 1) * self.ratio - 1]) for block in blocks)

    def split(self, front, rear):
        return front, rear

    def well_formed(self, insertion):
        lane = jnp.arange(insertion.slots.shape[0], dtype=jnp.int32)
        mine = (lane >= insertion.prev_len // self.ratio) & (lane < insertion.given_len)
        return ~jnp.any(mine & (insertion.slots < 0))

    def cuts(self, insertion, page_size):
        # Like SWA: below `prev_len` the slots are not the caller's, so a tombstone is revived from there on only.
        return (-(-insertion.prev_len // page_size) * page_size,)

    def overlaps_from(self, insertion):
        return insertion.prev_len

    def overlap(self, store, ledger, row, insertion):
        before, count = self._blocks(row)
        start = row["end"] - row["length"]
        adopts = insertion.applies & ~self.has_value(row) & (start >= insertion.prev_len)
        write = lambda slots, block, place: slots.at[place].set(insertion.slots[block])
        slots = self._per_block(row, jnp.where(adopts, count, 0), write, store.slots)
        first = jnp.maximum(before, insertion.prev_len // self.ratio)
        back = jnp.where(insertion.applies & ~adopts, before + count - first, 0)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, first, back)
        taken, locked = jnp.where(adopts, count, 0), row[self.column("lock")] > 0
        ledger = ledger | {
            "used": used,
            "evictable": ledger["evictable"] + jnp.where(locked, 0, taken),
            "protected": ledger["protected"] + jnp.where(locked, taken, 0),
        }
        value = jnp.where(adopts, 0, row[self.column("value")])
        return store.replace(slots=slots, pool=free), ledger, row | {self.column("value"): value}, adopts

    def commit(self, store, ledger, row, insertion):
        first = jnp.maximum(insertion.key_len, insertion.prev_len) // self.ratio
        tail = jnp.where(insertion.applies, insertion.given_len - first, 0)
        free, used = pool.give(store.pool, ledger["used"], insertion.slots, first, tail)
        return store.replace(pool=free), ledger | {"used": used}, row

    def move(self, store, to, start, length):
        return store.replace(slots=move_run(store.slots, to, start, length))

    def reads(self, row, end):
        return jnp.bool_(True)

    def release(self, store, ledger, row, applies):
        count = jnp.where(applies, self.size(row), 0)

        def step(carry, block, place):
            stack, used = carry
            return stack.at[used - 1].set(store.slots[place]), used - 1

        free, used = self._per_block(row, count, step, (store.pool, ledger["used"]))
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] - count}
        value = jnp.where(applies, NULL, row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}
