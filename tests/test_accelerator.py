"""What runs on accelerators in place of a CPU's loops, run on a CPU: it has to be the same, bit for bit."""

import itertools

import jax
import numpy as np
import pytest
from jax import lax

from tests import fuzz
from tests.pair import Pair, errors
from tests.setups import SETUPS
from urc import compiled
from urc.ops import match
from urc.program import Program
from urc.tables.packed import CHUNK, STEPS, common_run, copy_run, move_run, none_null

PROGRAMS = [value for value in vars(compiled).values() if isinstance(value, Program)]


@pytest.fixture
def as_on_an_accelerator(monkeypatch):
    chosen = []

    def default_of(*operands, default, **others):
        chosen.append(default)
        return default(*operands)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # so that both ways are offered
    monkeypatch.setattr(lax, "platform_dependent", default_of)
    for program in PROGRAMS:
        monkeypatch.setattr(program, "_made", {})
    return chosen


def played(name: str, *, seed: int, steps: int, every: int) -> Pair:
    """The handle beside the oracle, after so many random steps."""
    setup = SETUPS[name]
    refused, no_room = errors()
    pair = Pair(setup, setup.cache(), refused=refused, no_room=no_room)
    drawn = (step for step in iter(fuzz.Draw(setup, np.random.default_rng(seed)).step, None) if step[0] != "malformed")
    fuzz.play(pair, itertools.islice(drawn, steps), every=every)
    return pair


@pytest.mark.parametrize("name", [pytest.param("p2_tlru_tight_arena", marks=pytest.mark.slow), "p1_all_few_nodes"])
def test_the_handle_is_the_oracle(name, as_on_an_accelerator):
    played(name, seed=1, steps=300, every=10)
    assert as_on_an_accelerator


def copied(length: int) -> np.ndarray:
    src, dst = np.arange(3 * CHUNK, dtype=np.int32), np.full(3 * CHUNK, -1, np.int32)
    got = jax.jit(lambda *given: copy_run(*given))(dst, 5, src, 7, length)
    want = dst.copy()
    want[5 : 5 + max(length, 0)] = src[7 : 7 + max(length, 0)]
    assert np.array_equal(got, want)
    moved = jax.jit(lambda *given: move_run(*given))(src, 1, 4, length)
    want = src.copy()
    want[1 : 1 + max(length, 0)] = src[4 : 4 + max(length, 0)]
    assert np.array_equal(moved, want)
    return np.asarray(got)


def looked_at(length: int) -> None:
    held = np.arange(3 * CHUNK, dtype=np.int32)
    asked, bad = held[2:].copy(), held.copy()
    if length >= 0:  # the first that differs, and the first that is none
        asked[3 + length], bad[5 + length] = -7, -1
    common = jax.jit(lambda limit: common_run(held, 5, asked, 3, limit))
    want = [length] * 3 if length >= 0 else [0, 1, 9]
    assert [int(common(max(length, 0) + more)) for more in (0, 1, 9)] == want
    fine = jax.jit(lambda stop: none_null(bad, 5, stop))
    assert [bool(fine(5 + length + more)) for more in (0, 1, 9)] == [True, length < 0, length < 0]


LENGTHS = [-3, 0, 1, *(step + d for step in STEPS[:-1] for d in (-1, 0, 1)), CHUNK - 1, CHUNK, 2 * CHUNK + 9]


@pytest.mark.parametrize("length", LENGTHS)
def test_runs_are_copied_in_chunks(length, as_on_an_accelerator):
    copied(length)
    assert as_on_an_accelerator


@pytest.mark.parametrize("length", LENGTHS)
def test_runs_are_copied_in_steps(length):
    copied(length)


@pytest.mark.parametrize("length", LENGTHS)
def test_runs_are_looked_at_in_chunks(length, as_on_an_accelerator):
    looked_at(length)
    assert as_on_an_accelerator


@pytest.mark.parametrize("length", LENGTHS)
def test_runs_are_looked_at_in_steps(length):
    looked_at(length)


@pytest.mark.parametrize("name", [pytest.param("p2_tlru_tight_arena", marks=pytest.mark.slow), "p1_all_few_nodes"])
def test_matches_in_turn_and_side_by_side_are_the_same(name):
    pair = played(name, seed=2, steps=200, every=50)
    state, rng = pair.cache.state, np.random.default_rng(3)
    held = [node.prefix + node.key for node in pair.cache.tree() if node.namespace is None and node.key]
    assert held
    keys = rng.integers(0, 3, (32, 64)).astype(np.int32)
    for key, row in zip(itertools.cycle(held), keys, strict=False):
        shared = rng.integers(0, len(key) + 1)
        row[:shared] = key[:shared]
    lengths = rng.integers(0, max(map(len, held)) + 9, 32).astype(np.int32)
    spaces = (rng.integers(0, 8, 32) == 0).astype(np.int32)
    ways = [jax.jit(way)(state, keys, lengths, spaces) for way in (match._in_turn, match.side_by_side)]
    jax.tree.map(np.testing.assert_array_equal, *ways)
    assert int(ways[0][1].full_len.max()) > 0
