"""An unlock takes effect with the next call that it matters to; nobody can tell, but by the number of calls."""

import jax
import numpy as np
import pytest

import urc
from urc import compiled

KINDS = urc.Full(), urc.SWA(window=3), urc.Mamba()
CONFIG = urc.CacheConfig(components=KINDS, pools={"full": 60, "swa": 60, "mamba": 12}, max_nodes=40)
A = [1, 2, 3, 4]


def insert(cache: urc.UnifiedRadixCache, key: list[int]) -> urc.InsertResult | None:
    """A key with slots of its own; None, and none taken, where there are too few."""
    wanted = {"full": len(key), "swa": len(key), "mamba": 1}
    slots = {name: cache.alloc(name, n) for name, n in wanted.items()}
    if any(held is None for held in slots.values()):
        for name, held in slots.items():
            if held is not None:
                cache.free(name, held)
        return None
    return cache.insert(key, slots)


@pytest.fixture
def cache():
    made = urc.UnifiedRadixCache(CONFIG)
    yield made
    made.check()


@pytest.fixture
def calls(cache, monkeypatch):
    """The programs that the cache runs, in order."""
    run, seen = urc.program.Program.__call__, []

    def noted(self, *given, **static):
        seen.append(self.transition.__name__)
        return run(self, *given, **static)

    monkeypatch.setattr(urc.program.Program, "__call__", noted)
    return seen


def test_an_unlock_goes_with_the_next_lock(cache, calls):
    node = insert(cache, A).node
    calls.clear()
    for _ in range(3):
        cache.unlock(cache.lock(node))
    assert calls == ["lock"] * 3
    cache.match_prefix(A)
    cache.probe(A)
    cache.free("full", cache.alloc("full", 1))
    assert calls[3:] == ["match_prefix", "probe", "alloc", "free"]
    assert cache.sizes()["full"].protected == 0
    assert calls[7:] == ["lock"]
    assert cache.sizes()["full"].protected == 0
    assert calls[8:] == []


@pytest.mark.parametrize(
    "look",
    [
        lambda cache: cache.evict({"full": 4}).evicted["full"] == 4,
        lambda cache: cache.sizes()["full"].evictable == 4,
        lambda cache: not any(node.locks["full"] for node in cache.tree()),
        lambda cache: int(cache.state.scalars.get(0)["full.protected"]) == 0,
        lambda cache: all(cache.step(begin=[[9] * 58]).begun),
    ],
)
def test_whoever_looks_finds_it_unlocked(cache, look):
    receipt = cache.lock(insert(cache, A).node)
    assert cache.sizes()["full"].protected == 4
    cache.unlock(receipt)
    assert look(cache)


@pytest.mark.parametrize("number", [compiled.MOST_RELEASES, 2 * compiled.MOST_RELEASES + 1])
def test_many_at_once(cache, calls, number):
    node = insert(cache, A).node
    receipts = cache.lock_all([node] * number)
    calls.clear()
    for receipt in receipts[1:]:
        cache.unlock(receipt)
    assert len(calls) == (number - 2) // compiled.MOST_RELEASES
    assert cache.sizes()["full"].protected == 4
    cache.unlock(receipts[0])
    assert cache.sizes()["full"].protected == 0


def test_all_of_a_batch_go_with_the_next_one(cache, calls):
    node = insert(cache, A).node
    calls.clear()
    for number in (5, compiled.MOST_RELEASES, 1):
        cache.unlock_all(cache.lock_all([node] * number))
    assert calls == ["locks"] * 3
    assert cache.sizes()["full"].protected == 0
    receipts = cache.lock_all([node] * (compiled.MOST_RELEASES + 1))
    cache.unlock(receipts[0])
    cache.unlock_all(receipts[1:])  # one too many for one call
    assert calls[3:] == ["lock", "locks", "lock"]
    assert cache.sizes()["full"].protected == 0
    assert calls[6:] == ["lock"]
    cache.unlock_all(cache.lock_all([node] * (2 * compiled.MOST_RELEASES + 1)))
    assert calls[7:] == ["locks", "lock", "lock"]
    assert cache.sizes()["full"].protected == 0


def test_it_is_not_live_any_more_at_once(cache):
    receipt = cache.lock(insert(cache, A).node)
    cache.unlock(receipt)
    with pytest.raises(urc.InvalidInput, match="not live"):
        cache.unlock(receipt)
    with pytest.raises(urc.InvalidInput, match="not live"):
        cache.release_early(receipt, "swa")


def test_a_node_that_is_cut_in_between(cache):
    receipt = cache.lock(insert(cache, A).node)
    cache.unlock(receipt)
    assert cache.match_prefix([1, 2, 9]).full_len == 2
    cache.check()
    assert not any(any(node.locks.values()) for node in cache.tree())


def test_a_state_assigned_in_between_is_as_it_was(cache):
    receipt = cache.lock(insert(cache, A).node)
    saved = cache.state
    cache.unlock(receipt)
    cache.state = saved
    assert cache.sizes()["full"].protected == 4
    cache.unlock(receipt)
    assert cache.sizes()["full"].protected == 0


def test_a_reset_in_between_leaves_nothing_to_be_done(cache, calls):
    cache.unlock(cache.lock(insert(cache, A).node))
    cache.reset()
    calls.clear()
    assert cache.sizes()["full"].free == 60
    assert calls == []


def test_an_interruption_right_after_does_not_release_twice(cache, monkeypatch):
    node = insert(cache, A).node
    other = cache.lock(node)
    cache.unlock(cache.lock(node))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache._buffers, "give", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.sizes()
    assert cache.sizes()["full"].protected == 4
    cache.unlock(other)
    assert cache.sizes()["full"].protected == 0


def test_without_a_state_the_receipt_stays_live(cache):
    receipt, saved = cache.lock(insert(cache, A).node), jax.tree.map(np.asarray, cache.state)
    jax.tree.map(lambda leaf: leaf.delete(), cache.state)
    with pytest.raises(RuntimeError, match="lost its state"):
        cache.unlock(receipt)
    cache.state = saved
    cache.unlock(receipt)
    assert cache.sizes()["full"].protected == 0


def act(cache: urc.UnifiedRadixCache, random: np.random.Generator, receipts: list, *, looks: bool) -> object:
    """One call, the same for the same random numbers. `looks`: after an unlock, so that it takes effect."""
    key, which = random.integers(1, 3, random.integers(1, 9)).tolist(), random.integers(10)
    if which == 0:
        return insert(cache, key)
    if which == 1:
        return cache.evict({"full": int(random.integers(9)), "mamba": int(random.integers(2))}).evicted
    if which == 2:
        return cache.probe(key)
    if which == 3:
        return list(cache.match_prefixes([key, key[::-1]]))
    if which == 4 and receipts:
        try:
            return cache.release_early(receipts[random.integers(len(receipts))], "mamba")
        except urc.InvalidInput as given_back_before:
            return str(given_back_before)
    match = cache.match_prefix(key)
    if which >= 7 and len(receipts) < 12:
        receipts.append(cache.lock(match.node))
        return match, receipts[-1][:2]
    if which >= 5 and receipts:
        cache.unlock(receipts.pop(random.integers(len(receipts))))
        if looks:
            cache.sizes()
    return match


@pytest.mark.parametrize("seed", range(4))
def test_sooner_or_later_makes_no_difference(seed):
    now, later = (urc.UnifiedRadixCache(CONFIG) for _ in range(2))
    held: tuple[list, list] = [], []
    waited = 0
    for i in range(150):
        answers = [
            act(cache, np.random.default_rng([seed, i]), receipts, looks=cache is now)
            for cache, receipts in zip((now, later), held, strict=True)
        ]
        assert str(answers[0]) == str(answers[1])
        waited += bool(later._released)
        for cache in (now, later) if i % 50 == 49 else ():
            cache.check()
    assert waited > 15
    jax.tree.map(np.testing.assert_array_equal, now.state, later.state)
