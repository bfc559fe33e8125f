"""Packed tables: named int32 columns over one array, and the two idioms that keep XLA from copying it."""

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

NULL = -1
"""Marks "no row"; it is never used as an index."""

CHUNK = 256
"""Tokens that one iteration of a run loop reads or writes; arrays that hold runs are this much longer."""


class Row(struct.PyTreeNode):
    """Named values packed into one array: a row of a table, or several rows at once.

    One leaf, not one per column: XLA runs a kernel for every array that crosses a loop or a conditional.
    """

    values: jax.Array  # i32[..., k]
    columns: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Row":
        """A row of scalars, its columns in the order of `fields`."""
        return cls(values=jnp.zeros(len(fields), jnp.int32), columns=tuple(fields)) | fields

    def __getitem__(self, name: str) -> jax.Array:
        return self.values[..., self.columns.index(name)]

    def __or__(self, fields: Mapping[str, Any]) -> "Row":
        """The row with other values (i32[...], or scalars) in some columns."""
        # Selects fuse into one kernel; concatenating scalars would need one for each.
        lane, values = jnp.arange(len(self.columns), dtype=jnp.int32), self.values
        for name, value in fields.items():
            new = jnp.asarray(value, jnp.int32)[..., None]
            values = jnp.where(lane == self.columns.index(name), new, values)
        return self.replace(values=values)


def select(flag: jax.Array, yes: Row, no: Row) -> Row:
    """`yes` where `flag` (bool[]), else `no`."""
    return yes.replace(values=jnp.where(flag, yes.values, no.values))


class Table(struct.PyTreeNode):
    """Named int32 columns over one packed array.

    XLA updates a donated buffer in place only where every read of it comes, by data, before the write. So a
    step reads all the rows it needs, then writes; a write that does not apply goes to the spare last row.
    """

    data: jax.Array  # i32[rows, k]; the last row is spare, and all 0 once written
    columns: tuple[str, ...] = struct.field(pytree_node=False)

    @property
    def spare(self) -> int:
        """Index of the row that takes the writes that do not apply."""
        return self.data.shape[0] - 1

    def get(self, index: jax.Array | int) -> Row:
        """Row `index` (i32[]; NULL reads row 0, whose values must then not be used)."""
        index = jnp.asarray(index, jnp.int32)
        values = lax.dynamic_slice(self.data, (jnp.maximum(index, 0), jnp.int32(0)), (1, len(self.columns)))[0]
        return Row(values=values, columns=self.columns)

    def block(self, start: jax.Array, size: int) -> Row:
        """Rows start .. start+size-1 at once; the table must hold them all."""
        values = lax.dynamic_slice(self.data, (start, jnp.int32(0)), (size, len(self.columns)))
        return Row(values=values, columns=self.columns)

    def put(self, index: jax.Array | int, row: Row) -> "Table":
        """Writes a whole row; NULL: no-op."""
        index = jnp.asarray(index, jnp.int32)
        values = jnp.where(index < 0, 0, row.values)
        at = jnp.where(index < 0, self.spare, index)
        return self.replace(data=lax.dynamic_update_slice(self.data, values[None], (at, jnp.int32(0))))

    def set(self, index: jax.Array, **fields: jax.Array | int) -> "Table":
        """Writes single fields of row `index`; NULL: no-op. Safe where the row's other fields were not read."""
        index = jnp.asarray(index, jnp.int32)
        at = jnp.where(index < 0, self.spare, index)
        data = self.data
        for name, value in fields.items():
            cell = jnp.where(index < 0, 0, value).astype(jnp.int32)[None, None]
            data = lax.dynamic_update_slice(data, cell, (at, jnp.int32(self.columns.index(name))))
        return self.replace(data=data)


def read_first(flag: jax.Array, read: Callable[..., Any], *operands: Any) -> Any:
    """`read(*operands)`, computed before anything that is written to the operands later in the same jit.

    A conditional's operands are read-only to XLA, so a buffer that only its branch reads can be updated in
    place afterwards; without it, XLA may read late and copy the buffer first. `flag` (bool[]) is always true,
    in a way that the compiler cannot prove.
    """
    shapes = jax.eval_shape(read, *operands)
    zeros = lambda *_: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.cond(flag, read, zeros, *operands)


def _write_run(
    dst: jax.Array, at: jax.Array, length: jax.Array, chunk: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """`dst` with dst[at : at+length] written a chunk at a time; `chunk(dst, i)` is what belongs at `at + i`."""
    lane = jnp.arange(CHUNK, dtype=jnp.int32)

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, done = carry
        new, old = chunk(out, done), lax.dynamic_slice(out, (at + done,), (CHUNK,))
        out = lax.dynamic_update_slice(out, jnp.where(lane < length - done, new, old), (at + done,))
        return out, done + CHUNK

    return lax.while_loop(lambda carry: carry[1] < length, body, (dst, jnp.int32(0)))[0]


def copy_run(dst: jax.Array, dst_at: jax.Array, src: jax.Array, src_at: jax.Array, length: jax.Array) -> jax.Array:
    """`dst` with dst[dst_at : dst_at+length] = src[src_at : src_at+length]; no-op if `length` <= 0.

    Both arrays (i32[...]) must be CHUNK longer than the runs that they hold.
    """
    chex.assert_rank([dst, src], 1)
    return _write_run(dst, dst_at, length, lambda _, done: lax.dynamic_slice(src, (src_at + done,), (CHUNK,)))


def move_run(array: jax.Array, dst_at: jax.Array, src_at: jax.Array, length: jax.Array) -> jax.Array:
    """Moves a run down within one array (`dst_at <= src_at`); what lay between is overwritten."""
    chex.assert_rank(array, 1)
    return _write_run(array, dst_at, length, lambda out, done: lax.dynamic_slice(out, (src_at + done,), (CHUNK,)))
