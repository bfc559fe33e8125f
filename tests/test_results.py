"""What batched calls return: a sequence of results, and columns of them."""

import numpy as np
import pytest

import urc


@pytest.fixture(scope="module")
def cache():
    kinds = (urc.Full(), urc.SWA(window=2), urc.Mamba())
    cache = urc.UnifiedRadixCache(urc.CacheConfig(components=kinds, pools=dict.fromkeys(("full", "swa", "mamba"), 32)))
    slots = {"full": cache.alloc("full", 4), "swa": cache.alloc("swa", 4), "mamba": cache.alloc("mamba", 1)}
    cache.insert([1, 2, 3, 4], slots)
    return cache


def test_a_batch_is_a_sequence(cache):
    found = cache.match_prefixes([[1, 2, 3, 4, 5], [9], [1, 2, 3, 4]])
    assert len(found) == 3
    assert [each.device_len for each in found] == [4, 0, 4]
    assert [each.device_len for each in found] == [4, 0, 4]  # as often as one likes
    assert found[-1].stop == urc.Stop.KEY_EXHAUSTED
    assert [each.device_len for each in found[1:]] == [0, 4]
    assert list(reversed(found))[1].device_len == 0
    with pytest.raises(IndexError):
        found[3]
    with pytest.raises(IndexError):
        found[-4]


def test_columns_are_those_of_the_results(cache):
    found = cache.probes([[1, 2, 3, 4, 5], [9], [1, 2, 3, 4]])
    np.testing.assert_array_equal(found.device_len, [4, 0, 4])
    np.testing.assert_array_equal(found.full_len, [4, 0, 4])
    assert found.nodes == [each.node for each in found]
    for name, lengths in {"full": [4, 0, 4], "swa": [4, 0, 4], "mamba": [1, 0, 1]}.items():
        assert list(map(len, found.slots(name))) == lengths
        for column, each in zip(found.slots(name), found, strict=True):
            np.testing.assert_array_equal(column, each.slots[name])
    assert found.slots("swa")[0][:2].tolist() == [-1, -1]  # before the window
    with pytest.raises(ValueError, match="read-only"):
        found.device_len[0] = 1
    with pytest.raises(urc.InvalidInput, match="none"):
        found.slots("none")


def test_a_result_is_what_was_found_when_it_was_asked_for():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(pools={"full": 8}))
    cache.insert([1, 2], {"full": cache.alloc("full", 2)})
    found = cache.match_prefixes([[1, 2]])
    cache.evict({"full": 2})
    for token in range(4):
        cache.insert([5 + token, 6], {"full": cache.alloc("full", 2)})
    assert found[0].device_len == 2
    assert found[0].slots["full"].tolist() == [0, 1]
    assert cache.match_prefixes([[1, 2]])[0].device_len == 0


def test_inserts_as_columns(cache):
    slots = [{"full": cache.alloc("full", 2)} for _ in range(2)]
    done = cache.insert_all([[7, 8], [7, 9]], slots, prev_prefix_lens=[0, 2])
    assert done.inserted.tolist() == [True, False]
    assert done.prefix_len[0] == 0
    assert done[1] is None
    assert done[0].node == done.nodes[0]
    assert done[0].adopted["full"].tolist() == slots[0]["full"].tolist()
    cache.free("full", slots[1]["full"])


def test_what_a_step_finished_as_columns(cache):
    begun = cache.step(begin=[[20, 21, 22]]).begun
    done = cache.step(finish=[(begun[0], [20, 21, 22])]).finished
    assert (done.inserted.tolist(), done.prefix_len.tolist()) == ([True], [0])
    assert done[0].adopted["full"].tolist() == begun[0].slots["full"].tolist()
    assert done[0].slots == {}


def test_equal_is_what_has_equal_results(cache):
    assert cache.match_prefixes([]) == []
    assert cache.match_prefixes([]) == cache.probes([])
    assert cache.insert_all([], []) == []
    assert cache.step() == ([], [])
    assert cache.match_prefixes([]) != [1]
    assert cache.match_prefixes([]) != 5
    assert repr(cache.match_prefixes([])) == "MatchBatch([])"
