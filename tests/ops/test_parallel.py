"""The walks of a batch level by level are those of `urc.ops.walk`, bit for bit, whatever the tree and the hash."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from tests.cases import FULL, MAMBA
from urc import ops
from urc.ops import parallel
from urc.ops.walk import walk
from urc.tables import children
from urc.tables.packed import CHUNK

SHORT, LONG = 32, 3 * CHUNK + 40  # tokens; runs of the long keys cross chunks
KINDS = {"full": (FULL,), "all": (FULL, urc.SWA(window=6), MAMBA)}


def config_of(kinds: str, page: int) -> urc.CacheConfig:
    """The caller owns the slots, so that any will do."""
    return urc.CacheConfig(components=KINDS[kinds], page_size=page, max_nodes=400, arena_tokens=30_000, max_sessions=1)


class Keys:
    """Keys of a tree and of what is asked of it. Pages differ in their last token alone, so that they are compared."""

    def __init__(self, page: int, width: int, seed: int):
        self.rng, self.page, self.width = np.random.default_rng(seed), page, width
        self.known = [np.zeros(0, np.int32)]

    def fresh(self, count: int) -> np.ndarray:
        tokens = np.zeros((count, self.page), np.int32)
        tokens[:, -1] = self.rng.integers(0, 3, count)
        return tokens.reshape(-1)

    def grown(self) -> np.ndarray:
        """An earlier key up to somewhere, and pages after it: a single one, a few, or all that there is room for."""
        old = self.known[self.rng.integers(len(self.known))]
        old = old[: self.rng.integers(len(old) // self.page + 1) * self.page]
        room = (self.width - len(old)) // self.page
        key = np.concatenate([old, self.fresh(min(room, int(self.rng.choice([1, 2, 5, room]))))])
        self.known.append(key)
        return key

    def asked(self) -> np.ndarray:
        """A key of the tree, changed in one token or not, shorter or longer or as it is."""
        key = self.known[self.rng.integers(len(self.known))].copy()
        if len(key) and self.rng.random() < 0.6:
            key[self.rng.integers(len(key))] += self.rng.integers(1, 3)
        key = key[: self.rng.integers(len(key) + 1)] if self.rng.random() < 0.3 else key
        return np.concatenate([key, self.fresh(2)])[: self.width]

    def batch(self, keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(keys, lengths, namespaces), padded with a token that the tree has too."""
        rows = np.zeros((len(keys), self.width), np.int32)
        for row, key in zip(rows, keys, strict=True):
            row[: len(key)] = key
        lengths = np.array([len(key) for key in keys], np.int32)
        return rows, lengths, self.rng.integers(0, 2, len(keys), dtype=np.int32)


def tree_of(config: urc.CacheConfig, keys: Keys, count: int) -> urc.CacheState:
    """`count` inserts, some of them without the slots of a window or a state; then some values are evicted."""
    rows, lengths, spaces = keys.batch([keys.grown() for _ in range(count)])
    names = [component.name for component in config.components]
    most = {component.name: max(component.counts(keys.width, keys.width)) for component in config.components}
    slots = {name: np.zeros((count, most[name]), np.int32) for name in names}
    given = dict.fromkeys(names, lengths) | {"mamba": keys.rng.integers(0, 2, count, dtype=np.int32)}
    given_up = {"swa": keys.rng.integers(0, lengths + 1).astype(np.int32)}
    options: Any = {"namespace": spaces, "given": {name: given[name] for name in names}}
    options["evicted_len"] = given_up if "swa" in names else {}

    @jax.jit
    def grow(state: urc.CacheState, *keys: Any) -> tuple[urc.CacheState, jax.Array]:
        state, inserted = ops.inserts(state, *keys, **options)
        return ops.evict(state, {name: jnp.int32(5) for name in names[1:]})[0], inserted.status

    state, status = grow(urc.init(config), rows, lengths, slots)
    assert (np.asarray(status) == urc.Status.OK).all()
    return state


def both(state: urc.CacheState, levels: int):
    """The two, compiled: (keys, lengths, namespaces) -> (what must come out, what comes out)."""
    config = state.config

    def single(key, length, space):
        key = jnp.pad(key, (0, CHUNK))  # room to read a page and a chunk at its end
        return walk(config, state.nodes, state.heads, state.tokens, key, length, space)

    @jax.jit
    def run(rows, lengths, spaces):
        lengths = lengths // config.page_size * config.page_size
        batch = partial(parallel.walks, config, state.nodes, state.heads, state.tokens, levels=levels)
        return jax.vmap(single)(rows, lengths, spaces), batch(rows, lengths, spaces)

    return run


def compare(state: urc.CacheState, keys: Keys, levels: int, rounds: int) -> list:
    """Compares rounds of 48 walks; returns what came out."""
    run, seen = both(state, levels), []
    for _ in range(rounds):
        want, got = run(*keys.batch([keys.asked() for _ in range(48)]))
        jax.tree.map(np.testing.assert_array_equal, got, want)
        seen.append(jax.tree.map(np.asarray, got))
    return seen


def hash_of_few_bits(bits: int):
    """A hash that takes 2**bits values: different edges share one, in the same bucket or even in the same node."""
    real = children.mixed
    return lambda *edge: real(*edge) & ((1 << bits) - 1)


@pytest.mark.parametrize(
    ("kinds", "page", "width", "levels", "bits"),
    [
        ("full", 1, SHORT, 2, 32),  # many rounds: trees are deeper than two levels
        ("full", 4, SHORT, parallel.LEVELS, 32),
        ("full", 1, SHORT, 3, 0),  # all nodes in one chain, every child of a node plausible
        ("full", 4, SHORT, parallel.LEVELS, 2),
        ("full", 1, LONG, parallel.LEVELS, 32),
        ("all", 1, SHORT, parallel.LEVELS, 1),
        ("all", 4, LONG, 3, 32),
    ],
)
def test_the_walks_are_the_same(kinds, page, width, levels, bits, monkeypatch):
    if bits < 32:
        monkeypatch.setattr(children, "mixed", hash_of_few_bits(bits))
    keys = Keys(page, width, seed=bits + page)
    state = tree_of(config_of(kinds, page), keys, count=60)
    if bits < 32:
        assert set(np.asarray(state.nodes.data)[:, state.nodes.columns.index("hash")]) <= set(range(1 << bits))
    seen = compare(state, keys, levels, rounds=6)

    # The cases are there that the walk tells apart.
    gathered = lambda name: np.concatenate([getattr(found, name) for found in seen])
    stops, cuts, lengths = gathered("stop"), gathered("cut"), gathered("length")
    assert (cuts > 0).any()
    assert (cuts == 0).any()
    assert (lengths == 0).any()
    if width == LONG:
        assert (cuts > CHUNK).any()
    if kinds == "full":
        assert {urc.Stop.KEY_EXHAUSTED, urc.Stop.DIVERGED} <= set(stops.tolist())
    else:
        usable = gathered("usable_len")
        assert (usable < lengths).any()
        assert ((usable > 0) & (usable == lengths)).any()


def test_an_empty_tree_and_empty_keys():
    state = urc.init(config_of("full", 1))
    rows, lengths = np.zeros((3, SHORT), np.int32), np.array([0, 1, SHORT], np.int32)
    want, got = both(state, 4)(rows, lengths, np.zeros(3, np.int32))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert got.length.tolist() == [0, 0, 0]
    assert got.stop.tolist() == [urc.Stop.KEY_EXHAUSTED, urc.Stop.NO_CHILD, urc.Stop.NO_CHILD]
