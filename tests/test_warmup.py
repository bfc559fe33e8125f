"""Warm-up: afterwards no call compiles."""

import jax
import numpy as np
import pytest

import urc
from urc.handle.warm import BATCHED, FIXED, LONE

KINDS = (urc.Full(), urc.SWA(window=8), urc.Mamba())


@pytest.fixture
def compiled_programs():
    """What is compiled, by any function, while the test runs."""
    seen = []

    def listen(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def cache_of(sessions: int) -> urc.UnifiedRadixCache:
    """A configuration of its own, so that nothing of it has been compiled before."""
    pools = {"full": 1024, "swa": 1024, "mamba": 8}
    return urc.UnifiedRadixCache(
        urc.CacheConfig(components=KINDS, page_size=4, pools=pools, max_key_len=256, max_sessions=sessions)
    )


def test_after_it_no_call_compiles(compiled_programs):
    cache = cache_of(17)
    before = jax.tree.map(np.array, cache.state)
    cache.warmup(tokens=[200], batch=[3], extend=5, calls=[*LONE, *FIXED, *BATCHED])
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.array, cache.state))
    cache = cache_of(17)  # equal configurations share programs
    compiled_programs.clear()
    rng = np.random.default_rng(0)
    keys = [rng.integers(0, 2, n).astype(np.int32) for n in (132, 200, 248)]
    for key in keys:
        cache.probe(key)
        slots = cache.alloc("full", len(key))
        cache.insert(key, {"full": slots, "swa": (), "mamba": ()})
        request = cache.begin(key)
        assert cache.extend(request, len(key) - request.length)
        cache.commit_unfinished(request, key)
        cache.commit_finished(request, key)
        receipt = cache.lock(cache.match_prefix(key).node)
        assert receipt.end == len(key)
        cache.release_early(receipt, "swa")
        cache.unlock(receipt)
        request = cache.begin(key[:-1])
        cache.abort(request)
        cache.evict({"full": 10})
    cache.match_prefixes(keys)
    cache.probes(keys)
    cache.unlock_all(cache.lock_all([m.node for m in cache.match_prefixes(keys)]))
    begun = cache.step(begin=keys, extend=5).begun
    done = [(request, key) for request, key in zip(begun, keys, strict=True) if request is not None]
    assert done
    cache.step(finish=done, begin=keys[:3], extend=5)
    assert compiled_programs == []
    cache.check()


def test_lengths_and_batches_up_to_a_bound_or_those_listed():
    cache = cache_of(18)
    assert cache.warmup(tokens=256, calls=["probe"]).calls == 2  # 128 and 256
    assert cache.warmup(tokens=[256, 200], calls=["probe"]).calls == 1
    assert cache.warmup(tokens=[100], batch=5, calls=["probes"]).calls == 4  # 1, 2, 4, 8
    assert cache.warmup(tokens=[100], calls=[]).calls == 0


@pytest.mark.parametrize(
    "options",
    [{"tokens": 0}, {"tokens": 257}, {"tokens": "128"}, {"tokens": 128, "batch": 0}, {"tokens": 128, "calls": ["fly"]}],
)
def test_bad_bounds(options):
    with pytest.raises(urc.InvalidInput):
        cache_of(19).warmup(**options)
