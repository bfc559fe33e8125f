"""The checker must see every kind of broken state; the printer must show what is there."""

import jax
import jax.numpy as jnp
import pytest

import urc
from tests.cases import CONFIG, filled
from urc import view


@pytest.fixture(scope="module")
def state():
    return filled()


def column(name):
    return CONFIG.node_columns.index(name)


def poke(row, name, value):
    return lambda s: s.replace(nodes=s.nodes.replace(data=s.nodes.data.at[row, column(name)].set(value)))


def poke_store(field, at, value):
    def change(s):
        store = s.stores["full"]
        return s.replace(stores={"full": store.replace(**{field: getattr(store, field).at[at].set(value)})})

    return change


def test_a_good_state_passes(state):
    view.check(state)
    view.check(urc.init(CONFIG))


# Rows of the filled state: 1 = [9, 10] under 2 = [7, 8] under 4 = [5, 6] under the root's child, and so on.
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (poke(1, "parent", 0), "children"),
        (poke(2, "children", 5), "counts 5 children"),
        (poke(1, "end", 12), "ends at"),
        (poke(1, "namespace", 3), "another namespace"),
        (poke(1, "hash", 12345), "hash does not belong"),
        (poke(1, "full.lock", 1), "evictable"),
        (poke(1, "full.lock", -1), "negative lock count"),
        (poke(1, "full.value", -1), "does not hold full"),
        (poke(1, "full.stamp_lo", 0), "victim order"),
        (poke(1, "full.stamp_hi", 7), "victim order"),
        (poke(1, "start", 0), "overlap"),
        (lambda s: s.with_scalars(free_nodes=5), "free list"),
        (lambda s: s.with_scalars(arena_live=1), "arena_live"),
        (lambda s: s.with_scalars(arena_top=3), "outside of the used part"),
        (lambda s: s.with_scalars(**{"full.evictable": 0}), "evictable is 0"),
        (lambda s: s.with_scalars(**{"full.protected": 2}), "protected is 2"),
        (lambda s: s.with_scalars(**{"full.used": 3}), "free"),
        (lambda s: s.with_scalars(clock_lo=0), "later than now"),
        (lambda s: s.replace(heads=jnp.full_like(s.heads, -1)), "child table"),
        (poke_store("slots", 0, 8), "held twice"),
        (poke_store("pool", 1000, 1001), "not a set"),
        (poke_store("pool", 1998, 4), "both free and referenced"),
        (lambda s: s.replace(victims=s.victims.at[0, 0, 5].set(3)), "victim order"),
        (poke(1, "full.session", 1), "counts 1 sessions, 0 refer to it"),
        (lambda s: s.replace(sessions=s.sessions.set(jnp.int32(0), node=1)), "session 0 is at -1 tokens"),
        (lambda s: s.replace(sessions=s.sessions.set(jnp.int32(0), node=600)), "holds no node"),
    ],
)
def test_what_is_broken_is_seen(state, change, says):
    with pytest.raises(urc.InvariantError, match=says):
        view.check(change(state))


def test_nodes_come_parents_first_in_the_order_of_their_keys(state):
    listed = view.nodes(state)
    prefixes = [node.prefix for node in listed]
    assert prefixes == [
        (1, 2, 3, 4),
        (1, 2, 3, 4, 5, 6, 7, 8),
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        (1, 2, 3, 4, 5, 6, 7, 8, 11, 12),
        (1, 2, 3, 4, 20, 21),
        (30, 31, 32, 33, 34, 35),
        (40, 41),
    ]
    # The first is walked by three inserts, the second by two.
    assert [node.hit_count for node in listed] == [3, 2, 1, 1, 1, 1, 1]
    assert [node.is_leaf for node in listed] == [False, False, True, True, True, True, True]


def test_access_order_is_newest_first_child_before_parent(state):
    prefix = {node.index: node.prefix for node in view.nodes(state)}
    assert [prefix[row][-1] for row in view.access_order(state, "full")] == [41, 35, 21, 4, 12, 8, 10]


def test_pretty_shows_the_branches(state):
    lines = view.pretty(state).splitlines()
    assert lines[0].startswith("root")
    assert "26 used, 22 evictable, 0 protected" in lines[0]  # four are held by the caller
    assert sum("[9 10]" in line for line in lines) == 1
    assert lines[1].startswith("├─ ")
    assert lines[-1].startswith("└─ ")
    assert "[40 41]" in lines[-1]


def test_a_deep_chain_is_shown_whole():
    depth = 1500  # more than Python's recursion allows
    cache = urc.UnifiedRadixCache(urc.CacheConfig(pools={"full": 2 * depth}))
    cache.insert(range(depth), {"full": cache.alloc("full", depth)})
    # Row 1 keeps the rear, so cutting one token off its front again and again makes a chain.
    cut = jax.jit(lambda state, cuts: jax.lax.scan(lambda s, n: (urc.ops.split(s, jnp.int32(1), n)[0], 0), state, cuts))
    cache.state, _ = cut(cache.state, jnp.ones(depth - 1, jnp.int32))
    assert len(cache.tree()) == depth
    assert cache.tree()[-1].prefix == tuple(range(depth))
    assert len(cache.pretty().splitlines()) == depth + 1
    cache.check()
