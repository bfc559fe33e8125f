"""The tournament against sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from urc.tables import victims
from urc.tables.packed import NULL, Table

COLUMNS = ("in", "w0", "w1", "w2", "w3", "w4")


def words_of(row):
    return [row[name] for name in COLUMNS[1:]]


def backwards(row):
    """By the words backwards, among the rows whose first word is even."""
    return (row["in"] > 0) & (words_of(row)[0] % 2 == 0), tuple(~word for word in words_of(row))


ORDERS = [lambda row: (row["in"] > 0, tuple(words_of(row))), backwards]


@jax.jit
def refresh(orders, table, row):
    for which, key_of in enumerate(ORDERS):
        orders = victims.refresh(orders, which, table, row, key_of)
    return orders


rebuild = jax.jit(lambda table: victims.rebuild(table, ORDERS))


def expected(fields: dict[int, tuple[int, ...]]) -> list[int]:
    """The first of each order, by sorting."""
    even = [row for row in fields if fields[row][0] % 2 == 0]
    first = min(fields, key=lambda row: fields[row], default=NULL)
    return [first, min(even, key=lambda row: [~word for word in fields[row]], default=NULL)]


def table_of(rows: int, fields: dict[int, tuple[int, ...]]) -> Table:
    data = np.zeros((rows, len(COLUMNS)), np.int32)
    for row, key in fields.items():
        data[row] = (1, *key)
    return Table(data=jnp.asarray(data), columns=COLUMNS)


@pytest.mark.parametrize("rows", [128, 256, 128 * 129])
def test_one_two_and_three_levels(rows):
    order = victims.init(rows, 2)
    assert victims.first(order).tolist() == [NULL, NULL]
    keys = {5: (1, 0, 0, 0, 0), rows - 1: (0, 9, 0, 0, 0), rows // 2: (0, 9, 0, 0, -1)}
    for row in keys:
        order = refresh(order, table_of(rows, keys), jnp.int32(row))
    assert victims.first(order).tolist() == [rows // 2, rows - 1]  # (0, 9, 0, 0, -1) is the least, 0 its opposite
    np.testing.assert_array_equal(order, rebuild(table_of(rows, keys)))
    for row in (rows - 1, rows // 2):
        order = refresh(order, table_of(rows, {5: keys[5]}), jnp.int32(row))
    assert victims.first(order).tolist() == [5, NULL]


def test_null_is_a_no_op():
    table = table_of(128, {3: (0, 0, 0, 0, 0)})
    order = rebuild(table)
    np.testing.assert_array_equal(refresh(order, table_of(128, {}), jnp.int32(NULL)), order)


word = st.integers(-2, 2) | st.sampled_from([-(2**31), 2**31 - 1])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.tuples(word, word, word, word, word)), max_size=40))
def test_first_is_the_least_key_whatever_changed(changes):
    fields: dict[int, tuple[int, ...]] = {}
    order = victims.init(256, 2)
    for row, enters, key in changes:
        if enters:
            fields[row] = key
        else:
            fields.pop(row, None)
        order = refresh(order, table_of(256, fields), jnp.int32(row))
        firsts = victims.first(order).tolist()
        assert [fields.get(row) for row in firsts] == [fields.get(row) for row in expected(fields)]
    np.testing.assert_array_equal(order, rebuild(table_of(256, fields)))
