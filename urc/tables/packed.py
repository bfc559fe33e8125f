"""Packed tables: named int32 columns over one array, and the two idioms that keep XLA from copying it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from urc.kernel import inside

NULL = -1
"""Marks "no row"; it is never used as an index."""

CHUNK = 256
"""Arrays that hold runs are this much longer, so that a chunk may be read or written at any place of a run; the step of
a loop over a run on accelerators, where an iteration is dear."""

STEPS = (16, 1)
"""The steps of loops over a run on a CPU, one loop after the other: XLA makes one kernel of a loop that touches less
than a kilobyte in an iteration, and starts one or more kernels in every iteration of any other."""

LONG_STEPS = (256, 16, 1)
"""`STEPS` of what is in one kernel anyway."""


def _steps(most: int) -> list[int]:
    return [size for size in (LONG_STEPS if inside() else STEPS) if size <= most]


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
        values = self.values
        if inside():
            return self.replace(values=_replaced(values, {self.columns.index(n): v for n, v in fields.items()}))
        # Selects fuse into one kernel; concatenating scalars would need one for each.
        lane = np.arange(len(self.columns), dtype=np.int32)
        for name, value in fields.items():
            new = jnp.asarray(value, jnp.int32)[..., None]
            values = jnp.where(lane == self.columns.index(name), new, values)
        return self.replace(values=values)


def _replaced(values: jax.Array, new: Mapping[int, Any]) -> jax.Array:
    """`values` (i32[..., k]) with other entries on the last axis: put together, so that each can be taken out again."""
    parts, at = [], 0
    for i in sorted(new):
        parts.append(values[..., at:i])
        parts.append(jnp.broadcast_to(jnp.asarray(new[i], jnp.int32)[..., None], (*values.shape[:-1], 1)))
        at = i + 1
    return jnp.concatenate([*(part for part in parts if part.shape[-1]), values[..., at:]], axis=-1)


class _Cells:
    """Named values, each computed when it is asked for."""

    def __init__(self, read: Callable[[str], jax.Array]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> jax.Array:
        return self._read(name)

    def __or__(self, fields: Mapping[str, Any]) -> Row:
        return cells(lambda name: jnp.asarray(fields[name], jnp.int32) if name in fields else self[name])


def cells(read: Callable[[str], jax.Array]) -> Row:
    """A row to who reads some of its columns or replaces some: `read(name)` is called for those that are asked for.

    In a loop that is to be one kernel; anywhere else whole rows, read and written at once, are better.
    """
    return cast(Row, _Cells(read))


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

    def cells(self, index: jax.Array) -> Row:
        """`get`, column by column: see `urc.tables.packed.cells`."""
        rows = self.block(jnp.maximum(index, 0), 1)
        return cells(lambda name: rows[name][0])

    def block(self, start: jax.Array, size: int) -> Row:
        """Rows start .. start+size-1 at once (i32[size] each column); the table must hold them all."""

        def column(name: str) -> jax.Array:
            at = (start, jnp.int32(self.columns.index(name)))
            return lax.dynamic_slice(self.data, at, (size, 1))[:, 0]

        return cells(column)

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


def loop(more: Callable[[Any], jax.Array], body: Callable[[Any], Any], carry: Any) -> Any:
    """`lax.while_loop`, its scalars (i32[]) carried as one array: XLA starts a kernel for each array to begin with."""
    leaves, tree = jax.tree.flatten(carry)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    scalar = [leaf.ndim == 0 and leaf.dtype == jnp.int32 for leaf in leaves]

    def pack(carry: Any) -> tuple[jax.Array, list[jax.Array]]:
        each = jax.tree.leaves(carry)
        numbers = jnp.stack([jnp.asarray(leaf, jnp.int32) for leaf, one in zip(each, scalar, strict=True) if one])
        return numbers, [leaf for leaf, one in zip(each, scalar, strict=True) if not one]

    def unpack(packed: tuple[jax.Array, list[jax.Array]]) -> Any:
        numbers, others = iter(packed[0]), iter(packed[1])
        return jax.tree.unflatten(tree, [next(numbers) if one else next(others) for one in scalar])

    out = lax.while_loop(lambda p: more(unpack(p)), lambda p: pack(body(unpack(p))), pack(carry))
    return unpack(out)


def on_cpu(cpu: Callable[..., Any], default: Callable[..., Any], *operands: Any) -> Any:
    """`cpu(*operands)` in a program for CPUs, `default(*operands)` in one for accelerators: the same, another way.

    What is traced at a place where there are only CPUs holds one of them; anything else holds both till it is lowered.
    """
    if jax.default_backend() == "cpu":
        return cpu(*operands)
    return lax.platform_dependent(*operands, cpu=cpu, default=default)


def read_first(flag: jax.Array, read: Callable[..., Any], *operands: Any) -> Any:
    """`read(*operands)`, computed before anything that is written to the operands later in the same jit.

    A conditional's operands are read-only to XLA, so a buffer that only its branch reads can be updated in
    place afterwards; without it, XLA may read late and copy the buffer first. `flag` (bool[]) is always true,
    in a way that the compiler cannot prove.
    """
    shapes = jax.eval_shape(read, *operands)
    zeros = lambda *_: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.cond(flag, read, zeros, *operands)


def _union(bits: jax.Array) -> jax.Array:
    """The bits (i32[]) that any of i32[n], a power of two, has; folded, so that a CPU's vectors are made use of."""
    lanes = min(len(bits), 16)
    parts = [bits[i : i + lanes] for i in range(0, len(bits), lanes)]
    if len(parts) > 1 or not inside():
        return lax.reduce(functools.reduce(lax.bitwise_or, parts), np.int32(0), lax.bitwise_or, (0,))
    while len(bits) > 1:  # in a kernel the function of a reduction is three more buffers
        bits = bits[: len(bits) // 2] | bits[len(bits) // 2 :]
    return bits[0]


def common_run(held: jax.Array, start: jax.Array, asked: jax.Array, at: jax.Array, limit: jax.Array) -> jax.Array:
    """Entries (i32[], at most `limit`) on which held[start:] and asked[at:] agree, from the first on."""

    def in_steps(limit: jax.Array) -> jax.Array:
        def more(size: int) -> Callable[[jax.Array], jax.Array]:
            def agree(done: jax.Array) -> jax.Array:
                equal = _union(_exact(held, start + done, size) ^ _exact(asked, at + done, size)) == 0
                return (done + size <= limit) & equal

            return agree

        done = jnp.int32(0)
        for size in _steps(min(*held.shape, *asked.shape)):
            done = lax.while_loop(more(size), lambda done, size=size: done + size, done)
        return done

    def in_chunks(limit: jax.Array) -> jax.Array:
        lane = np.arange(CHUNK, dtype=np.int32)

        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            done, _ = carry
            differ = run(held, start + done, CHUNK) != run(asked, at + done, CHUNK)
            agree = jnp.min(jnp.where(differ, lane, CHUNK))
            return done + agree, agree == CHUNK

        more = lambda c: c[1] & (c[0] < limit)
        return jnp.minimum(lax.while_loop(more, body, (jnp.int32(0), jnp.bool_(True)))[0], limit)

    return on_cpu(in_steps, in_chunks, limit)


def none_null(values: jax.Array, start: jax.Array, stop: jax.Array) -> jax.Array:
    """bool[]: all of values[start:stop] (i32) are >= 0."""

    def in_steps(values: jax.Array, start: jax.Array, stop: jax.Array) -> jax.Array:
        def more(size: int) -> Callable[[jax.Array], jax.Array]:
            def fine(done: jax.Array) -> jax.Array:
                return (done + size <= stop) & (_union(_exact(values, done, size)) >= 0)

            return fine

        done = start
        for size in _steps(values.shape[0]):
            done = lax.while_loop(more(size), lambda done, size=size: done + size, done)
        return done >= stop

    def at_once(values: jax.Array, start: jax.Array, stop: jax.Array) -> jax.Array:
        lane = jnp.arange(values.shape[0], dtype=jnp.int32)
        return ~jnp.any((lane >= start) & (lane < stop) & (values < 0))

    return on_cpu(in_steps, at_once, values, start, stop)


def _write_run(
    dst: jax.Array,
    at: jax.Array,
    length: jax.Array,
    source: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    most: int,
) -> jax.Array:
    """`dst` with dst[at : at+length] written; `source(dst)` is an array and the place in it of what belongs there.

    `length` is at most `most`.
    """
    if not most:
        return dst

    def in_steps(dst: jax.Array, at: jax.Array, length: jax.Array) -> jax.Array:
        def step(n: int) -> Callable[[tuple[jax.Array, jax.Array]], tuple[jax.Array, jax.Array]]:
            def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                out, done = carry
                src, src_at = source(out)
                return lax.dynamic_update_slice(out, _exact(src, src_at + done, n), (at + done,)), done + n

            return body

        carry = dst, jnp.int32(0)
        for size in _steps(most):
            more = lambda carry, size=size: carry[1] + size <= length
            carry = lax.while_loop(more, step(size), carry)
        return carry[0]

    def in_chunks(dst: jax.Array, at: jax.Array, length: jax.Array) -> jax.Array:
        def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            out, done = carry
            src, src_at = source(out)
            lane = done + jnp.arange(CHUNK, dtype=jnp.int32)
            places = jnp.where(lane < length, at + lane, out.shape[0])
            return out.at[places].set(run(src, src_at + done, CHUNK), mode="drop"), done + CHUNK

        return lax.while_loop(lambda carry: carry[1] < length, body, (dst, jnp.int32(0)))[0]

    return on_cpu(in_steps, in_chunks, dst, at, length)


def _exact(array: jax.Array, start: jax.Array, n: int) -> jax.Array:
    """array[start : start+n] (i32[n]), which does not go beyond the array's end."""
    return lax.dynamic_slice(array, (start,), (n,))


def run(array: jax.Array, start: jax.Array, n: int) -> jax.Array:
    """array[start : start+n] (i32[n]); what would lie behind the array's end is any value."""
    return jnp.asarray(array)[jnp.minimum(start + jnp.arange(n, dtype=jnp.int32), array.shape[0] - 1)]


def copy_run(dst: jax.Array, dst_at: jax.Array, src: jax.Array, src_at: jax.Array, length: jax.Array) -> jax.Array:
    """`dst` with dst[dst_at : dst_at+length] = src[src_at : src_at+length]; no-op if `length` <= 0."""
    chex.assert_rank([dst, src], 1)
    return _write_run(dst, dst_at, length, lambda _: (src, src_at), min(*dst.shape, *src.shape))


def move_run(array: jax.Array, dst_at: jax.Array, src_at: jax.Array, length: jax.Array) -> jax.Array:
    """Moves a run down within one array (`dst_at <= src_at`); what lay between is overwritten."""
    chex.assert_rank(array, 1)
    return _write_run(array, dst_at, length, lambda out: (out, src_at), *array.shape)
