"""The arrays in which the handle's arguments travel."""

import numpy as np
import pytest

import urc
from urc.handle.buffers import Buffers


def test_an_array_is_lent_to_one_call_at_a_time():
    buffers = Buffers()
    one, other = buffers.take(4, 8), buffers.take(4, 8)
    assert not np.shares_memory(one, other)
    buffers.give(one)
    assert buffers.take(8, 4) is not one  # of another shape
    assert buffers.take(4, 8) is one
    assert not np.shares_memory(buffers.take(4, 8), other)  # that one was not given back


@pytest.mark.parametrize("shape", [(1,), (130,), (3, 131)])
def test_jax_need_not_copy_it(shape):
    array = Buffers().take(*shape)
    assert (array.shape, array.dtype) == (shape, np.int32)
    assert array.ctypes.data % 64 == 0
    assert not array.any()


def test_what_a_call_before_has_left_in_it_does_not_matter():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 64}))
    cache.insert([1, 2, 3, 4], {"full": cache.alloc("full", 4)})
    assert cache.match_prefix([1, 2, 3, 4]).device_len == 4
    assert cache.match_prefix([1, 2]).device_len == 2  # of what is 3, 4 in the array
    for bad in ([1, -2, 3], [1, 2, 3, 2**31]):
        with pytest.raises(urc.InvalidInput):
            cache.match_prefixes([[1, 2, 3], bad])
    assert [match.device_len for match in cache.match_prefixes([[1, 2, 3], [1, 2]])] == [3, 2]
    assert [match.device_len for match in cache.match_prefixes([[1], [7]])] == [1, 0]
    fresh = {"full": cache.alloc("full", 2)}
    assert cache.insert([1, 9], fresh, prev_prefix_len=1).prefix_len == 1
    assert cache.match_prefix([1, 9]).slots["full"].tolist() == [0, fresh["full"][1]]
    cache.check()


def test_a_call_that_is_interrupted_keeps_its_array(monkeypatch):
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 64}))
    cache.probe([1])
    (lent,) = next(iter(cache._buffers._free.values()))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.probe([1])
    assert not any(array is lent for free in cache._buffers._free.values() for array in free)
    assert cache.probe([1]).device_len == 0


def test_a_result_is_not_the_callers_own_array():
    cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=1, pools={"full": 64}))
    slots = cache.alloc("full", 3)
    done = cache.insert([1, 2, 3], {"full": slots})
    slots[:] = 60
    assert done.adopted["full"].tolist() == [0, 1, 2]
