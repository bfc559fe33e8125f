"""On a CPU each of the handle's programs is one kernel; what no kernel can do runs in pieces, with the same results."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from tests.test_program import CONFIG, GIVEN, KEY, KINDS, PROGRAMS, shaped
from urc import kernel, numbers
from urc import state as states
from urc.ops.compact import by_radix
from urc.policies import Policy
from urc.program import StateArrays
from urc.tables.packed import common_run, copy_run, move_run, none_null

needs_kernels = pytest.mark.skipif(not kernel.supported(), reason="this XLA, or its platform, makes no such kernels")
OPERATION = re.compile(r" = (?:\(.*?\)|\S+) ([\w\-]+)\(")
SMALL = (shaped(128),) * 2
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast"}
"""Operations for which nothing runs."""


def entry_of(text: str) -> list[str]:
    """What a compiled program runs, from outside."""
    body = text[text.index("\nENTRY ") :]
    lines = re.sub(r"/\*.*?\*/", "", body[: body.index("\n}")]).splitlines()[2:]
    return [match.group(1) for line in lines if (match := OPERATION.search(line)) and match.group(1) not in FREE]


def text_of(name: str) -> str:
    """A program of the handle, compiled."""
    arrays, (given, static) = StateArrays(states.init(CONFIG)), GIVEN[name]
    return PROGRAMS[name].lower(arrays, *given, **static).compile().as_text()


@needs_kernels
@pytest.mark.parametrize("name", GIVEN)
def test_a_program_of_the_handle_is_one_kernel(name):
    text = text_of(name)
    ran = entry_of(text)
    assert 'xla_cpu_small_call="true"' in text[text.index("\nENTRY ") :]
    assert ran.count("call") == 1
    assert set(ran) <= {"call", "copy"}  # a result that is an argument as it came is copied
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"s32\[([\d,]+)\]\S* copy\(", text)]
    assert max(sizes, default=0) < KEY, "a key, or a row of results, is copied"


@needs_kernels
@pytest.mark.parametrize(("name", "given"), [("match_prefix", (shaped(130),)), ("insert", (shaped(141), *SMALL))])
def test_what_a_call_allocates_does_not_grow_with_the_tree(name, given):
    """An allocator may take a large array from the system, and give it back, in each call."""
    config = urc.CacheConfig(components=CONFIG.components, pools={kind.name: 4096 for kind in KINDS}, max_nodes=100_000)
    compiled = PROGRAMS[name].lower(StateArrays(states.init(config)), *given).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 32_000


def standing_alone(text: str) -> int:
    """Constants of a compiled program that are no part of a fused operation: each is an array to XLA's runtime."""
    count, fused = 0, False
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            fused = line.lstrip("%").startswith(("fused_", "wrapped_"))
        count += not fused and " constant(" in line
    return count


@needs_kernels
@pytest.mark.parametrize("name", ["match_prefix", "insert", "lock", "evict"])
def test_few_constants_stand_alone(name, monkeypatch):
    few = standing_alone(text_of(name))
    monkeypatch.setattr(numbers, "numbers_in", lambda jaxpr: None)
    PROGRAMS[name]._made.clear()
    many = standing_alone(text_of(name))
    PROGRAMS[name]._made.clear()
    assert 4 * few < 3 * many, (few, many)


class Middle(Policy):
    """The median of three columns first; the median by sorting, which no kernel does, or not."""

    by_sorting: bool = True

    def score(self, row, recency):
        """(median, last access)."""
        a, b, c = row["hits"], row["length"], row["end"]
        if self.by_sorting:
            middle = jnp.sort(jnp.stack([a, b, c], axis=-1), axis=-1)[..., 1]
        else:
            middle = jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))
        return (middle, *recency)


class MiddleBySelection(Middle):
    by_sorting = False


def history(policy: Policy) -> list:
    """What a cache that is too small answers."""
    cache = urc.UnifiedRadixCache(urc.CacheConfig(pools={"full": 40}, policy=policy, max_nodes=32))
    random, answers = np.random.default_rng(3), []
    for _ in range(40):
        key = random.integers(0, 2, 8)
        hit = cache.match_prefix(key)
        missing, receipt = len(key) - hit.device_len, cache.lock(hit.node)
        short = missing - cache.sizes()["full"].free
        if short > 0:
            answers.append(sorted(cache.evict({"full": short}).freed["full"].tolist()))
        fresh = cache.alloc("full", missing)
        cache.insert(key, {"full": [*hit.slots["full"], *fresh]}, prev_prefix_len=hit.device_len)
        cache.unlock(receipt)
        answers.append(hit.device_len)
    return answers


def test_a_policy_that_sorts_is_no_kernel_and_decides_the_same():
    answers = history(Middle())
    assert answers == history(MiddleBySelection())
    assert any(isinstance(one, list) for one in answers)


@needs_kernels
def test_a_kernel_may_have_no_use_for_an_operand():
    used, unused = jnp.arange(5, dtype=jnp.int32), jnp.arange(7, dtype=jnp.int32)
    empty = jnp.zeros((0, 3), jnp.int32)
    call = jax.jit(lambda *arrays: kernel.one_kernel(lambda a, b, c: [a * 2, c], *arrays))
    twice, nothing = call(used, unused, empty)
    np.testing.assert_array_equal(twice, [0, 2, 4, 6, 8])
    assert nothing.shape == (0, 3)
    assert entry_of(call.lower(used, unused, empty).compile().as_text()).count("call") == 1


@needs_kernels
@pytest.mark.parametrize("length", [0, 1, 17, 255, 256, 257, 521])
def test_runs_in_long_steps(length):
    random = np.random.default_rng(length)
    dst, src = (random.integers(0, 9, 900).astype(np.int32) for _ in range(2))
    asked = np.roll(src, -3)
    asked[100 + length] = 99  # from 100 on as many agree
    values = np.full(900, 5, np.int32)
    values[7 + length] = -1

    def f(dst, src, asked, values, n):
        copied, moved = copy_run(dst, 11, src, 30, n), move_run(dst, 4, 9, n)
        agree = common_run(src, jnp.int32(103), asked, jnp.int32(100), jnp.int32(700))
        fine = [none_null(values, jnp.int32(7), 7 + n + more) for more in (0, 1)]
        return [copied, moved, jnp.stack([agree, *(flag.astype(jnp.int32) for flag in fine)])]

    copied, moved, numbers = jax.jit(lambda *a: kernel.one_kernel(f, *a))(dst, src, asked, values, np.int32(length))
    expected = dst.copy()
    expected[11 : 11 + length] = src[30 : 30 + length]
    np.testing.assert_array_equal(copied, expected)
    expected = dst.copy()
    expected[4 : 4 + length] = dst[9 : 9 + length]
    np.testing.assert_array_equal(moved, expected)
    assert numbers.tolist() == [length, 1, 0]


def test_rows_are_sorted_by_where_their_runs_start():
    random = np.random.default_rng(5)
    start = random.choice(2**31 - 1, 3000, replace=False).astype(np.int32)
    length = random.integers(0, 2, 3000).astype(np.int32)
    sort = lambda start, length, room: by_radix(start.__getitem__, length.__getitem__, room)
    order, live = jax.jit(sort)(start, length, np.full(6000, -1, np.int32))
    rows = np.flatnonzero(length)
    assert int(live) == len(rows)
    np.testing.assert_array_equal(order[: len(rows)], rows[np.argsort(start[rows])])


@needs_kernels
def test_what_is_traced_inside_a_kernel_knows_it():
    seen = []

    def f(a):
        seen.append(kernel.inside())
        return [a + 1]

    jax.jit(lambda a: kernel.one_kernel(f, a))(jnp.arange(3))
    assert seen == [True]
    assert not kernel.inside()


def test_the_environment_turns_kernels_off(monkeypatch):
    monkeypatch.setenv("URC_ONE_KERNEL", "0")
    assert not kernel.supported()
