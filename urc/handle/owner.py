"""Who owns the state: it is updated in place, kept, rolled back, looked at and checked."""

import dataclasses
import itertools
import operator
import weakref
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from urc import compiled, view
from urc import state as states
from urc.arguments import MAX_INT32, Namespaces, width
from urc.components.base import Component
from urc.config import CacheConfig
from urc.errors import InvalidInput, InvariantError, Status
from urc.handle.buffers import Buffers
from urc.leads import row_form
from urc.ledger import REQUEST, SlotLedger, holds_lock, usable_state
from urc.ops.rows import Layout
from urc.program import Arrays, Program, StateArrays
from urc.results import NodeView, Receipt, Request, Sizes, node_handle, node_parts, node_views
from urc.state import CacheState
from urc.tables.packed import NULL

NO_SLOTS = np.empty(0, np.int32)

_LOST = 2**30
_handles = itertools.count()


def _scalars(state: CacheState) -> Any:
    return state.scalars.data


def _nodes(state: CacheState) -> Any:
    return state.nodes.data


def _pool(component: Component, state: CacheState) -> Any:
    return component.pool(state.stores[component.name])


def _no_node(node: Any) -> InvalidInput:
    return InvalidInput(f"a node is what a match or an insert returned, got {node!r}")


def _as_number(node: Any) -> int:
    try:
        return -1 if isinstance(node, bool) else operator.index(node)
    except TypeError:
        raise _no_node(node) from None


class Hold(NamedTuple):
    """A lock that is out: its receipt, from where on it holds each component, and what was given back early."""

    receipt: Receipt
    since: tuple[int, ...]
    early: frozenset[str] = frozenset()
    request: bool = False  # it is a running request's, and not the caller's


@dataclasses.dataclass(frozen=True)
class Books:
    """What the handle knows beside the state at one moment."""

    holds: dict[int, Hold]
    requests: list[tuple[Request, dict[str, Any]]]
    streaming: dict[int, Request | None]


class StateOwner:
    """One state, the receipts that are out, and the book of who holds which slot."""

    def __init__(self, config: CacheConfig) -> None:
        if not isinstance(config, CacheConfig):
            raise InvalidInput(f"UnifiedRadixCache takes a urc.CacheConfig, got {type(config).__name__}")
        self.config = config
        self._names = tuple(c.name for c in config.components)
        self._id = next(_handles)
        self._serials = itertools.count()
        self._namespaces = Namespaces()
        self._snapshots: dict[int, tuple[weakref.ref, Books]] = {}
        self._holds: dict[int, Hold] = {}
        self._requests: dict[int, Request] = {}  # all that run or wait, by `id`
        self._pools = {c.name: partial(_pool, c) for c in config.components}
        self._nothing = dict.fromkeys(self._names, 0)
        self._buffers = Buffers()
        self._least_width = width(config.page_size)
        self._forms: dict[int, Layout] = {}  # of rows of results, by the tokens that there is room for
        self._writers = {component.name for component in config.components if component.copies_on_write}
        writers = len(self._writers)
        number = len(config.components)
        self._matched_fields = 6 + number  # numbers in a row of a match
        self._begun_fields = 1 + self._matched_fields + 1 + number + writers
        self._committed_fields = 4 + 3 * number + 1 + number + writers
        self._streaming: dict[int, Request | None] = {}  # streaming sessions, and the request of each
        self._released: list[list[int]] = []  # receipts unlocked, of which the state does not know yet
        self._releases_size = 1 + compiled.MOST_RELEASES * (3 + number)
        self._shared, self._epoch = False, 0
        self._arrays = StateArrays(states.init(config))
        columns = self._arrays.state.scalars.columns
        self._used_columns = {name: columns.index(f"{name}.used") for name in self._names}
        self._ledgers = {name: SlotLedger(name, config.pool_size(name)) for name in self._names}

    @property
    def state(self) -> CacheState:
        """The state: keep it to roll back to, or hand it to `urc.ops`. The cache goes on with a copy of it.

        What donates it takes it away from the cache too: assign the result, or donate a copy.
        """
        state = self._current()
        self._shared = True
        key = id(state)
        self._snapshots[key] = (
            weakref.ref(state, lambda _, key=key, kept=self._snapshots: kept.pop(key, None)),
            Books(dict(self._holds), [(r, r.saved()) for r in self._requests.values()], dict(self._streaming)),
        )
        return state

    @state.setter
    def state(self, state: CacheState) -> None:
        """Goes on from `state`, a snapshot of this cache or what `urc.ops` made of one.

        The receipts, requests and streaming sessions of a snapshot's moment are again as they were then; a request
        that began later is over. Of any other state, those stay live whose lock it holds. Node handles and sessions
        from after the snapshot are void: do not use them.
        """
        snapshot, state = state, usable_state(state, self._state, self._namespaces)
        ledgers = {c.name: SlotLedger.of(c, state) for c in self.config.components}
        reference, books = self._snapshots.get(id(snapshot), (lambda: None, None))
        if reference() is not snapshot or books is None:
            holds = {s: h for s, h in self._holds.items() if holds_lock(state, *node_parts(h.receipt.node))}
            running = [(r, r.saved()) for r in self._requests.values() if r.receipt.serial in holds]
            books = Books(holds, running, dict(self._streaming))
        for request in self._requests.values():
            request.over = True
        for request, saved in books.requests:
            vars(request).update(saved)
            vars(request).update(request.saved())  # a copy: the snapshot may be gone back to again
        self._arrays, self._shared, self._ledgers, self._released = StateArrays(state), True, ledgers, []
        self._holds, self._requests = dict(books.holds), {id(request): request for request, _ in books.requests}
        self._streaming = dict(books.streaming)
        for request in self._requests.values():
            for name, slots in self._own(request).items():
                ledgers[name].take(slots, REQUEST)

    def reset(self) -> None:
        """Empties the cache: every slot of its own pools is free; all receipts, requests, sessions, nodes are void."""
        if self._arrays.is_lost():
            self._epoch += _LOST  # how often rows have changed hands is not known any more
        else:
            tables = (self._state.nodes, self._state.sessions)
            last = max(int(np.asarray(t.data)[:, t.columns.index("generation")].max()) for t in tables)
            self._epoch = last + 1
        self._epoch &= MAX_INT32
        self._arrays = StateArrays(states.init(self.config, generation=self._epoch))
        self._shared, self._holds, self._released = False, {}, []
        self._ledgers = {name: SlotLedger(name, self.config.pool_size(name)) for name in self._names}
        for request in self._requests.values():
            request.over = True
        self._requests, self._streaming = {}, {}

    def sizes(self) -> dict[str, Sizes]:
        """Per component: free, evictable and protected slots."""
        table = self._current().scalars
        scalars = dict(zip(table.columns, np.asarray(table.data)[0].tolist(), strict=True))
        out = {}
        for name in self._names:
            size = self.config.pool_size(name)
            free = None if size is None else size - scalars[f"{name}.used"]
            out[name] = Sizes(free, scalars[f"{name}.evictable"], scalars[f"{name}.protected"])
        return out

    def check(self) -> None:
        """Raises `InvariantError` if any invariant of the state, or of the slots that callers hold, is broken."""
        view.check(self._current())
        for component in self.config.components:
            self._ledgers[component.name].check(SlotLedger.of(component, self._state))

    def tree(self) -> list[NodeView]:
        """All nodes, each after its parent, siblings by namespace and key."""
        return node_views(view.nodes(self._current()), self._namespaces.name)

    def access_order(self, name: str) -> list[int]:
        """Nodes that hold a component's value, the most recently accessed first."""
        self.config.component(name)
        self._current()
        generations = np.asarray(self._state.nodes.data)[:, self._state.nodes.columns.index("generation")]
        return [node_handle(i, int(generations[i])) for i in view.access_order(self._state, name)]

    def pretty(self) -> str:
        """The tree as text."""
        return view.pretty(self._current(), self._namespaces.name)

    @property
    def _state(self) -> CacheState:
        return self._arrays.state

    def _call(self, program: Program, *given: Any, **static: Any) -> Arrays:
        """What a program makes of the state, which it updates in place: a copy, if somebody else holds it."""
        arrays = self._arrays
        if arrays.leaves[0].is_deleted():
            self._demand_state()
        if self._released and program.sees_locks:
            self._lock_after_releases(NULL, 0)
        if self._shared and program.writes:
            self._demand_state()
            arrays.copy()
            self._shared = False
        return program(arrays, *given, **static)

    def _release(self, receipts: list[list[int]]) -> None:
        """Has receipts released with the next call that it matters to, but for those that are more than go with one."""
        if self._arrays.leaves[0].is_deleted():
            self._demand_state()
        for receipt in receipts:
            if len(self._released) == compiled.MOST_RELEASES:
                self._lock_after_releases(NULL, 0)
            self._released.append(receipt)

    def _releases(self, numbers: np.ndarray) -> None:
        """Puts what is to be released into (n, receipts..)."""
        numbers[0] = len(self._released)
        if self._released:
            listed = list(itertools.chain.from_iterable(self._released))
            numbers[1 : 1 + len(listed)] = listed

    def _demand_released(self, status: int) -> None:
        """InvariantError if something was not there to be released."""
        if status != Status.OK:
            raise InvariantError(f"a live receipt could not be released: {Status(status).name}")

    def _lock_after_releases(self, index: int, generation: int) -> list[int]:
        """Releases what is to be released, then locks a node (NULL: none): (status, end, since..)."""
        numbers = self._buffers.take(2 + self._releases_size)
        numbers[0], numbers[1] = index, generation
        self._releases(numbers[2:])
        (out,) = self._call(compiled.lock, numbers)
        self._released = []
        *fields, status = np.asarray(out).tolist()
        self._buffers.give(numbers)
        self._demand_released(status)
        return fields

    def _current(self) -> CacheState:
        """The state, if there is one, with nothing left to be released."""
        self._demand_state()
        if self._released:
            self._lock_after_releases(NULL, 0)
        return self._state

    def _demand_state(self) -> None:
        if self._arrays.is_lost():
            raise RuntimeError(
                "the cache has lost its state: an update was interrupted, or somebody donated `cache.state` "
                "without assigning the result; assign a state to go on from, or reset()"
            )

    def _form(self, tokens: int) -> Layout:
        """Where what a program returns for keys of at most so many tokens lies."""
        form = self._forms.get(tokens)
        if form is None:
            form = self._forms[tokens] = row_form(self.config, tokens)
        return form

    def _owned(self, name: str) -> None:
        self.config.component(name)
        if self.config.pool_size(name) is None:
            raise InvalidInput(f"the pool of {name!r} is the caller's own: pools[{name!r}] is None")

    def _node(self, node: int) -> tuple[int, int]:
        """Row and generation of a node."""
        number = node if type(node) is int else _as_number(node)
        if number < 0:
            raise _no_node(node)
        index, generation = node_parts(number)
        if not index < self.config.max_nodes or generation > MAX_INT32 or (index == states.ROOT and generation):
            raise InvalidInput(f"{node} is not a node of this cache")
        return index, generation if index else self._root_generation()

    def _all_nodes(self, nodes: list[int]) -> np.ndarray:
        """`_node` of each of n > 0, i[n, 2]."""
        if set(map(type, nodes)) == {int} and min(nodes) >= 0 and max(nodes) < 2**62:
            index, generation = node_parts(np.array(nodes))
            if index.min() > states.ROOT and index.max() < self.config.max_nodes:  # the root's generation is looked up
                return np.stack([index, generation], axis=1)
        return np.array([self._node(node) for node in nodes])

    def _root_generation(self) -> int:
        return int(self._arrays.read(_nodes)[states.ROOT, self.config.node_columns.index("generation")])

    def _freed(self, name: str, start: int, count: int) -> np.ndarray:
        return self._pool(name)[start : start + count].copy() if count else NO_SLOTS

    def _pool(self, name: str) -> np.ndarray:
        """A component's pool, as it is now."""
        return self._arrays.read(self._pools[name])

    def _used(self) -> dict[str, int]:
        """Slots that are not free, per component."""
        self._demand_state()
        row = self._arrays.read(_scalars)[0]
        return {name: int(row[column]) for name, column in self._used_columns.items()}

    # -- what requests hold ---------------------------------------------------------------------------------------

    def _own_from(self, request: Request, component: Component) -> int:
        """Where a request's own slots of a component begin in its row."""
        return component.needed(0, max(request.committed, request.given_up.get(component.name, 0)))

    def _own_slots(self, request: Request, component: Component) -> np.ndarray:
        """The slots of a component that a request holds itself."""
        row = request.slots[component.name]
        return row if component.copies_on_write else row[self._own_from(request, component) :]

    def _own(self, request: Request) -> dict[str, np.ndarray]:
        """The slots that a request holds itself."""
        return {c.name: self._own_slots(request, c) for c in self.config.components}
