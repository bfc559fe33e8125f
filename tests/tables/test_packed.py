"""Packed tables and runs, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from urc.tables.packed import CHUNK, NULL, Row, Table, common_run, copy_run, move_run, none_null, read_first, select


def table(rows: int = 5) -> Table:
    return Table(data=jnp.arange(rows * 3, dtype=jnp.int32).reshape(rows, 3), columns=("a", "b", "c"))


def test_get_and_put_name_the_columns():
    row = table().get(2)
    assert [int(row[name]) for name in "abc"] == [6, 7, 8]
    changed = table().put(2, row | {"b": 70})
    assert np.asarray(changed.data)[2].tolist() == [6, 70, 8]
    assert np.asarray(changed.data)[[0, 1, 3, 4]].tolist() == np.asarray(table().data)[[0, 1, 3, 4]].tolist()


def test_writes_to_null_change_no_row_but_the_spare():
    row = Row.of({"a": 1, "b": 2, "c": 3})
    for changed in (table().put(NULL, row), table().set(jnp.int32(NULL), b=9)):
        assert np.asarray(changed.data)[:4].tolist() == np.asarray(table().data)[:4].tolist()
    assert np.asarray(table().put(NULL, row).data)[4].tolist() == [0, 0, 0]


def test_set_writes_single_fields():
    changed = np.asarray(table().set(jnp.int32(1), a=-5, c=50).data)
    assert changed[1].tolist() == [-5, 4, 50]


def test_blocks_and_updates_of_many_rows_at_once():
    block = table().block(jnp.int32(1), 3)
    assert block["b"].tolist() == [4, 7, 10]
    changed = block | {"b": jnp.array([1, 2, 3]), "c": 0}
    assert [changed[name].tolist() for name in "abc"] == [[3, 6, 9], [1, 2, 3], 0]


def test_select_takes_whole_rows():
    yes, no = Row.of({"a": 1, "b": 2}), Row.of({"a": 3, "b": 4})
    assert select(jnp.bool_(True), yes, no).values.tolist() == [1, 2]
    assert select(jnp.bool_(False), yes, no).values.tolist() == [3, 4]


@settings(max_examples=40)
@given(st.data())
def test_copy_run_is_a_slice_assignment(data):
    n = 3 * CHUNK
    length = data.draw(st.one_of(st.integers(-2, 5), st.integers(CHUNK - 2, CHUNK + 2), st.just(2 * CHUNK + 1)))
    source_at = data.draw(st.integers(0, n - max(length, 0)))
    at = data.draw(st.integers(0, n - max(length, 0)))
    source = np.arange(1000, 1000 + n + CHUNK, dtype=np.int32)
    target = -np.arange(n + CHUNK, dtype=np.int32)
    expected = target.copy()
    expected[at : at + max(length, 0)] = source[source_at : source_at + max(length, 0)]
    got = jax.jit(copy_run)(target, jnp.int32(at), source, jnp.int32(source_at), jnp.int32(length))
    np.testing.assert_array_equal(got, expected)


@settings(max_examples=40)
@given(st.integers(0, 2 * CHUNK), st.integers(0, CHUNK + 3), st.integers(0, CHUNK + 3))
def test_move_run_moves_down_over_itself(length, to, shift):
    array = np.arange(5 * CHUNK, dtype=np.int32)
    start = to + shift
    expected = array.copy()
    expected[to : to + length] = array[start : start + length]
    got = jax.jit(move_run)(array, jnp.int32(to), jnp.int32(start), jnp.int32(length))
    np.testing.assert_array_equal(got, expected)


def test_read_first_returns_what_it_reads():
    value = read_first(jnp.bool_(True), lambda x, y: {"sum": x.sum() + y}, jnp.arange(4), jnp.int32(2))
    assert int(value["sum"]) == 8


PLACES = st.integers(0, 40)
COUNTS = st.integers(0, 300)


@settings(max_examples=60, deadline=None)
@given(start=PLACES, at=PLACES, agree=COUNTS, limit=COUNTS)
def test_runs_are_common_up_to_where_they_differ(start, at, agree, limit):
    rng = np.random.default_rng(agree)
    held, asked = rng.integers(0, 9, 400, dtype=np.int32), np.full(400, 9, np.int32)
    asked[at : at + agree] = held[start : start + agree]  # and 9 from there on, which `held` has nowhere
    got = jax.jit(common_run)(held, jnp.int32(start), asked, jnp.int32(at), jnp.int32(limit))
    assert int(got) == min(agree, limit)


@settings(max_examples=60, deadline=None)
@given(start=PLACES, count=COUNTS, null=st.one_of(st.none(), st.integers(0, 399)))
def test_a_null_is_found_where_it_counts(start, count, null):
    values = np.arange(400, dtype=np.int32)
    if null is not None:
        values[null] = NULL
    got = jax.jit(none_null)(values, jnp.int32(start), jnp.int32(start + count))
    assert bool(got) == (null is None or not start <= null < start + count)
