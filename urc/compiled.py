"""The transitions as the host handle calls them (see `urc.program`): lengths and options travel in one array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc import ops
from urc.errors import Status
from urc.leads import names_of, of_begun, of_match, row_form, since_of
from urc.ops import in_rows
from urc.ops.insert import insert_from
from urc.ops.request import commit_from, reserve_into
from urc.ops.rows import Keys
from urc.ops.slots import alloc_into
from urc.program import ALL, Arrays, program
from urc.state import ROOT, CacheState, NodeRef
from urc.tables.packed import NULL, copy_run, none_null

TREE = ("nodes", "heads", "scalars", "victims")
HOLDS = ("nodes", "scalars", "victims")
SESSIONS = (*HOLDS, "sessions")
POOLS = ("scalars", "stores")
MOST_RELEASES = 64
"""Receipts that a `lock` releases before."""
EVICTS = (*TREE, "sessions", "stores")
NODES = ("nodes", "heads", "tokens", "scalars", "victims", "stores")


@program(*TREE, reads=("tokens", "stores"), lone=True, sees_locks=False)
def match_prefix(state: CacheState, key: jax.Array) -> tuple[CacheState, Arrays]:
    """`key`: a key, then (length, namespace), which lie behind its length: cutting them off would be a copy.

    Returns a row: a match's numbers, and its slots.
    """
    form = row_form(state.config, len(key) - 2)
    state, row = in_rows.match_prefix(state, key, key[-2], key[-1], of_match(state), form)
    return state, (row,)


def _keys(batch: jax.Array, more: int = 0) -> tuple[Keys, jax.Array]:
    """B keys, and `more` numbers of each (i32[B, more]), out of an array i32[B, W + 3 + more].

    It is filled from the first entry on with the keys, one right after the other, and at its end are the numbers of
    each: (where it begins, numbers.., length, namespace).
    """
    number, columns = batch.shape
    width, flat = columns - 3 - more, batch.reshape(-1)
    numbers = flat[number * width :].reshape(number, 3 + more)
    keys = Keys(flat, numbers[:, 0], numbers[:, -2], numbers[:, -1], width)
    return keys, numbers[:, 1:-2]


@program(*TREE, reads=("tokens", "stores"), sees_locks=False)
def match_prefixes(state: CacheState, batch: jax.Array) -> tuple[CacheState, Arrays]:
    """`batch`: see `_keys`. Returns B rows."""
    keys, _ = _keys(batch)
    state, rows = in_rows.match_prefixes(state, keys, of_match(state), row_form(state.config, keys.width))
    return state, (rows,)


@program(reads=NODES, lone=True, sees_locks=False)
def probe(state: CacheState, key: jax.Array) -> tuple[CacheState, Arrays]:
    """`key`: a key, then (length, namespace). Returns a row."""
    form = row_form(state.config, len(key) - 2)
    return state, (in_rows.probe(state, key, key[-2], key[-1], of_match(state), form),)


@program(reads=NODES, sees_locks=False)
def probes(state: CacheState, batch: jax.Array) -> tuple[CacheState, Arrays]:
    """`batch`: see `_keys`. Returns B rows."""
    keys, _ = _keys(batch)
    return state, (in_rows.probes(state, keys, of_match(state), row_form(state.config, keys.width)),)


def _options(names: list[str], numbers: jax.Array) -> dict[str, Any]:
    """`numbers`: (length, namespace, prev_prefix_len, inserted_len, priority, stamp, given.., evicted_len..)."""
    return {
        "namespace": numbers[1],
        "prev_prefix_len": numbers[2],
        "inserted_len": numbers[3],
        "priority": numbers[4],
        "given": {name: numbers[6 + j] for j, name in enumerate(names)},
        "evicted_len": {name: numbers[6 + len(names) + j] for j, name in enumerate(names)},
    }


def _inserted(
    state: CacheState, inserted: ops.Inserted, numbers: jax.Array
) -> tuple[CacheState, tuple[jax.Array, ...]]:
    """(status, prefix_len, node, generation, (existed, freed)..); the state notes the namespace."""
    before = state.scalars.get(0)
    new = (inserted.status == Status.OK) & (numbers[1] > before["named"])
    named, stamp = jnp.where(new, numbers[1], before["named"]), jnp.where(new, numbers[5], before["names"])
    state = state.with_scalars(named=named, names=stamp)
    names = names_of(state)
    each = [number for name in names for number in (inserted.existed[name], *inserted.freed[name])]
    return state, (inserted.status, inserted.prefix_len, inserted.node.index, inserted.node.generation, *each)


def _held(state: CacheState, own: jax.Array, rows: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
    """Slots by component: one out of `own` of each that copies on write, rows of the others."""
    alone, others = iter([own[i : i + 1] for i in range(len(own))]), iter(rows)
    return {c.name: next(alone if c.copies_on_write else others) for c in state.config.components}


def _own(state: CacheState) -> int:
    """How many components copy on write."""
    return sum(component.copies_on_write for component in state.config.components)


@program(*NODES, reads=(), lone=True)
def insert(state: CacheState, key: jax.Array, *slots: jax.Array) -> tuple[CacheState, Arrays]:
    """`key`: a key, then numbers, see `_options`, and a slot for each component that copies on write.

    `slots`: of the others, in order. BAD_PREFIX too if what is said not to be in the tree holds a negative token.
    """
    names, own = names_of(state), _own(state)
    numbers = key[len(key) - 6 - 2 * len(names) - own :]
    options, held = _options(names, numbers), _held(state, numbers[len(numbers) - own :], slots)
    prev = options.pop("prev_prefix_len")
    prev = jnp.where(none_null(key, prev, numbers[0]), prev, NULL)
    state, inserted = insert_from(state, key, jnp.int32(0), numbers[0], held, prev_prefix_len=prev, **options)
    state, fields = _inserted(state, inserted, numbers)
    return state, (jnp.stack(fields),)


def _each_where_it_lies(
    state: CacheState,
    put: Callable[..., tuple[CacheState, jax.Array]],
    numbers: jax.Array,
    keys: jax.Array,
    slots: Arrays,
) -> tuple[CacheState, jax.Array]:
    """`put(state, numbers, keys, base, slots)` of each of B inserts, one after the other.

    Their numbers (i32[B, ..]) end with how many slots of each component are not looked at. Of keys, slots (i32[B, ..])
    nothing is copied but slots that are.
    """
    names = names_of(state)
    width, flat = keys.shape[1], keys.reshape(-1)
    rooms, flats = [each.shape[1] for each in slots], [each.reshape(-1) for each in slots]

    def step(carry: tuple[CacheState, list[jax.Array]], i: jax.Array) -> tuple[Any, jax.Array]:
        state, rows = carry
        mine = numbers[i]
        first = mine[len(mine) - len(names) :]
        rows = [
            copy_run(row, first[j], all_rows, i * room + first[j], mine[6 + j] - first[j])
            for j, (row, all_rows, room) in enumerate(zip(rows, flats, rooms, strict=True))
        ]
        held = dict(zip(names, rows, strict=True))
        state, out = put(state, mine[: len(mine) - len(names)], flat, i * width, held)
        return (state, rows), out

    # What is in them does not matter; were it the same, XLA would make one array for all, and then copies.
    start = [jnp.full(room, j, jnp.int32) for j, room in enumerate(rooms)]
    (state, _), fields = lax.scan(step, (state, start), jnp.arange(len(keys), dtype=jnp.int32))
    return state, fields


@program(*NODES, reads=())
def inserts(state: CacheState, numbers: jax.Array, keys: jax.Array, *slots: jax.Array) -> tuple[CacheState, Arrays]:
    """As `insert`, each with an axis B in front; a length of 0 is no insert."""
    names = names_of(state)

    def put(state: CacheState, mine: jax.Array, keys: jax.Array, base: jax.Array, held: dict[str, jax.Array]) -> Any:
        state, inserted = insert_from(state, keys, base, mine[0], held, **_options(names, mine))
        state, fields = _inserted(state, inserted, mine)
        return state, jnp.stack(fields)

    state, fields = _each_where_it_lies(state, put, numbers, keys, slots)
    return state, (fields,)


@program(*EVICTS, reads=(), lone=True)
def evict(state: CacheState, targets: jax.Array) -> tuple[CacheState, Arrays]:
    """Targets and the (start, count) of what was freed, in the order of the components."""
    names = names_of(state)
    state, evicted = ops.evict(state, {name: targets[j] for j, name in enumerate(names)})
    return state, (jnp.stack([number for name in names for number in evicted.freed[name]]),)


def _receipt(state: CacheState, numbers: jax.Array) -> ops.Receipt:
    """(row, generation, end, since..)."""
    since = {name: numbers[3 + j] for j, name in enumerate(names_of(state))}
    return ops.Receipt(node=NodeRef(index=numbers[0], generation=numbers[1]), end=numbers[2], since=since)


def _lock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, list[jax.Array]]:
    state, receipt, status = ops.lock(state, NodeRef(index=numbers[0], generation=numbers[1]))
    return state, [status, *since_of(state, receipt)]


def _release(state: CacheState, numbers: jax.Array, at: int) -> tuple[CacheState, jax.Array]:
    """`numbers`: from `at` on (n, receipts..), of which n are released. Returns the largest status (i32[])."""
    each = 3 + len(state.config.components)

    def one(carry: tuple) -> tuple:
        state, worst, i = carry
        state, status = _unlock(state, lax.dynamic_slice(numbers, (at + 1 + i * each,), (each,)))
        return state, jnp.maximum(worst, status), i + 1

    more = lambda carry: carry[2] < numbers[at]
    return lax.while_loop(more, one, (state, jnp.int32(Status.OK), jnp.int32(0)))[:2]


@program(*HOLDS, reads=(), lone=True, sees_locks=False)
def lock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, Arrays]:
    """(row, generation, n, receipts..) -> (status, end, since.., status of the releases).

    n receipts are released first; a row of NULL: then none is locked.
    """
    state, worst = _release(state, numbers, 2)
    state, fields = _lock(state, numbers)
    return state, (jnp.stack([*fields, worst]),)


@program(*HOLDS, reads=(), sees_locks=False)
def locks(state: CacheState, nodes: jax.Array, releases: jax.Array) -> tuple[CacheState, Arrays]:
    """(row, generation) of each of B, the root to fill up; (n, receipts..). Returns what `lock` does of each."""
    state, worst = _release(state, releases, 0)

    def one(state: CacheState, mine: jax.Array) -> tuple[CacheState, jax.Array]:
        state, fields = _lock(state, mine)
        return state, jnp.stack([*fields, worst])

    state, fields = lax.scan(one, state, nodes)
    return state, (fields,)


def _unlock(state: CacheState, numbers: jax.Array) -> tuple[CacheState, jax.Array]:
    return ops.unlock(state, _receipt(state, numbers))


@program(*HOLDS, reads=())
def release_early(state: CacheState, numbers: jax.Array, *, name: str) -> tuple[CacheState, Arrays]:
    """A receipt's numbers -> (status, end, since..)."""
    state, receipt, status = ops.release_early(state, _receipt(state, numbers), name)
    return state, (jnp.stack([status, *since_of(state, receipt)]),)


@program("scalars", "sessions", reads=())
def open_session(state: CacheState) -> tuple[CacheState, Arrays]:
    """(status, row, generation)."""
    state, session, status = ops.open_session(state)
    return state, (jnp.stack([status, session.index, session.generation]),)


@program(*SESSIONS, reads=())
def advance_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, Arrays]:
    """(session's row, generation, node's row, generation) -> status."""
    node = NodeRef(index=numbers[2], generation=numbers[3])
    state, status = ops.advance_session(state, ops.SessionRef(index=numbers[0], generation=numbers[1]), node)
    return state, (status,)


@program(*SESSIONS, reads=())
def recede_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, Arrays]:
    """(session's row, generation, length) -> status."""
    session = ops.SessionRef(index=numbers[0], generation=numbers[1])
    state, status = ops.recede_session(state, session, numbers[2])
    return state, (status,)


@program(*SESSIONS, reads=())
def close_session(state: CacheState, numbers: jax.Array) -> tuple[CacheState, Arrays]:
    """(session's row, generation) -> status."""
    state, status = ops.close_session(state, ops.SessionRef(index=numbers[0], generation=numbers[1]))
    return state, (status,)


@program(*POOLS, reads=(), lone=True, sees_locks=False)
def alloc(state: CacheState, count: jax.Array, *, name: str, width: int) -> tuple[CacheState, Arrays]:
    """A count -> (status, slots..)."""
    out = jnp.full(1 + width, NULL, jnp.int32)
    state, out, status = alloc_into(state, name, count, out, jnp.int32(1), width=width)
    return state, (out.at[0].set(status),)


@program(*POOLS, reads=(), lone=True, sees_locks=False)
def free(state: CacheState, slots: jax.Array, count: jax.Array, *, name: str) -> tuple[CacheState, Arrays]:
    """Slots, and how many of them."""
    return ops.free(state, name, slots, count), ()


@program(*EVICTS)
def begin(state: CacheState, key: jax.Array) -> tuple[CacheState, Arrays]:
    """`key`: a key, then (0, length, namespace), as `_keys` has it of one. Returns a row."""
    form = row_form(state.config, len(key) - 3)
    state, row = in_rows.begin(state, key, key[-2], key[-1], of_begun(state), form)
    return state, (row,)


@program(*EVICTS)
def begins(state: CacheState, batch: jax.Array) -> tuple[CacheState, Arrays]:
    """`batch`: see `_keys`; a length of -1 stands for no request. Returns B rows."""
    keys, _ = _keys(batch)
    state, rows = in_rows.begins(state, keys, of_begun(state), row_form(state.config, keys.width))
    return state, (rows,)


@program(*EVICTS, reads=())
def reserve(state: CacheState, counts: jax.Array, *, widths: tuple[int, ...]) -> tuple[CacheState, Arrays]:
    """Counts and widths in the order of the components -> (status, slots.., slots.., ..), of those with a width."""
    names = [name for name, width in zip(names_of(state), widths, strict=True) if width]
    wanted = {name: counts[j] for j, name in enumerate(names_of(state)) if name in names}
    rooms = dict(zip(names_of(state), widths, strict=True))
    places = dict(zip(names, np.cumsum([1, *(rooms[name] for name in names)]).tolist(), strict=False))
    out = jnp.full(1 + sum(widths), NULL, jnp.int32)
    state, out, _, status = reserve_into(state, wanted, out, places, rooms)
    return state, (out.at[0].set(status),)


@program(*ALL)
def commit(state: CacheState, key: jax.Array, *slots: jax.Array, finished: bool) -> tuple[CacheState, Arrays]:
    """`key`: a key, then numbers and slots as for an insert, a receipt's, whether the state may stay in the tree.

    What an insert returns; of a request that goes on a row, of that, (end, since.., left..), and its slots.
    """
    names, own = names_of(state), _own(state)
    at = 6 + 2 * len(names) + own
    more = at + 3 + len(names) + 1
    numbers = key[-more:]
    receipt, held = _receipt(state, numbers[at:]), _held(state, numbers[at - own : at], slots)
    options = _options(names, numbers)
    state, done = commit_from(
        state, receipt, key, jnp.int32(0), numbers[0], held, finished=finished, leaves=numbers[-1] > 0, **options
    )
    state, fields = _inserted(state, done.inserted, numbers)
    left = [done.left[name] for name in names if name in done.left]
    out = jnp.stack([*fields, *since_of(state, done.receipt), *left])
    if finished:
        return state, (out,)
    node = jnp.maximum(done.receipt.node.index, ROOT)
    return state, (in_rows.row_of(state, node, 0, out, row_form(state.config, len(key) - more)),)


@program(*ALL)
def step(
    state: CacheState,
    finishing: jax.Array,
    done: jax.Array,
    beginning: jax.Array,
    *slots: jax.Array,
    width: int,
) -> tuple[CacheState, Arrays]:
    """Requests that finish, one after the other; then requests that begin, with slots for all of their tokens.

    `finishing`: [F, ..] of a commit's numbers, and before the last of them (row, generation) of the session that refers
    to it then, or (NULL, 0); `done`: [F, ..], the keys, and `slots` of theirs, [F, ..] each; a prev_prefix_len of -1:
    none. `beginning`: see `_keys`, with the tokens beyond each; a length of -1: none. Returns what
    an insert returns of each; and rows as `begins` does, for keys of `width` tokens, slots taken behind those matched.
    """
    names, at = names_of(state), 6 + 2 * len(state.config.components)

    def finish(state: CacheState, mine: jax.Array, keys: jax.Array, base: jax.Array, held: dict[str, jax.Array]) -> Any:
        state, made = commit_from(
            state,
            _receipt(state, mine[at:]),
            keys,
            base,
            mine[0],
            held,
            finished=True,
            leaves=mine[-1] > 0,
            **_options(names, mine),
        )
        state, fields = _inserted(state, made.inserted, mine)
        node = made.inserted.node
        node = node.replace(index=jnp.where(made.inserted.status == Status.OK, node.index, NULL))
        # Here, and not after the step: what begins in it may evict what no session refers to.
        state, _ = ops.advance_session(state, ops.SessionRef(index=mine[-3], generation=mine[-2]), node)
        return state, jnp.stack(fields)

    state, finished = _each_where_it_lies(state, finish, finishing, done, slots)
    keys, more = _keys(beginning, more=1)
    state, rows = in_rows.admits(state, keys, more[:, 0], of_begun(state), row_form(state.config, width))
    return state, (finished, rows)


@program(*HOLDS, "stores", reads=())
def abort(state: CacheState, numbers: jax.Array, *slots: jax.Array) -> tuple[CacheState, Arrays]:
    """`numbers`: how many slots of each component are freed, then a receipt's. -> status."""
    names = names_of(state)
    for j, name in enumerate(names):
        state = ops.free(state, name, slots[j], numbers[j])
    state, status = _unlock(state, numbers[len(names) :])
    return state, (status,)
