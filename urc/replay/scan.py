"""The replay as compiled programs: `engine.serve`, a chunk of requests a call, several runs side by side.

What becomes of each request, and the state after it, is bit for bit what the rule makes of it through the handle.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from urc import state as states
from urc.config import MAX_INT32, CacheConfig
from urc.ops.compact import compact
from urc.ops.evict import evict
from urc.ops.path import touched, walk_up
from urc.ops.split import cut_node
from urc.ops.walk import walk
from urc.program import jit_options
from urc.replay.engine import FULL, Run, Served, config_of, run_of
from urc.replay.trace import Request, Trace
from urc.state import ROOT, CacheState, empty_row
from urc.tables import children
from urc.tables.packed import NULL, Row, Table, copy_run, read_first, select

REQUESTS = 512  # of a chunk
ROOM = 2**14  # ids of a chunk, at least
COLUMNS = ("start", "length", "input_length", "again")
"""Of a chunk's requests: where the ids start; whole pages of all ids, and of the input, in blocks; whether the whole
sequence is matched after the input."""

Time = tuple[jax.Array, jax.Array]


class Shape(NamedTuple):
    """What the program for a trace depends on, beside the configuration."""

    width: int  # ids that one request has at most, a power of two
    outputs: bool  # whether the output of any request enters the cache

    @property
    def room(self) -> int:
        """Ids of a chunk, at most."""
        return max(ROOM, self.width)

    @classmethod
    def of(cls, requests: Sequence[Request], page_size: int = 1) -> Shape:
        """The least that these requests, and a page, fit into."""
        longest = max([page_size, *(len(r.ids) for r in requests)])
        return cls(1 << (longest - 1).bit_length(), any(r.input_blocks != len(r.ids) for r in requests))


class Chunk(NamedTuple):
    """Requests as arrays."""

    ids: np.ndarray  # i32[room + width]
    requests: np.ndarray  # i32[REQUESTS, 4]: COLUMNS; 0 behind the last one
    size: int  # requests


class Found(NamedTuple):
    """What a key has in the tree once it has been cut where the key leaves it. i32[] each."""

    node: jax.Array  # ends at `length`
    length: jax.Array
    rear: jax.Array  # the other part of the node that was cut, or NULL


# -- one request ------------------------------------------------------------------------------------------------------


def serve(
    state: CacheState, key: jax.Array, request: Row, *, outputs: bool
) -> tuple[CacheState, tuple[jax.Array, jax.Array, jax.Array]]:
    """`engine.serve` as a pure function: the state, and (matched, evicted or NULL, refused), i32[] each.

    It is what match, lock, evict, alloc, insert and unlock do one after the other, short of what another of them
    undoes or does again: a path is stamped once, the key is walked once, and slots go from the pool to their node.

    Args:
        state: a cache with Full alone, and with a row for each page of its pool, so that there is always one more.
        key: i32[K], the ids; K is a page at least.
        request: its COLUMNS.
        outputs: whether any request is matched again as a whole.

    """
    component, config = state.config.components[0], state.config
    used, lock, size = component.column("used"), component.column("lock"), config.pool_size(FULL) or 0
    length = request["length"]
    state, hit = _cut(state, key, request["input_length"])
    state, now = state.tick(hit.length > 0)
    found, rears = hit, [hit.rear]
    if outputs:
        again = request["again"] > 0
        state, whole = _cut(state, key, jnp.where(again, length, 0))
        state, later = state.tick(whole.length > 0)
        now = _where(again, later, now)
        found = Found(*(jnp.where(again, a, b) for a, b in zip(whole, hit, strict=True)))
        rears.append(whole.rear)
    rest = length - found.length

    # Only leaves are evicted, so all of a path is safe as long as its last node does not count as one.
    held = jnp.where((rest > 0) & (found.node > ROOT), found.node, NULL)
    nodes = state.nodes.set(held, **{lock: 1})
    state = state.replace(nodes=nodes).refresh(*(_childless(nodes, node) for node in (*rears, held)))
    short = jnp.maximum(rest - (size - state.scalars.get(0)[used]), 0)
    state, gone = evict(state, {FULL: short})
    grows = (rest > 0) & (rest <= size - state.scalars.get(0)[used])
    refused = (rest > 0) & ~grows

    state, later = state.tick(grows)
    now = _where(grows, later, now)
    state, leaf = _grow(state, found, key, jnp.where(grows, rest, 0), now)

    def visit(row: Row) -> Row:
        used_again = {"hits": row["hits"] + (row["hits"] < MAX_INT32), "longest": jnp.maximum(row["longest"], length)}
        return touched(select(grows, row | used_again, row), component, now, jnp.bool_(True)) | {lock: 0}

    end = jnp.where(grows, leaf, found.node)
    nodes = walk_up(state.nodes, end, visit)
    state = state.replace(nodes=nodes).refresh(_childless(nodes, end))
    evicted = jnp.where(short > 0, gone.evicted[FULL], NULL)
    return state, (jnp.where(refused, 0, hit.length), evicted, refused.astype(jnp.int32))


def _where(flag: jax.Array, yes: Time, no: Time) -> Time:
    return jnp.where(flag, yes[0], no[0]), jnp.where(flag, yes[1], no[1])


def _childless(nodes: Table, node: jax.Array) -> jax.Array:
    """`node` (i32[]) if the victim order may hold it, else NULL: a node with children is never in it."""
    return jnp.where((node > ROOT) & (nodes.get(node)["children"] == 0), node, NULL)


def _cut(state: CacheState, key: jax.Array, length: jax.Array) -> tuple[CacheState, Found]:
    """Walks key[:length] and cuts the node in which that ends. Stamps and victim orders are the caller's to mend."""
    look = lambda state: walk(state.config, state.nodes, state.heads, state.tokens, key, length, jnp.int32(0))
    found = read_first(state.true(), look, state)
    state, front = cut_node(state, found.deepest, found.cut)
    cut = front >= 0
    node, rear = jnp.where(cut, front, found.deepest), jnp.where(cut, found.deepest, NULL)
    return state, Found(node=node, length=found.length, rear=rear)


def _grow(state: CacheState, found: Found, key: jax.Array, made: jax.Array, now: Time) -> tuple[CacheState, jax.Array]:
    """Appends a leaf with `made` (i32[], 0: no-op) more ids of the key, whose slots come from the pool.

    Returns its row, or NULL. Stamp, uses and victim order are the caller's to see to.
    """
    component, config, zero = state.config.components[0], state.config, jnp.int32(0)
    used, evictable = component.column("used"), component.column("evictable")
    grows = made > 0
    state = compact(state, made > config.arena_tokens - state.scalars.get(0)["arena_top"])

    def look(state: CacheState) -> dict[str, Any]:
        scalars = state.scalars.get(0)
        edge = children.edge_hash(found.node, zero, key, found.length, config.page_size)
        return {
            "scalars": scalars,
            "parent": state.nodes.get(found.node),
            "free_row": state.nodes.get(scalars["free_head"]),
            "edge": edge,
            "head": state.heads[children.bucket_of(state.heads, edge)],
        }

    plan = read_first(state.true(), look, state)
    scalars, edge, store = plan["scalars"], plan["edge"], state.stores[FULL]
    start, leaf = scalars["arena_top"], jnp.where(grows, scalars["free_head"], NULL)
    row = empty_row(config) | {
        "parent": found.node,
        "start": start,
        "length": made,
        "end": found.length + made,
        "next": plan["head"],
        "hash": edge,
        "generation": plan["free_row"]["generation"],
        "created_hi": now[0],
        "created_lo": now[1],
        component.column("value"): 0,
    }
    nodes = state.nodes.put(leaf, row)
    state = state.replace(
        nodes=nodes.set(jnp.where(grows, found.node, NULL), children=plan["parent"]["children"] + 1),
        heads=state.heads.at[children.bucket_of(state.heads, edge)].set(jnp.where(grows, leaf, plan["head"])),
        tokens=copy_run(state.tokens, start, key, found.length, made),
        stores={FULL: store.replace(slots=copy_run(store.slots, start, store.pool, scalars[used], made))},
    )
    counts = {
        "arena_top": scalars["arena_top"] + made,
        "arena_live": scalars["arena_live"] + made,
        "free_head": jnp.where(grows, plan["free_row"]["next"], scalars["free_head"]),
        "free_nodes": scalars["free_nodes"] - grows,
        used: scalars[used] + made,
        evictable: scalars[evictable] + made,
    }
    return state.with_scalars(**counts), leaf


# -- a chunk ----------------------------------------------------------------------------------------------------------


def serve_all(state: CacheState, ids: jax.Array, requests: jax.Array, *, shape: Shape) -> tuple[CacheState, jax.Array]:
    """`serve` of the requests of a chunk (see `Chunk`), in order: i32[n, 3], what became of each."""

    def step(state: CacheState, values: jax.Array) -> tuple[CacheState, jax.Array]:
        request = Row(values=values, columns=COLUMNS)
        key = lax.dynamic_slice(ids, (request["start"],), (shape.width,))
        state, outcome = serve(state, key, request, outputs=shape.outputs)
        return state, jnp.stack(outcome)

    return lax.scan(step, state, requests)


def pack(requests: Sequence[Request], shape: Shape, *, page_size: int) -> Iterator[Chunk]:
    """All requests in order, as many to a chunk as there is room for."""
    chunk: list[Request] = []
    total = 0
    for request in requests:
        if len(chunk) == REQUESTS or total + len(request.ids) > shape.room:
            yield _packed(chunk, shape, page_size)
            chunk, total = [], 0
        chunk.append(request)
        total += len(request.ids)
    if chunk:
        yield _packed(chunk, shape, page_size)


def _packed(chunk: Sequence[Request], shape: Shape, page_size: int) -> Chunk:
    ids, requests = blank(shape)
    lengths, inputs = np.array([(len(r.ids), r.input_blocks) for r in chunk], np.int32).T
    ends = np.cumsum(lengths)
    ids[: ends[-1]] = np.concatenate([r.ids for r in chunk])
    columns = ends - lengths, lengths // page_size * page_size, inputs // page_size * page_size, lengths != inputs
    requests[: len(chunk)] = np.stack(columns, axis=1)
    return Chunk(ids, requests, len(chunk))


def blank(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of a chunk without requests."""
    return np.zeros(shape.room + shape.width, np.int32), np.zeros((REQUESTS, len(COLUMNS)), np.int32)


def outcomes(chunk: Chunk, outcome: jax.Array) -> list[Served]:
    """What became of each request of a chunk."""
    rows = np.asarray(outcome)[: chunk.size].tolist()
    return [Served(matched, None if evicted == NULL else evicted, bool(refused)) for matched, evicted, refused in rows]


# -- runs -------------------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    """`serve_all`, compiled ahead of time."""

    call: Callable[..., tuple[CacheState, jax.Array]]
    seconds: float  # that it took to compile


def open_state(config: CacheConfig, capacity: int) -> CacheState:
    """An empty cache of which `capacity` blocks can be used; the other slots are held back, as `open_cache` does it."""
    state = states.init(config)
    held = (config.pool_size(FULL) or 0) - capacity
    scalars = np.array(state.scalars.data)
    scalars[0, state.scalars.columns.index(config.components[0].column("used"))] = held
    return state.replace(scalars=state.scalars.replace(data=jnp.asarray(scalars)))


def compile_program(config: CacheConfig, shape: Shape) -> Program:
    """The program for all chunks of this shape."""
    start = time.perf_counter()
    program = jax.jit(partial(serve_all, shape=shape), donate_argnums=0, **jit_options())
    call = program.lower(open_state(config, 0), *blank(shape)).compile()
    return Program(call, time.perf_counter() - start)


def replay_all(
    trace: Trace,
    plan: Sequence[tuple[int, str]],
    *,
    slots: int,
    page_size: int = 1,
    on_progress: Callable[[int], None] = lambda served: None,
) -> list[Run]:
    """`engine.replay` of a trace for each (capacity, policy) of a plan, in its order; on all CPUs, a run on each.

    Args:
      trace: the requests.
      plan: capacities in blocks, and names of eviction policies. A policy is compiled once.
      slots: in the pools of all caches; a greater capacity is as good as this one.
      page_size: blocks of a page.
      on_progress: called now and then, by any thread, with the number of requests served since the last call.

    """
    shape = Shape.of(trace.requests, page_size)
    chunks = [*pack(trace.requests, shape, page_size=page_size)]
    configs = {policy: config_of(slots=slots, policy=policy, page_size=page_size) for _, policy in plan}
    stopped = threading.Event()

    def run(capacity: int, policy: str) -> Run:
        program = programs[policy].result()
        served: list[Served] = []
        speeds: list[float] = []
        start = time.perf_counter()
        state = open_state(configs[policy], min(capacity, slots))
        for chunk in chunks:
            if stopped.is_set():
                raise CancelledError
            began = time.perf_counter()
            state, outcome = program.call(state, chunk.ids, chunk.requests)
            served.extend(outcomes(chunk, outcome))
            speeds.append(chunk.size / (time.perf_counter() - began))
            on_progress(chunk.size)
        return run_of(
            trace,
            served,
            capacity=capacity,
            policy=policy,
            page_size=page_size,
            seconds=program.seconds + time.perf_counter() - start,
            compile_seconds=program.seconds,
            speeds=speeds,
        )

    with ThreadPoolExecutor(max(min(os.cpu_count() or 1, len(plan)), 1)) as pool:
        try:
            programs = {policy: pool.submit(compile_program, config, shape) for policy, config in configs.items()}
            return [future.result() for future in [pool.submit(run, *each) for each in plan]]
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
