"""What every transition keeps: compiled = not compiled, donated = not, one trace, no big copy, batch = loop."""

import dataclasses
import functools
import importlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from tests.cases import ALL, CASES, CONFIG, CONFIGS, KEYS, SINGLE, WIDTH, filled, key
from urc import ops, testing, view


@pytest.fixture(scope="module")
def state():
    return filled(ALL)


@pytest.fixture(scope="module")
def alone():
    """With `Full` only, for what does not depend on the components."""
    return filled(CONFIG)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=SINGLE)
def single(request):
    return CASES[request.param]


def copy_of(state):
    return jax.tree.map(jnp.copy, state)


def scanned(call):
    """The transition as the body of a scan of three steps."""

    def run(state, *args):
        steps = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *jnp.shape(x))), args)
        return jax.lax.scan(lambda carry, each: call(carry, *each), state, steps)

    return run


def test_compiled_equals_not_compiled_and_keeps_the_invariants(state, case):
    compiled = jax.jit(case.call)(state, *case.args)
    with jax.disable_jit():
        plain = case.call(state, *case.args)
    chex.assert_trees_all_equal(compiled, plain)
    view.check(compiled[0])


def test_donating_equals_not_donating(state, single):
    kept = jax.jit(single.call)(state, *single.args)
    given = ops.donating(single.call)(copy_of(state), *single.args)
    chex.assert_trees_all_equal(kept, given)


def test_a_scan_equals_a_loop(state, single):
    many, results = jax.jit(scanned(single.call))(state, *single.args)
    one, listed, call = state, [], jax.jit(single.call)
    for _ in range(3):
        one, result = call(one, *single.args)
        listed.append(result)
    chex.assert_trees_all_equal(many, one)
    chex.assert_trees_all_equal(results, jax.tree.map(lambda *each: jnp.stack(each), *listed))


def test_vmap_over_states_equals_a_loop(state, single):
    other = jax.jit(ops.evict)(state, {"full": jnp.int32(1)})[0]
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), state, other)
    batched = jax.jit(jax.vmap(lambda one: single.call(one, *single.args)))(both)
    call = jax.jit(single.call)
    for i, one in enumerate((state, other)):
        chex.assert_trees_all_equal(jax.tree.map(lambda x, i=i: x[i], batched), call(one, *single.args))


def test_no_second_trace(state, case):
    traced = chex.assert_max_traces(case.call, n=1)
    call = jax.jit(traced)
    after, _ = call(state, *case.args)
    call(after, *case.args)
    call(urc.init(state.config), *case.args)


@functools.cache
def shape_of(config):
    """The shapes of a state so large that every array of it, but the scalars, counts as big."""
    large = dataclasses.replace(config, max_nodes=60_000, max_sessions=1100)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), urc.init(large))
    assert {leaf.shape for leaf in jax.tree.leaves(shapes) if leaf.size < 1000} == {shapes.scalars.data.shape}
    return shapes


def test_no_array_of_the_state_is_copied_in_a_scan(case):
    assert testing.big_copies(scanned(case.call), shape_of(ALL), *case.args) == []


@pytest.mark.parametrize(
    "name",
    ["match_prefixes", "split", "a session closed", pytest.param("a request, unfinished", marks=pytest.mark.slow)],
)
def test_no_array_of_the_state_is_copied_in_a_call_alone(name):
    """Each of the other transitions is a part of one of these."""
    assert testing.big_copies(CASES[name].call, shape_of(ALL), *CASES[name].args) == []


@pytest.mark.parametrize("kinds", CONFIGS)
def test_nothing_is_copied_for_any_combination_of_components(kinds):
    case = CASES["a request, unfinished"]
    assert testing.big_copies(scanned(case.call), shape_of(CONFIGS[kinds]), *case.args) == []


@pytest.mark.parametrize("first", ["match_prefix", "evict", "lock, release early", "sessions"])
def test_nothing_is_copied_where_an_insert_follows_in_the_same_program(first):
    # A probe is left out: it has no new state to give to the insert, so XLA may put it off unless its result is used.
    def both(state, args, more):
        state, result = CASES[first].call(state, *args)
        state, inserted = CASES["insert"].call(state, *more)
        return state, (result, inserted)

    assert testing.big_copies(both, shape_of(ALL), CASES[first].args, CASES["insert"].args) == []


def test_a_probe_whose_result_is_used_copies_nothing():
    def both(state, tokens, length):
        found = ops.probe(state, tokens, length)
        return ops.match_prefix(state, tokens, found.device_len)

    assert testing.big_copies(both, shape_of(ALL), *CASES["probe"].args) == []


def test_the_copy_detector_sees_a_copy():
    def reads_late(state, at):
        # The old value is needed after the write, so XLA must keep both.
        return state.replace(tokens=state.tokens.at[at].set(7)), state.tokens[at - 1] + state.tokens[3]

    assert testing.big_copies(reads_late, shape_of(CONFIG), jnp.int32(5))


def test_works_inside_shard_map(alone):
    state = alone
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("replica",))
    spec = jax.sharding.PartitionSpec("replica")
    stacked = jax.tree.map(lambda x: x[None], state)

    def match(shard, tokens):
        one = jax.tree.map(lambda x: x[0], shard)
        one, found = ops.match_prefix(one, tokens, jnp.int32(6))
        return jax.tree.map(lambda x: x[None], one), found.device_len[None]

    if hasattr(jax, "shard_map"):
        shard_map = functools.partial(jax.shard_map, check_vma=False)
    else:
        shard_map = functools.partial(importlib.import_module("jax.experimental.shard_map").shard_map, check_rep=False)
    each = jax.jit(shard_map(match, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=(spec, spec)))
    after, length = each(stacked, key(KEYS[3]))
    assert length.tolist() == [6]
    expected, _ = jax.jit(ops.match_prefix)(state, key(KEYS[3]), jnp.int32(6))
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[0], after), expected)


def test_a_batch_equals_the_loop_even_where_its_matches_split_one_node(state):
    # All end inside the run [30..35], at 4, 2, 4 and 2 tokens, or at its end, or elsewhere.
    queries = [KEYS[3][:4], [*KEYS[3][:2], 9, 9], [*KEYS[3][:4], 9, 9], KEYS[3][:2], KEYS[3], KEYS[0], [99, 98]]
    keys = np.stack([key(tokens) for tokens in queries])
    lengths = np.array([len(tokens) for tokens in queries], np.int32)
    batch, results = jax.jit(ops.match_prefixes)(state, keys, lengths)
    loop, listed, match = state, [], jax.jit(ops.match_prefix)
    for one, length in zip(keys, lengths, strict=True):
        loop, result = match(loop, one, length)
        listed.append(result)
    chex.assert_trees_all_equal(batch, loop)
    chex.assert_trees_all_equal(results, jax.tree.map(lambda *each: jnp.stack(each), *listed))
    assert results.full_len.tolist() == [4, 2, 4, 2, 6, 10, 0]
    probed = jax.jit(ops.probes)(state, keys, lengths)
    assert probed.full_len.tolist() == [4, 2, 4, 2, 6, 10, 0]
    chex.assert_trees_all_equal(probed.slots, results.slots)


def test_a_vmap_of_probes_equals_probes(state):
    keys = np.stack([key(tokens) for tokens in KEYS])
    lengths = np.array([len(tokens) for tokens in KEYS], np.int32)
    each = jax.jit(jax.vmap(lambda one, length: ops.probe(state, one, length)))(keys, lengths)
    chex.assert_trees_all_equal(each, jax.jit(ops.probes)(state, keys, lengths))


def test_batched_inserts_equal_a_loop():
    state = urc.init(CONFIG)
    keys = np.stack([key(tokens) for tokens in KEYS])
    lengths = np.array([len(tokens) for tokens in KEYS], np.int32)
    state, slots, _ = ops.alloc(state, "full", jnp.int32(int(lengths.sum())), width=WIDTH)
    held = np.full((len(KEYS), WIDTH), -1, np.int32)
    at = 0
    for i, n in enumerate(lengths):
        held[i, :n] = np.asarray(slots)[at : at + n]
        at += n
    batch, results = jax.jit(ops.inserts)(state, keys, lengths, {"full": held})
    loop, insert = state, jax.jit(ops.insert)
    for i in range(len(KEYS)):
        loop, one = insert(loop, keys[i], lengths[i], {"full": held[i]})
        assert int(one.prefix_len) == int(results.prefix_len[i])
    chex.assert_trees_all_equal(batch, loop)
    assert results.prefix_len.tolist() == [0, 8, 4, 0, 0]


def test_a_dead_state_says_so(alone):
    state = alone
    given = copy_of(state)
    ops.donating(ops.match_prefix)(given, key(KEYS[0]), jnp.int32(2))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    cache = urc.UnifiedRadixCache(CONFIG)
    with pytest.raises(urc.InvalidInput, match="donated"):
        cache.state = given
