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


def key_of(row):
    """Two orders: by the words, and by what they are backwards among the rows whose first word is even."""
    words = [row[name] for name in COLUMNS[1:]]
    candidates = jnp.stack([row["in"] > 0, (row["in"] > 0) & (words[0] % 2 == 0)])
    return candidates, tuple(jnp.stack([word, ~word]) for word in words)


refresh = jax.jit(lambda orders, table, row: victims.refresh(orders, table, row, key_of))
rebuild = jax.jit(lambda table: victims.rebuild(table, key_of, 2))


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
        keys = [fields.get(row) for row in firsts]
        assert keys == [fields.get(row) for row in expected(fields)]
        assert [first == NULL for first in firsts] == [first == NULL for first in expected(fields)]
    np.testing.assert_array_equal(order, rebuild(table_of(256, fields)))
