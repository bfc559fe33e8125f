"""Faults that real systems had with several kinds of state; each test names its row of the list and its sequence.

Pages of 1 and a window of 4, unless said; S is SWA, M is Mamba, "M@4" a state at position 4.
"""

from functools import cache as once

import jax.numpy as jnp
import numpy as np
import pytest

import urc
from tests.engine import Engine, states_of

POOLS = {"full": 128, "swa": 128, "mamba": 8}


@once
def _made(names, page_size, window):
    kinds = {"full": urc.Full(), "swa": urc.SWA(window=window), "mamba": urc.Mamba()}
    config = urc.CacheConfig(
        components=tuple(kinds[name] for name in names),
        page_size=page_size,
        pools={name: POOLS[name] for name in names},
        max_key_len=128,
    )
    return urc.UnifiedRadixCache(config)


def new_cache(*names, page_size=1, window=4):
    cache = _made(("full", *(names or ("swa", "mamba"))), page_size, window)
    cache.reset()
    return cache


def put(cache, tokens, *, state=False, given_up=0, prev=0):
    """Inserts with fresh slots for all that the caller may have."""
    tokens, slots = list(tokens), {}
    for component in cache.config.components:
        name = component.name
        if name == "mamba":
            slots[name] = cache.alloc(name, int(state))
        else:
            first = min(max(prev, given_up) if name == "swa" else prev, len(tokens))
            slots[name] = np.concatenate([np.full(first, -1), cache.alloc(name, len(tokens) - first)])
    evicted = {"swa": given_up} if given_up else None
    result = cache.insert(tokens, slots, prev_prefix_len=prev, evicted_len=evicted)
    cache.check()
    return result


def by_end(cache, name, field="values"):
    """End of each node -> what it has of a component."""
    return {len(view.prefix): getattr(view, field)[name] for view in cache.tree()}


def holders(cache, name):
    """Ends of the nodes that have a component's value."""
    return [end for end, value in by_end(cache, name).items() if value is not None]


def order(cache, name):
    ends = {view.node: len(view.prefix) for view in cache.tree()}
    return [ends[node] for node in cache.access_order(name)]


def test_1_unlock_replays_its_own_receipt():
    """Ins 0..3; ins 0..7; lock both ends; unlock the deeper: the S lock of the 0..3 node is 1, evicting S leaves it."""
    cache = new_cache()
    short = put(cache, range(4)).node
    deep = put(cache, range(8)).node
    first, second = cache.lock(short), cache.lock(deep)
    assert by_end(cache, "swa", "locks") == {4: 1, 8: 1}
    cache.unlock(second)
    assert by_end(cache, "swa", "locks") == {4: 1, 8: 0}
    cache.evict({"swa": 128})
    cache.check()
    assert holders(cache, "swa") == [4]
    cache.unlock(first)
    assert by_end(cache, "full", "locks") == {4: 0}


def test_2_other_components_never_veto_full():
    """Ins 0..9 with S given up below 10: Full 10 evictable, S none; the hybrid hit is 0."""
    cache = new_cache("swa")
    put(cache, range(10), given_up=10)
    assert cache.sizes()["full"].evictable == 10
    assert cache.sizes()["swa"] == urc.Sizes(128, 0, 0)
    found = cache.match_prefix(range(10))
    assert (found.device_len, found.full_len, found.stop) == (0, 10, urc.Stop.WINDOW_BROKEN)
    assert cache.evict({"full": 1}).evicted == {"full": 10, "swa": 0}


@pytest.mark.parametrize("locked", [False, True])
def test_3_a_full_slot_never_changes_and_swa_recovers(locked):
    """Ins 0..7; evict S; lock; re-insert with new slots: the old Full slots, the new S slots."""
    cache = new_cache("swa")
    put(cache, range(4))
    node = put(cache, range(8), prev=4).node
    put(cache, range(12), prev=8)  # so that the others are internal nodes
    full = cache.probe(range(12)).slots["full"][:8].tolist()
    cache.evict({"swa": 8})
    assert holders(cache, "swa") == [12]
    receipt = cache.lock(node) if locked else None
    again = put(cache, range(8))
    assert again.freed["full"].tolist() == list(range(12, 20))  # the pool gives its slots in order
    assert len(again.adopted["swa"]) == 8
    assert cache.match_prefix(range(8)).slots["full"].tolist() == full
    assert cache.match_prefix(range(8)).slots["swa"].tolist() == [-1] * 4 + again.adopted["swa"][4:].tolist()
    assert cache.sizes()["swa"].protected == (4 if locked else 0)  # a lock's window of tombstones counts when revived
    if locked:
        cache.unlock(receipt)
    cache.check()


def test_4_the_ledger_closes_with_unfinished_requests():
    """A chunk of 12 with S given up in [0, 8): S + 4."""
    cache = new_cache("swa")
    result = put(cache, range(12), given_up=8)
    assert len(result.adopted["swa"]) == 4
    assert cache.sizes()["swa"] == urc.Sizes(124, 4, 0)
    assert cache.sizes()["full"] == urc.Sizes(116, 12, 0)
    assert holders(cache, "swa") == [12]
    assert cache.match_prefix(range(12)).device_len == 12


def test_5_early_release_is_once():
    """Ins 0..15; lock; early-release S twice: the second is refused; unlock: all locks 0."""
    cache = new_cache()
    receipt = cache.lock(put(cache, range(16)).node)
    assert by_end(cache, "swa", "locks") == {12: 0, 16: 1}
    cache.release_early(receipt, "swa")
    assert by_end(cache, "swa", "locks") == {12: 0, 16: 0}
    for name in ("swa", "mamba"):  # the lower rank went with it
        with pytest.raises(urc.InvalidInput, match="given back before"):
            cache.release_early(receipt, name)
    with pytest.raises(urc.InvalidInput, match="until it ends"):
        cache.release_early(receipt, "full")
    assert by_end(cache, "full", "locks") == {12: 1, 16: 1}
    cache.unlock(receipt)
    with pytest.raises(urc.InvalidInput, match="not live here"):
        cache.release_early(receipt, "swa")
    assert {count for view in cache.tree() for count in view.locks.values()} == {0}


def test_6_the_receipt_decides_a_release_and_not_todays_value():
    """Evict M; lock; M revived; unlock: the M lock is 0."""
    cache = new_cache()
    put(cache, range(4), state=True)
    put(cache, range(8))
    cache.evict({"mamba": 1})
    assert holders(cache, "mamba") == []
    receipt = cache.lock(put(cache, range(4)).node)
    put(cache, range(4), state=True)
    assert cache.sizes()["mamba"].protected == 1
    cache.unlock(receipt)
    assert by_end(cache, "mamba", "locks") == {4: 0, 8: 0}
    assert cache.sizes()["mamba"] == urc.Sizes(7, 1, 0)


def test_7_what_a_receipt_skipped_is_per_receipt():
    """A lock on a tombstone; restore S; a second lock; early release of the first: the second's S lock is still 1."""
    cache = new_cache()
    node = put(cache, range(4)).node
    put(cache, range(8))
    cache.evict({"swa": 4})
    assert holders(cache, "swa") == [8]
    first = cache.lock(node)
    put(cache, range(4))
    second = cache.lock(node)
    assert by_end(cache, "swa", "locks")[4] == 2
    cache.release_early(first, "swa")
    assert by_end(cache, "swa", "locks")[4] == 1
    assert cache.sizes()["swa"].protected == 4
    cache.unlock(second)
    cache.unlock(first)
    cache.check()


def test_8_a_split_copies_locks_and_keeps_the_boundary():
    """A lock on 0..7; ins 0,1,2,3,9: both parts are locked; release: 0. So for locks of a host copy, too."""
    cache = new_cache()
    node = put(cache, range(8), given_up=8, state=True).node
    receipt = cache.lock(node)
    row = int(np.argmax(np.asarray(cache.state.nodes.data)[:, cache.state.nodes.columns.index("length")]))
    cache.state = cache.state.replace(
        nodes=cache.state.nodes.set(
            jnp.int32(row), **{f"{name}.host_lock": jnp.int32(1) for name in ("full", "swa", "mamba")}
        )
    )
    put(cache, [0, 1, 2, 3, 9], given_up=5)
    assert by_end(cache, "full", "locks") == {4: 1, 8: 1, 5: 0}
    assert by_end(cache, "mamba", "locks") == {4: 0, 8: 1, 5: 0}
    table = cache.state.nodes
    rows = {
        int(r[table.columns.index("end")]): r for r in np.asarray(table.data)[1:-1] if r[table.columns.index("length")]
    }
    host = {name: {end: int(r[table.columns.index(f"{name}.host_lock")]) for end, r in rows.items()} for name in POOLS}
    assert host == {"full": {4: 1, 8: 1, 5: 0}, "swa": {4: 1, 8: 1, 5: 0}, "mamba": {4: 0, 8: 1, 5: 0}}
    cache.unlock(receipt)
    assert {count for view in cache.tree() for count in view.locks.values()} == {0}


def test_9_a_device_leaf_goes_whole_and_a_parent_only_in_part():
    """Evict S on a parent: only S and what ranks lower goes; when its child is gone it is a leaf and goes whole.

    The row's case, a child on the host alone, needs a host tier.
    """
    cache = new_cache()
    put(cache, range(4), state=True)
    put(cache, range(8), state=True, prev=4)
    assert cache.evict({"swa": 1}).evicted == {"full": 0, "swa": 4, "mamba": 1}
    assert holders(cache, "swa") == holders(cache, "mamba") == [8]
    assert cache.evict({"mamba": 1}).evicted == {"full": 4, "swa": 4, "mamba": 1}
    assert cache.evict({"full": 1}).evicted == {"full": 4, "swa": 0, "mamba": 0}
    cache.check()
    assert cache.sizes() == {name: urc.Sizes(size, 0, 0) for name, size in POOLS.items()}


def test_10_each_order_is_its_members_in_order_of_access():
    """Two branches with M; split by match; evict M; match; compare list and order."""
    cache = new_cache()
    put(cache, range(8), state=True)
    put(cache, [0, 1, 2, 3, 20, 21], state=True)
    # Nodes by end: 4 (shared, no state), 8 and 6. The front of the split has the ticks of the rear.
    assert order(cache, "mamba") == [6, 8]
    assert order(cache, "full") == [6, 4, 8]
    cache.match_prefix(range(8))
    assert order(cache, "mamba") == [8, 6]
    assert order(cache, "full") == [8, 4, 6]
    assert cache.evict({"mamba": 1}).evicted["mamba"] == 1  # a leaf, so it goes whole
    assert order(cache, "mamba") == [8]
    assert order(cache, "full") == [8, 4]
    cache.match_prefix(range(8))
    assert (order(cache, "mamba"), order(cache, "swa")) == ([8], [8, 4])
    cache.check()


def test_11_a_match_refreshes_only_the_last_window():
    """W = 10; A = 0..99 as ten nodes; then B; match A: evicting S takes A's old nodes before B's tail."""
    cache = new_cache("swa", window=10)
    for end in range(10, 101, 10):
        put(cache, range(end), prev=end - 10)
    put(cache, range(200, 220))
    cache.match_prefix(range(100))
    cache.evict({"swa": 80})
    cache.check()
    # The last window and page, 90..99 and the node before, are the most recent; before them B; before it A's interior.
    kept = [view.prefix[-1] for view in cache.tree() if view.values["swa"] is not None]
    assert kept == [89, 99, 209, 219]
    assert cache.match_prefix(range(200, 220)).device_len == 20


def test_13_a_split_keeps_the_state_on_the_child():
    """Ins 0..7 with M@8; match 0..6: 0; match 0..7: 8; with M@4 too: match 0..6: 4."""
    cache = new_cache()
    put(cache, range(8), state=True)
    found = cache.match_prefix(range(7))
    assert (found.device_len, found.hits, found.stop) == (0, {"full": 7, "swa": 7, "mamba": 0}, urc.Stop.NO_STATE)
    assert cache.match_prefix(range(8)).device_len == 8
    put(cache, range(4), state=True)
    assert cache.match_prefix(range(7)).device_len == 4


def test_14_the_hit_is_the_deepest_state_retained_and_forks_and_tails_outlive_interiors():
    """An M pool of 2; a chain with M@4, 8, 12, 16; diverge at 9."""
    cache = new_cache("mamba")
    cache.alloc("mamba", 6)

    def leave(tokens, prev):
        if not cache.sizes()["mamba"].free:
            cache.evict({"mamba": 1})
        return put(cache, tokens, state=True, prev=prev)

    for end in (4, 8, 12, 16):
        leave(range(end), end - 4)
    assert holders(cache, "mamba") == [12, 16]
    fork = [*range(9), 50, 51]
    found = cache.match_prefix(fork)
    assert (found.device_len, found.full_len, found.branching_len) == (0, 9, 9)
    leave(range(9), 9)  # the state at the fork takes the place of the interior one
    assert holders(cache, "mamba") == [9, 16]
    assert cache.match_prefix(fork).device_len == 9
    assert cache.match_prefix(range(16)).device_len == 16


def test_15_branch_points_get_a_state():
    """P = 4: 10 shared and 6 unique tokens, three times, a state left at the branching point: the third hits 8."""
    cache = new_cache("mamba", page_size=4)
    engine = Engine(cache, None)
    hits = []
    for own in (100, 200, 300):
        run = engine.begin((*range(10), *range(own, own + 6)))
        hits.append(run.request.match.device_len)
        for upto in {run.request.match.branching_len, 16} - {0}:
            assert engine.compute(run, upto)
        branch = run.request.match.branching_len
        assert branch == (8 if own == 200 else 0)
        engine.running.remove(run)
        cache.abort(run.request)
        run = engine.begin((*range(10), *range(own, own + 6)))
        for upto in sorted({branch, 16} - {0}):
            assert engine.compute(run, upto)
            assert engine.commit(run, finished=upto == 16)
        engine.ledger_closes()
    assert hits == [0, 0, 8]


@pytest.mark.parametrize("chunks", [(12,), (4, 8, 12), (1, 2, 3, 7, 12), (5, 6, 12)])
def test_16_a_state_at_a_position_is_the_state_after_that_many_tokens(chunks):
    """The toy state knows its position; whatever the chunks, what is matched is what was computed there."""
    cache = new_cache()
    engine, tokens = Engine(cache, 4), tuple(range(12))
    run = engine.begin(tokens)
    for upto in chunks:
        assert engine.compute(run, upto)
        assert engine.commit(run, finished=upto == 12)
    for end in chunks:
        found = cache.match_prefix([*tokens[:end], 99])
        assert found.device_len == end
        assert engine.memory["mamba"][int(found.slots["mamba"][0])] == states_of(tokens)[end]
    for end in set(range(1, 12)) - set(chunks):
        assert cache.match_prefix([*tokens[:end], 99]).device_len == max([c for c in chunks if c < end], default=0)


def test_20_a_refused_copy_on_write_gives_its_slot_back():
    """Begin, with a state to be copied; drop the request: M available unchanged."""
    cache = new_cache()
    put(cache, range(8), state=True)
    before = cache.sizes()["mamba"]
    request = cache.begin([*range(8), 30])
    assert request.copies == {"mamba": (0, 1)}
    assert cache.sizes()["mamba"] == urc.Sizes(before.free - 1, 0, 1)
    cache.abort(request)
    assert cache.sizes()["mamba"] == before
    cache.check()
