"""A component in a user's own file: one state per node end, as a recurrent layer keeps it. Nothing in urc knows it."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import urc
from urc.components.base import Component
from urc.tables import pool, victims
from urc.tables.packed import CHUNK, NULL


class SnapshotStore(struct.PyTreeNode):
    pool: object  # i32[pool size + CHUNK]
    victims: object  # i32[winners, 5]


class Snapshot(Component):
    """The column `value` is the slot of the state at the node's end."""

    @property
    def rank(self):
        return 10

    def init(self, config):
        return SnapshotStore(pool=pool.init(config.pool_size(self.name)), victims=victims.init(config.node_rows))

    def resume(self, carry, row):
        return carry, self.has_value(row)

    def size(self, row):
        return self.has_value(row).astype(jnp.int32)

    def read(self, store, row, out):
        at = row["end"] - 1
        return out.at[at].set(jnp.where(self.has_value(row), row[self.column("value")], out[at]))

    def counts(self, tokens, whole):
        return 0, 1

    def handed_over(self, slots, prev_len, evicted_len):
        return slots

    def matched(self, slots, length):
        return slots[length - 1 : length] if length else slots[:0]

    def held(self, store, columns, index):
        value = int(columns[self.column("value")][index])
        return None if value == NULL else (value,)

    def split(self, front, rear):
        # The state is that at the end, so it stays with the rear part, and so do those who hold it.
        return front | {self.column("value"): NULL, self.column("lock"): 0}, rear

    def commit(self, store, ledger, row, insertion):
        given = insertion.applies & (insertion.given_len > 0)
        adopts = given & ~self.has_value(row) & (insertion.key_len > 0)
        free, used = pool.give(
            store.pool, ledger["used"], insertion.slots, jnp.int32(0), (given & ~adopts).astype(jnp.int32)
        )
        value = jnp.where(adopts, insertion.slots[0], row[self.column("value")])
        locked = row[self.column("lock")] > 0
        ledger = ledger | {
            "used": used,
            "evictable": ledger["evictable"] + (adopts & ~locked),
            "protected": ledger["protected"] + (adopts & locked),
        }
        return store.replace(pool=free), ledger, row | {self.column("value"): value}

    def reads(self, row, end):
        return row["end"] == end

    def release(self, store, ledger, row, applies):
        source = jnp.pad(row[self.column("value")][None], (0, 2 * CHUNK), constant_values=NULL)
        count = (applies & self.has_value(row)).astype(jnp.int32)
        free, used = pool.give(store.pool, ledger["used"], source, jnp.int32(0), count)
        ledger = ledger | {"used": used, "evictable": ledger["evictable"] - count}
        value = jnp.where(applies, NULL, row[self.column("value")])
        return store.replace(pool=free), ledger, row | {self.column("value"): value}


CONFIG = urc.CacheConfig(components=(urc.Full(), Snapshot()), pools={"full": 64, "snapshot": 4})
_cache = urc.UnifiedRadixCache(CONFIG)


@pytest.fixture
def cache():
    _cache.reset()
    return _cache


def insert(cache, tokens, state=True):
    slots = {"full": cache.alloc("full", len(tokens))}
    if state:
        slots["snapshot"] = cache.alloc("snapshot", 1)
    result = cache.insert(tokens, slots)
    cache.check()
    return result


def match(cache, tokens):
    result = cache.match_prefix(tokens)
    cache.check()
    return result


def test_a_match_ends_where_a_state_is(cache):
    insert(cache, range(8))
    first = match(cache, range(7))  # splits at 7; the state stays at 8
    assert (first.device_len, first.full_len) == (0, 7)
    whole = match(cache, range(8))
    assert whole.device_len == 8
    assert whole.slots["snapshot"].tolist() == [0]
    insert(cache, range(4))
    assert match(cache, range(7)).device_len == 4
    assert cache.sizes()["snapshot"] == urc.Sizes(free=2, evictable=2, protected=0)


def test_a_second_state_for_the_same_place_is_freed(cache):
    insert(cache, range(4))
    again = insert(cache, range(4))
    assert again.prefix_len == 4
    assert again.adopted["snapshot"].tolist() == []
    assert again.freed["snapshot"].tolist() == [1]
    assert cache.sizes()["snapshot"].free == 3


def test_on_an_internal_node_only_it_goes_and_a_leaf_goes_whole(cache):
    insert(cache, range(4))
    insert(cache, range(8))
    done = cache.evict({"snapshot": 1})  # the state at 4 is the older one
    cache.check()
    assert done.evicted == {"full": 0, "snapshot": 1}
    assert match(cache, range(6)).device_len == 0
    assert match(cache, range(8)).device_len == 8
    done = cache.evict({"snapshot": 1})
    cache.check()
    # The match of six has cut 4..7 in two: the leaf with the state is 6..7.
    assert done.evicted == {"full": 2, "snapshot": 1}
    assert cache.sizes()["full"] == urc.Sizes(free=58, evictable=6, protected=0)


def test_its_own_order_decides_and_a_match_refreshes_it(cache):
    for start in (0, 10):
        insert(cache, range(start, start + 2))
        insert(cache, range(start, start + 4))
    match(cache, range(2))
    # States by last access, oldest first: at 0..3, 10..11, 10..13, 0..1; the first and third are leaves.
    assert cache.evict({"snapshot": 1}).evicted == {"full": 2, "snapshot": 1}
    cache.check()
    assert cache.evict({"snapshot": 1}).evicted == {"full": 0, "snapshot": 1}
    cache.check()
    assert match(cache, range(2)).device_len == 2
    assert match(cache, range(10, 14)).device_len == 4


def test_a_lock_holds_the_state_at_the_end_only(cache):
    insert(cache, range(4))
    receipt = cache.lock(insert(cache, range(8)).node)
    assert cache.sizes()["snapshot"] == urc.Sizes(free=2, evictable=1, protected=1)
    assert cache.sizes()["full"].protected == 8
    done = cache.evict({"snapshot": 4, "full": 64})
    cache.check()
    assert done.evicted == {"full": 0, "snapshot": 1}
    match(cache, range(6))  # splits the locked node; its front part reads no state
    cache.unlock(receipt)
    cache.check()
    assert cache.sizes()["snapshot"].protected == 0
    assert cache.evict({"full": 64}).evicted == {"full": 8, "snapshot": 1}
    cache.check()
    assert cache.sizes() == {"full": urc.Sizes(64, 0, 0), "snapshot": urc.Sizes(4, 0, 0)}


def test_a_tombstone_can_be_revived(cache):
    insert(cache, range(4))
    insert(cache, range(8))
    cache.evict({"snapshot": 1})
    again = insert(cache, range(4))
    assert len(again.adopted["snapshot"]) == 1
    assert match(cache, range(6)).device_len == 4


def test_wrong_counts_are_refused(cache):
    slots = {"full": cache.alloc("full", 2), "snapshot": cache.alloc("snapshot", 2)}
    with pytest.raises(urc.InvalidInput, match="0 or 1"):
        cache.insert([1, 2], slots)
    assert np.array_equal(
        cache.insert([1, 2], slots | {"snapshot": slots["snapshot"][:1]}).adopted["full"], slots["full"]
    )
