"""A request's life in whole steps: each of these is one program, and leaves the ledger closed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from urc.components.base import Component
from urc.errors import Status
from urc.ops.evict import Evicted, evict
from urc.ops.insert import Inserted, insert_from
from urc.ops.lock import Receipt, lock, unlock
from urc.ops.match import Match, settle, settle_without_slots
from urc.ops.rows import Head, Keys, Layout, by_component, each_in_place, layout, read_slots
from urc.ops.slots import alloc_into, free
from urc.ops.walk import Walk, front_part, key_length, walk, whole_page
from urc.state import ROOT, CacheState, NodeRef
from urc.tables.packed import NULL, on_cpu, read_first, select


class Begun(struct.PyTreeNode):
    """A request that has begun; unless `status` is OK it has not, and nothing has changed."""

    status: jax.Array  # i32[], POOL_EMPTY: there is no slot for it to write into
    match: Match
    receipt: Receipt  # of what it has matched
    own: dict[str, jax.Array]  # i32[] per component that copies on write: the slot into which to copy what it matched
    evicted: Evicted


class Committed(struct.PyTreeNode):
    """What a request has put into the tree; unless `inserted.status` is OK, nothing has changed but evictions."""

    inserted: Inserted
    receipt: Receipt  # of a request that goes on: what it holds now
    slots: dict[str, jax.Array]  # i32[n] per component: what it reads of the tree now; empty if finished
    left: dict[
        str, jax.Array
    ]  # i32[] per component that copies on write: the slot into which to copy its state, or NULL
    evicted: Evicted


def _writers(state: CacheState) -> list[Component]:
    return [component for component in state.config.components if component.copies_on_write]


def _within_reach(state: CacheState, component: Component) -> jax.Array:
    """Slots (i32[]) of a component's pool that are free or can be made free."""
    size = state.config.pool_size(component.name)
    ledger = state.ledger(component, state.scalars.get(0))
    return (0 if size is None else size) - ledger["used"] + ledger["evictable"]


def reserve(
    state: CacheState, counts: dict[str, jax.Array], *, widths: dict[str, int]
) -> tuple[CacheState, dict[str, jax.Array], Evicted, jax.Array]:
    """Takes `counts[name]` (i32[], at most widths[name]) slots of each component, evicting what they are short of.

    All or nothing: returns the state, the slots (i32[widths[name]] each, NULL behind), what was evicted, and a `Status`
    (i32[]): POOL_EMPTY, and no change, where the unlocked nodes do not hold as much.
    """
    places, end = {}, 0
    for name in counts:
        places[name], end = end, end + widths[name]
    state, out, evicted, status = reserve_into(state, counts, jnp.full(end, NULL, jnp.int32), places, widths)
    return state, {name: out[place : place + widths[name]] for name, place in places.items()}, evicted, status


def reserve_into(
    state: CacheState,
    counts: dict[str, jax.Array],
    out: jax.Array,
    places: dict[str, Any],
    widths: dict[str, int],
) -> tuple[CacheState, jax.Array, Evicted, jax.Array]:
    """`reserve`, with the slots written to `out` (i32[m]) from `places` (i32[]) on, and nothing behind them."""
    config = state.config
    parts = [config.component(name) for name in counts]
    counts = {name: jnp.asarray(count, jnp.int32) for name, count in counts.items()}
    fits = jnp.bool_(True)
    for component in parts:
        count = counts[component.name]
        fits = fits & (count >= 0) & (count <= widths[component.name]) & (count <= _within_reach(state, component))
    short = {}
    for component in parts:
        size, used = config.pool_size(component.name) or 0, state.ledger(component, state.scalars.get(0))["used"]
        short[component.name] = jnp.where(fits, counts[component.name] - (size - used), 0)
    state, evicted = evict(state, short)
    for component in parts:  # a component of a user's own may not give what it counts as evictable
        size, used = config.pool_size(component.name) or 0, state.ledger(component, state.scalars.get(0))["used"]
        fits = fits & (counts[component.name] <= size - used)
    for name, count in counts.items():
        count = jnp.where(fits, count, 0)
        state, out, _ = alloc_into(state, name, count, out, jnp.int32(places[name]), width=widths[name])
    return state, out, evicted, jnp.where(fits, Status.OK, Status.POOL_EMPTY).astype(jnp.int32)


def _room_to_write(state: CacheState, found: Walk) -> jax.Array:
    """bool[]: with what a request matches locked, a slot for it to write into can be had of each such component."""
    writers = _writers(state)
    cut = jnp.where(found.usable == found.deepest, found.cut, 0)

    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        locked, at = carry
        row = state.nodes.get(at)
        row = select((at == found.usable) & (cut > 0), front_part(row, cut, state.config)[0], row)
        new = [
            jnp.where(c.reads(row, found.usable_len) & (row[c.column("lock")] == 0), c.size(row), 0) for c in writers
        ]
        return locked + jnp.stack(new), row["parent"]

    start = (jnp.zeros(len(writers), jnp.int32), found.usable)
    locked, _ = lax.while_loop(lambda carry: carry[1] > 0, body, start)
    room = jnp.bool_(True)
    for j, component in enumerate(writers):
        room = room & (_within_reach(state, component) - locked[j] >= 1)
    return room


def begin(
    state: CacheState, key: jax.Array, length: jax.Array, *, namespace: jax.Array | int = 0
) -> tuple[CacheState, Begun]:
    """Starts a request: match_prefix of key[:length], lock of what it matched, and slots of its own to write into.

    Arguments as for `match_prefix`; a negative `length` is no request, and is refused. The pools of components that
    copy on write must be the cache's own.
    """
    config, namespace = state.config, jnp.asarray(namespace, jnp.int32)
    wanted, length = jnp.asarray(length, jnp.int32) >= 0, key_length(length, key, config)
    padded = whole_page(key, config)
    walk_of = lambda state: walk(config, state.nodes, state.heads, state.tokens, padded, length, namespace)
    return begin_one(state, wanted, walk_of, lambda state, found: settle(state, found, key.shape[0]))


def begin_one(
    state: CacheState,
    wanted: jax.Array,
    walk_of: Callable[[CacheState], Walk],
    settled: Callable[[CacheState, Walk], tuple[CacheState, Match]],
) -> tuple[CacheState, Begun]:
    """`begin`, if `wanted` (bool[]), of what `walk_of(state)` finds, which `settled` makes a match of."""

    def plan(state: CacheState) -> tuple[Walk, jax.Array]:
        found = walk_of(state)
        return found, wanted & (_room_to_write(state, found) if _writers(state) else jnp.bool_(True))

    found, room = read_first(state.true(), plan, state)
    nothing = jax.tree.map(jnp.zeros_like, found)  # what an empty key finds
    found = jax.tree.map(lambda some, none: jnp.where(room, some, none), found, nothing)
    state, match = settled(state, found)
    state, receipt, _ = lock(state, match.node)
    ones = {c.name: room.astype(jnp.int32) for c in _writers(state)}
    state, own, evicted, _ = reserve(state, ones, widths=dict.fromkeys(ones, 1))
    status = jnp.where(room, Status.OK, Status.POOL_EMPTY).astype(jnp.int32)
    own = {name: slots[0] for name, slots in own.items()}
    return state, Begun(status=status, match=match, receipt=receipt, own=own, evicted=evicted)


def begins(
    state: CacheState, keys: jax.Array, lengths: jax.Array, *, namespaces: jax.Array | int = 0
) -> tuple[CacheState, Begun]:
    """`begin` of B requests (i32[B, K], i32[B], i32[B]), one after the other, in one program; results [B, ...].

    What one evicted is in the pool as it is right after it, not at the end.
    """
    namespaces = jnp.broadcast_to(jnp.asarray(namespaces, jnp.int32), lengths.shape)
    return on_cpu(_begins_in_place, _begins, state, keys, lengths, namespaces)


def _begins(state: CacheState, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array) -> tuple[CacheState, Begun]:
    step = lambda state, each: begin(state, each[0], each[1], namespace=each[2])
    return lax.scan(step, state, (keys, lengths, namespaces))


def _begins_in_place(
    state: CacheState, keys: jax.Array, lengths: jax.Array, namespaces: jax.Array
) -> tuple[CacheState, Begun]:
    form = layout(state.config, keys.shape[1])
    state, begun, out = begin_each(state, Keys.of(state.config, keys, lengths, namespaces), form)
    return state, begun.replace(match=begun.match.replace(slots=by_component(out.reshape(-1, form.size), form)))


def begin_each(
    state: CacheState, keys: Keys, form: Layout, head: Head | None = None
) -> tuple[CacheState, Begun, jax.Array]:
    """`begins` as `each_in_place` returns it: what began, without a match's slots, and rows, with `head` if given."""
    wanted = jnp.asarray(keys.lengths, jnp.int32) >= 0

    def one(state: CacheState, i: jax.Array, walk_of: Callable[[CacheState], Walk]) -> tuple:
        state, begun = begin_one(state, wanted[i], walk_of, settle_without_slots)
        return state, begun, None if head is None else head(begun), begun.match.node.index, jnp.int32(0)

    return each_in_place(state, keys, one, form)


def admits(
    state: CacheState,
    keys: jax.Array,
    lengths: jax.Array,
    *,
    more: jax.Array | int = 0,
    namespaces: jax.Array | int = 0,
    width: int,
) -> tuple[CacheState, Begun, dict[str, jax.Array]]:
    """`begins`, and then for each request in order slots for all tokens that it has not matched and `more` of them.

    What they are short of is evicted; what any of them has matched is locked by then. A request for which not enough
    can be freed has not begun: its `status` is POOL_EMPTY, and it holds nothing.

    Args:
        state: the cache, all pools its own.
        keys: i32[B, K].
        lengths: i32[B], tokens; negative: no request.
        more: i32[B] or i32[], tokens.
        namespaces: i32[B] or i32[].
        width: entries of each row of slots (static), at least as many as a request needs.

    Returns:
        The state, what began, and per component the slots i32[B, width], NULL behind them; none of a component that
        copies on write.

    """
    config, lengths = state.config, jnp.asarray(lengths, jnp.int32)
    state, begun = begins(state, keys, lengths, namespaces=namespaces)
    number, ends = lengths.shape[0], lengths + jnp.asarray(more, jnp.int32)
    rest = [component.name for component in config.components if not component.copies_on_write]
    begins_of = {name: j * number * width for j, name in enumerate(rest)}
    place = lambda i, component, matched: begins_of[component.name] + i * width
    out = jnp.full(len(rest) * number * width, NULL, jnp.int32)
    small = begun.replace(match=begun.match.replace(slots={}))
    state, out, status, evicted = admit_each(state, small, ends, out, place, dict.fromkeys(rest, width))
    slots = {name: out[at : at + number * width].reshape(number, width) for name, at in begins_of.items()}
    return state, begun.replace(status=status, evicted=evicted), slots


def admit_each(
    state: CacheState,
    begun: Begun,
    ends: jax.Array,
    out: jax.Array,
    place: Callable[[jax.Array, Component, jax.Array], jax.Array],
    widths: dict[str, int],
    head: Head | None = None,
) -> tuple[CacheState, jax.Array, jax.Array, Evicted]:
    """Slots up to `ends` (i32[B], tokens) for each request that has `begun` ([B], without a match's slots), in order.

    They are written into `out` (i32[m]; one array, of which each step writes a part), those of request i from
    `place(i, component, matched tokens)` on. Last: each one's status, and what was evicted. `head`: as what request i
    is in the end, written to i * m / B.
    """
    rest = [component for component in state.config.components if component.name in widths]
    number = ends.shape[0]

    def step(
        carry: tuple[CacheState, jax.Array], each: tuple[jax.Array, Begun, jax.Array]
    ) -> tuple[tuple[CacheState, jax.Array], Any]:
        state, out = carry
        i, one, end = each
        begins, matched = one.status == Status.OK, one.match.device_len
        counts = {c.name: jnp.where(begins, c.needed(matched, end), 0) for c in rest}
        places = {c.name: place(i, c, matched) for c in rest}
        state, out, evicted, status = reserve_into(state, counts, out, places, widths)
        fails = begins & (status != Status.OK)
        for name, slot in one.own.items():
            state = free(state, name, slot[None], fails.astype(jnp.int32))
        node = one.receipt.node
        undone = one.receipt.replace(node=node.replace(index=jnp.where(fails, node.index, NULL)))
        state, _ = unlock(state, undone)
        status = jnp.where(fails, Status.POOL_EMPTY, one.status).astype(jnp.int32)
        if head is None:
            return (state, out), (status, evicted)
        # `pin` is 0: so that this is written after the state has been, which looks at what has been taken.
        numbers = head(one.replace(status=status)) + state.scalars.get(0)["pin"]
        return (state, lax.dynamic_update_slice(out, numbers, (i * (out.shape[0] // number),))), ()

    (state, out), done = lax.scan(step, (state, out), (jnp.arange(number, dtype=jnp.int32), begun, ends))
    status, evicted = done if head is None else (begun.status, begun.evicted)
    return state, out, status, evicted


def _surely_fits(state: CacheState, length: jax.Array, options: dict[str, Any]) -> jax.Array:
    """bool[]: the insert cannot be refused for want of room; so what is evicted before it is not evicted in vain."""
    scalars = state.scalars.get(0)
    most = 2 + 2 * len(state.config.components)  # nodes: see `insert`; a component cuts at two positions or fewer
    left = state.config.arena_tokens - scalars["arena_live"]
    return (scalars["free_nodes"] >= most) & (length - options.get("prev_prefix_len", 0) <= left)


def commit(
    state: CacheState,
    receipt: Receipt,
    key: jax.Array,
    length: jax.Array,
    slots: dict[str, jax.Array],
    *,
    finished: bool,
    leaves: jax.Array | bool = True,
    **options: Any,
) -> tuple[CacheState, Committed]:
    """Inserts what a request has computed, and lets go of what it held; unless `finished`, it holds the new node then.

    Args:
        state: the cache.
        receipt: of what the request holds.
        key: i32[K], its tokens so far.
        length: i32[], how many.
        slots: as for `insert`. Of a component that copies on write: i32[1], the request's own slot, which the tree
            takes over if it is finished; if it goes on, its state is left in the tree in a slot taken for it, evicting
            if need be, and not at all if none can be had or the node table is nearly full.
        finished: whether the request ends here (static).
        leaves: bool[], whether its state may stay in the tree: only if `length` is whole pages.
        **options: as for `insert`. `given`: of a request that goes on, the slots of the whole pages only, if it is to
            keep those of a last, partial page. The key must begin with what the receipt holds.

    """
    padded, length = whole_page(key, state.config), jnp.clip(jnp.asarray(length, jnp.int32), 0, key.shape[0])
    state, done = commit_from(
        state, receipt, padded, jnp.int32(0), length, slots, finished=finished, leaves=leaves, **options
    )
    if finished:
        return state, done
    node = jnp.maximum(done.receipt.node.index, ROOT)
    rows = read_first(state.true(), lambda state: read_slots(state, node, jnp.int32(0), key.shape[0]), state)
    return state.after(*(jnp.sum(row[:1]) for row in rows.values())), done.replace(slots=rows)


def commit_from(
    state: CacheState,
    receipt: Receipt,
    keys: jax.Array,
    base: jax.Array,
    length: jax.Array,
    slots: dict[str, jax.Array],
    *,
    finished: bool,
    leaves: jax.Array | bool = True,
    **options: Any,
) -> tuple[CacheState, Committed]:
    """`commit` of keys[base : base+length], see `insert_from`, for who reads the slots otherwise."""
    config = state.config
    names = [component.name for component in _writers(state)]
    given = options.pop("given", {})
    wanted = jnp.asarray(leaves, jnp.bool_)
    if not finished:
        wanted = wanted & _surely_fits(state, jnp.asarray(length, jnp.int32), options)
    room = {} if finished else dict.fromkeys(names, wanted.astype(jnp.int32))
    state, fresh, evicted, status = reserve(state, room, widths=dict.fromkeys(room, 1))
    handed = slots | fresh
    has = (wanted & (status == Status.OK)).astype(jnp.int32)
    given = given | dict.fromkeys(names, has)
    state, inserted = insert_from(state, keys, base, length, handed, given=given, **options)
    done = inserted.status == Status.OK
    held = {}
    if not finished:
        for name in names:  # a refused insert takes nothing
            state = free(state, name, handed[name], jnp.where(done, 0, given[name]))
            adopts = done & (given[name] > 0) & ~inserted.existed[name] & (inserted.node.index != ROOT)
            held[name] = jnp.where(adopts, handed[name][0], NULL)
    at = jnp.where(done, inserted.node.index, NULL)
    new = Receipt(node=NodeRef(index=jnp.int32(NULL), generation=jnp.int32(0)), end=receipt.end, since=receipt.since)
    if not finished:
        state, new, _ = lock(state, inserted.node.replace(index=at))
    old = receipt.replace(node=receipt.node.replace(index=jnp.where(done, receipt.node.index, NULL)))
    state, _ = unlock(state, old)
    if finished:
        for name in names:  # a state that stands for no whole pages is of no use to anybody
            state = free(state, name, slots[name], jnp.where(done & ~wanted, 1, 0))
    nothing = {c.name: jnp.full(0, NULL, jnp.int32) for c in config.components}
    return state, Committed(inserted=inserted, receipt=new, slots=nothing, left=held, evicted=evicted)
