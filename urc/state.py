"""The whole cache as one immutable pytree of fixed-capacity arrays."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from urc.arguments import MAX_INT32
from urc.components.base import Component, Ledger
from urc.config import CacheConfig
from urc.tables import clock, victims
from urc.tables.packed import CHUNK, NULL, Row, Table

ROOT = 0
"""Row of the root, which holds no tokens and is never evicted."""

SCALARS = ("pin", "clock_hi", "clock_lo", "arena_top", "arena_live", "free_head", "free_nodes", "named", "names")
"""`pin`: see `CacheState.after`. `named`, `names`: the largest namespace that the host has used in this state, and a
hash of all names up to it; 0 where only the pure functions are used."""
LEDGER = ("used", "evictable", "protected")
SESSION = ("generation", "node", "end")
"""Columns of the session table, before `since` per component: `node` is NULL where no session is open."""


class NodeRef(struct.PyTreeNode):
    """A node, told apart from others that its row has held or will hold."""

    index: jax.Array  # i32[]
    generation: jax.Array  # i32[]


class CacheState(struct.PyTreeNode):
    """A radix tree of whole pages and, per component, the slots that its nodes hold.

    The arrays that most calls of the host write come first: see `urc.program.Call`.

    Invariants, all checked by `urc.view.check`:

    - A row of `nodes` in use is reached from the root, once; every other row is in the free list that starts at
      `free_head` and is linked by `next`. `end` is the parent's `end` plus `length`; `children` counts children.
    - A node is found in the bucket of `hash(parent, namespace, its first page)`; no two children of a parent share
      namespace and first page.
    - The runs [start, start + length) of `tokens` are disjoint and lie below `arena_top`; `arena_live` is their sum.
    - Per component: slots in nodes and slots in the pool's free part are disjoint; `evictable` and `protected` are
      the sizes of the nodes whose lock count is 0, above 0; the victim order is what the rows say.
    - The count `session` of a node and component is that of the open sessions whose `node` is this one or below it and
      whose `since` of that component lies before this one's end.
    - Of two nodes with the same last access one is an ancestor of the other, and the deeper is the more recent.
    """

    nodes: Table  # i32[rows, k]: config.node_columns; row 0 is the root, the last row is spare
    scalars: Table  # i32[1 + spare, k]: SCALARS, then LEDGER per component
    victims: jax.Array  # i32[components, winners, 6]: who goes next for each component, see urc.tables.victims
    heads: jax.Array  # i32[buckets]: first row of each bucket of the child table
    tokens: jax.Array  # i32[arena_tokens + CHUNK]
    stores: dict[str, Any]  # each component's own
    sessions: Table  # i32[max_sessions + 1, k]: SESSION, then `since` per component; the last row is spare
    config: CacheConfig = struct.field(pytree_node=False)

    # -- reading -------------------------------------------------------------------------------------------------

    def ledger(self, component: Component, scalars: Row) -> Ledger:
        """One component's counters out of the scalars."""
        return {field: scalars[component.column(field)] for field in LEDGER}

    def true(self) -> jax.Array:
        """bool[]: always true, in a way that XLA cannot prove; see `read_first`."""
        return self.scalars.get(0)["pin"] == 0

    def ref(self, index: jax.Array) -> NodeRef:
        """The node in a row."""
        return NodeRef(index=index, generation=self.nodes.get(index)["generation"])

    def first_victim(self, component: Component) -> jax.Array:
        """The node (i32[]) that goes next for a component, NULL if there is none."""
        return victims.first(self.victims)[self.config.components.index(component)]

    # -- writing -------------------------------------------------------------------------------------------------

    def with_scalars(self, **fields: jax.Array | int) -> "CacheState":
        """Other values of some scalars."""
        return self.replace(scalars=self.scalars.put(0, self.scalars.get(0) | fields))

    def with_store(self, component: Component, store: Any, ledger: Ledger | None = None) -> "CacheState":
        """Another store, and counters, of one component."""
        state = self.replace(stores={**self.stores, component.name: store})
        if ledger is None:
            return state
        return state.with_scalars(**{component.column(field): ledger[field] for field in LEDGER})

    def after(self, *values: jax.Array) -> "CacheState":
        """The same state, such that what a later transition writes comes after the reads behind `values`.

        Within one jit XLA may otherwise put off a read whose result only the caller uses, and then has to copy what
        the next transition overwrites. `values` (i32[]) are >= NULL, so that the scalar `pin` is always 0; XLA cannot
        know that, and every transition reads the scalars first.
        """
        below = functools.reduce(jnp.minimum, values) < NULL
        return self.with_scalars(pin=below.astype(jnp.int32))

    def tick(self, advance: jax.Array) -> tuple["CacheState", tuple[jax.Array, jax.Array]]:
        """Advances the clock where `advance` (bool[]); returns the words of now."""
        scalars = self.scalars.get(0)
        now = clock.tick(scalars["clock_hi"], scalars["clock_lo"], advance)
        return self.with_scalars(clock_hi=now[0], clock_lo=now[1]), now

    def drained(self) -> "CacheState":
        """The pools that only pass freed slots on to the caller, who owns them, empty again. The slots just freed stay
        readable until the next transition frees some.
        """
        config = self.config
        names = [c.name for c in config.components if config.pool_size(c.name) is None]
        rooms = {f"{name}.used": config.pool_room(name) for name in names}
        return self.with_scalars(**rooms) if rooms else self

    def refresh(
        self, *nodes: jax.Array, climb: Callable[[Component, Table, jax.Array], jax.Array] | None = None
    ) -> "CacheState":
        """Puts nodes (i32[] each, NULL: none) where they now belong in every component's victim order.

        From the last of them on, if given: `climb(component, node table, node)` (i32[], NULL: none), and so forth.
        """
        config, table = self.config, self.nodes
        listed, last, true = jnp.stack(nodes), len(nodes) - 1, self.true()
        first = jnp.int32(0)
        for i in reversed(range(len(nodes))):
            first = jnp.where(nodes[i] >= 0, i, first)
        orders = self.victims
        for which, component in enumerate(config.components):
            key = key_of(component, config)

            def step(carry: tuple, which: int = which, component: Component = component, key: Any = key) -> tuple:
                orders, i, at = carry
                orders = victims.refresh(orders, which, table, at, key)
                above = jnp.int32(NULL) if climb is None else climb(component, table, at)
                # If XLA saw that there is no second step, it would make a conditional of this, which copies the orders.
                above = jnp.where(true, above, at)
                return orders, i + 1, jnp.where(i < last, listed[jnp.minimum(i + 1, last)], above)

            more = lambda carry: (carry[2] >= 0) | ((carry[1] < last) & (carry[1] > first))
            orders, *_ = lax.while_loop(more, step, (orders, first, listed[first]))
        return self.replace(victims=orders).after(*victims.first(orders))


def once(
    applies: jax.Array, change: Callable[[CacheState], tuple[CacheState, Any]], state: CacheState, result: Any
) -> tuple[CacheState, Any]:
    """`change(state)`, or (state, result) where `applies` (bool[]) is not set; in place, and as one kernel if small.

    A conditional copies what it hands through. So does a loop of which XLA can see that it runs once at most.
    """

    def body(carry: tuple[CacheState, Any, jax.Array]) -> tuple[CacheState, Any, jax.Array]:
        state, result = change(carry[0])
        return state, result, ~state.true()

    return lax.while_loop(lambda carry: carry[2], body, (state, result, applies))[:2]


def next_generation(generation: jax.Array) -> jax.Array:
    """The generation of a row's next node: after 2**31 nodes in one row it starts again."""
    return (generation + 1) & MAX_INT32


def is_device_leaf(row: Row, components: tuple[Component, ...]) -> jax.Array:
    """bool: not the root, childless, holds what nodes live on, and no component locks it."""
    leaf = (row["length"] > 0) & (row["children"] == 0) & components[0].has_value(row)
    for component in components:
        leaf = leaf & (row[component.column("lock")] == 0)
    return leaf


def key_of(component: Component, config: CacheConfig) -> victims.KeyOf:
    """The key by which a component's victim order sorts nodes: those that no session refers to go first."""

    def key(rows: Row) -> tuple[jax.Array, victims.Key]:
        candidate, words = component.victim(rows, is_device_leaf(rows, config.components), config)
        referenced = (rows[component.column("session")] > 0).astype(jnp.int32)
        return candidate & (rows["length"] > 0), (referenced, *words)

    return key


def empty_row(config: CacheConfig) -> Row:
    """A row that holds no node."""
    fields = dict.fromkeys(config.node_columns, 0) | {"parent": NULL, "next": NULL}
    return Row.of(fields | {component.column("value"): NULL for component in config.components})


def init(config: CacheConfig, *, generation: int = 0) -> CacheState:
    """An empty cache, whose rows have held `generation` nodes so far."""
    with jax.ensure_compile_time_eval():  # also where the whole is traced, as by `jax.eval_shape`
        row = np.asarray((empty_row(config) | {"generation": generation}).values)
    nodes = np.tile(row, (config.node_rows, 1))
    nodes[-1] = 0
    columns = config.node_columns
    nodes[1 : config.max_nodes, columns.index("next")] = [*range(2, config.max_nodes), NULL][: config.max_nodes - 1]
    scalars = dict.fromkeys(SCALARS, 0) | {"free_nodes": config.max_nodes - 1}
    scalars["free_head"] = 1 if config.max_nodes > 1 else NULL
    for component in config.components:
        owned = config.pool_size(component.name) is not None
        ledger = {"used": 0 if owned else config.pool_room(component.name), "evictable": 0, "protected": 0}
        scalars |= {component.column(field): value for field, value in ledger.items()}
    values = np.array([list(scalars.values())] * 2, np.int32)
    columns_of_sessions = (*SESSION, *(component.column("since") for component in config.components))
    sessions = np.tile(
        np.array([generation, *[NULL] * (len(columns_of_sessions) - 1)], np.int32), (config.max_sessions + 1, 1)
    )
    sessions[-1] = 0
    return CacheState(
        nodes=Table(data=jnp.asarray(nodes), columns=columns),
        heads=jnp.full(config.buckets, NULL, jnp.int32),
        tokens=jnp.full(config.arena_tokens + CHUNK, NULL, jnp.int32),
        scalars=Table(data=jnp.asarray(values), columns=tuple(scalars)),
        sessions=Table(data=jnp.asarray(sessions), columns=columns_of_sessions),
        victims=victims.init(config.node_rows, len(config.components)),
        stores={component.name: component.init(config) for component in config.components},
        config=config,
    )
