"""The host handle: NumPy in, NumPy out, errors raised. It owns one state and updates it in place."""

import itertools
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from urc import compiled, view
from urc import state as states
from urc.arguments import (
    MAX_INT32,
    Namespace,
    Namespaces,
    Tokens,
    by_name,
    count,
    integers,
    padded_key,
    sequence,
    tokens_of,
    width,
)
from urc.config import CacheConfig
from urc.errors import CacheFull, InvalidInput, InvariantError, Status, Stop
from urc.ledger import SlotLedger, holds_lock, usable_state
from urc.results import (
    EvictResult,
    InsertResult,
    MatchResult,
    NodeView,
    Receipt,
    Sizes,
    node_handle,
    node_parts,
    node_views,
)
from urc.state import CacheState

_LOST = 2**30
_handles = itertools.count()


class UnifiedRadixCache:
    """A prefix cache for a serving stack.

    Every method either does what it says or raises and leaves the cache as it was: `InvalidInput` for arguments that
    make no sense, `CacheFull` for an insert that does not fit. Not thread-safe.
    """

    def __init__(self, config: CacheConfig) -> None:
        if not isinstance(config, CacheConfig):
            raise InvalidInput(f"UnifiedRadixCache takes a urc.CacheConfig, got {type(config).__name__}")
        self.config = config
        self._names = tuple(c.name for c in config.components)
        self._id = next(_handles)
        self._serials = itertools.count()
        self._namespaces = Namespaces()
        self._snapshots: dict[int, tuple[weakref.ref, dict[int, Receipt]]] = {}
        self._receipts: dict[int, Receipt] = {}
        self._shared, self._epoch = False, 0
        self._state = states.init(config)
        self._ledgers = {name: SlotLedger(name, config.pool_size(name)) for name in self._names}

    # -- match ---------------------------------------------------------------------------------------------------

    def match_prefix(self, tokens: Tokens, namespace: Namespace = None) -> MatchResult:
        """The longest cached prefix of `tokens` from which a request can resume; marks it as used.

        `slots[name]` has `device_len` entries, i32, in order.
        """
        key, space = tokens_of(tokens, self.config.max_key_len), self._namespaces.number(namespace, new=False)
        found = compiled.match_prefix(self._donate(), *padded_key(key, space, self.config.page_size))
        self._state, numbers, slots = found
        return self._match_result(np.asarray(numbers).tolist(), slots)

    def match_prefixes(
        self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None = None
    ) -> list[MatchResult]:
        """`match_prefix` of each key in order, in one call."""
        count, batch = self._batch(keys, namespaces)
        if not count:
            return []
        self._state, numbers, slots = compiled.match_prefixes(self._donate(), *batch)
        return self._match_results(count, numbers, slots)

    def probe(self, tokens: Tokens, namespace: Namespace = None) -> MatchResult:
        """`match_prefix` without any side effect; `node` is the one in which the prefix ends."""
        key, space = tokens_of(tokens, self.config.max_key_len), self._namespaces.number(namespace, new=False)
        numbers, slots = compiled.probe(self._current(), *padded_key(key, space, self.config.page_size))
        return self._match_result(np.asarray(numbers).tolist(), slots)

    def probes(self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None = None) -> list[MatchResult]:
        """`probe` of each key, in one call."""
        count, batch = self._batch(keys, namespaces)
        if not count:
            return []
        return self._match_results(count, *compiled.probes(self._current(), *batch))

    # -- slots ---------------------------------------------------------------------------------------------------

    def alloc(self, name: str, n: int) -> np.ndarray | None:
        """`n` free slots of a component's pool (i32[n]) for the caller to hold, or None if fewer are free."""
        self._owned(name)
        wanted = count("n", n)
        if wanted > self.config.pool_room(name):
            return None
        self._state, slots, status = compiled.alloc(self._donate(), name, np.int32(wanted), width=width(wanted))
        if int(np.asarray(status)) != Status.OK:  # comparing the array itself would dispatch a program
            return None
        taken = np.array(np.asarray(slots)[:wanted])
        self._ledgers[name].take(taken)
        return taken

    def free(self, name: str, slots: Sequence[int] | np.ndarray) -> None:
        """Gives slots back that the caller holds."""
        self._owned(name)
        held = integers(f"slots of {name!r}", slots)
        self._ledgers[name].demand_held(held)
        padded = np.full(width(len(held)), -1, np.int32)
        padded[: len(held)] = held
        self._state = compiled.free(self._donate(), name, padded, np.int32(len(held)))
        self._ledgers[name].give(held)

    # -- insert, evict -------------------------------------------------------------------------------------------

    def insert(
        self,
        tokens: Tokens,
        slots: Mapping[str, Sequence[int] | np.ndarray],
        namespace: Namespace = None,
        prev_prefix_len: int = 0,
        inserted_len: int = 0,
        evicted_len: Mapping[str, int] | None = None,
        priority: int = 0,
    ) -> InsertResult:
        """Caches the whole pages of `tokens` and takes over all slots handed in.

        Args:
            tokens: the key.
            slots: per component, one slot per token, or only those of the whole pages.
            namespace: isolates keys from each other.
            prev_prefix_len: tokens whose slots are the tree's own already, as matched before; they are ignored.
            inserted_len: tokens that this same request has inserted before: what lies below counts no further hit.
            evicted_len: per component, tokens whose slots the caller has given up before.
            priority: raises that of the nodes on the path.

        Returns:
            What was there already, and of the slots handed over which the tree adopted and which were freed: into the
            cache's own pool, or, where the caller owns it, for the caller to take back.

        """
        config = self.config
        key, space = tokens_of(tokens, self.config.max_key_len), self._namespaces.number(namespace)
        whole = len(key) // config.page_size * config.page_size
        prev = count("prev_prefix_len", prev_prefix_len)
        if prev > whole:
            raise InvalidInput(f"prev_prefix_len is {prev}, but the key has {whole} tokens in whole pages")
        by_name("slots", slots, self._names)
        evicted = self._evicted_len(evicted_len or {})
        options = [prev, count("inserted_len", inserted_len), count("priority", priority, -MAX_INT32 - 1)]
        given, handed = {}, {}
        for component in config.components:
            name, counts = component.name, component.counts(len(key), whole)
            if component.is_base and name not in slots:
                raise InvalidInput(f"slots lacks {name!r}, which every node holds")
            given[name] = integers(f"slots of {name!r}", slots.get(name, ()))
            if len(given[name]) not in counts:
                raise InvalidInput(
                    f"slots[{name!r}] has {len(given[name])} entries for a key of {len(key)} tokens, {whole} of them "
                    f"in whole pages: it takes {' or '.join(map(str, sorted(set(counts))))}"
                )
            handed[name] = component.handed_over(given[name], prev, evicted[name])
            self._ledgers[name].demand_held(handed[name])
        padded, where = padded_key(key, space, config.page_size)
        buffers = {}
        for name, held in given.items():
            buffers[name] = np.full(width(max(len(held), len(padded))), -1, np.int32)
            buffers[name][: len(held)] = held
        lengths = [*(len(given[n]) for n in self._names), *(evicted[n] for n in self._names)]
        numbers = np.array([*where, *options, *lengths, self._namespaces.stamp(space)], np.int32)
        self._state, out = compiled.insert(self._donate(), padded, buffers, numbers)
        status, prefix_len, index, generation, *runs = np.asarray(out).tolist()
        if status == Status.BAD_PREFIX:
            raise InvalidInput(
                f"prev_prefix_len is {prev}, but the tree holds only {prefix_len} tokens of this key: "
                "match again and keep the match locked until the insert"
            )
        if status != Status.OK:
            room = f"max_nodes = {config.max_nodes}, arena_tokens = {config.arena_tokens}"
            raise CacheFull(f"{Status(status).name}: the key does not fit ({room}): evict, then insert again")
        adopted, freed = {}, {}
        for j, name in enumerate(self._names):
            out_of_tree = self._freed(name, runs[2 * j], runs[2 * j + 1])
            adopted[name], freed[name] = self._ledgers[name].settle(handed[name], out_of_tree)
        return InsertResult(prefix_len, node_handle(index, generation), adopted, freed)

    def evict(self, targets: Mapping[str, int]) -> EvictResult:
        """Frees at least `targets[name]` slots per component, the least valuable first, as far as nothing is locked.

        Leaves go whole, so it may be more; the result says how far it got.
        """
        by_name("targets", targets, self._names)
        wanted = [count(f"targets[{name!r}]", targets.get(name, 0)) for name in self._names]
        self._state, out = compiled.evict(self._donate(), np.array(wanted, np.int32))
        runs = np.asarray(out).tolist()
        freed = {name: self._freed(name, runs[2 * j], runs[2 * j + 1]) for j, name in enumerate(self._names)}
        for name, slots in freed.items():
            self._ledgers[name].give(slots)
        return EvictResult({name: len(slots) for name, slots in freed.items()}, freed)

    # -- lock ----------------------------------------------------------------------------------------------------

    def lock(self, node: int) -> Receipt:
        """Protects what a request reads that resumes at `node`, until `unlock` of the receipt."""
        index, generation = self._node(node)
        self._state, out = compiled.lock(self._donate(), np.array([index, generation], np.int32))
        status, end = np.asarray(out).tolist()
        if status != Status.OK:
            raise InvalidInput(f"node {node} has left the tree: match again")
        receipt = Receipt(node, end, next(self._serials), self._id)
        self._receipts[receipt.serial] = receipt
        return receipt

    def unlock(self, receipt: Receipt) -> None:
        """Releases exactly what the lock took."""
        if not isinstance(receipt, Receipt) or not isinstance(receipt.serial, int):
            raise InvalidInput(f"unlock takes the Receipt that lock returned, got {type(receipt).__name__}")
        if self._receipts.get(receipt.serial) != receipt:
            raise InvalidInput("this receipt is not live here: unlocked before, or of another cache or an undone lock")
        index, generation = self._node(receipt.node)
        numbers = np.array([index, generation, receipt.end], np.int32)
        self._state, status = compiled.unlock(self._donate(), numbers)
        if (code := int(np.asarray(status))) != Status.OK:
            raise InvariantError(f"a live receipt could not be released: {Status(code).name}")
        del self._receipts[receipt.serial]

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> CacheState:
        """The state: keep it to roll back to, or hand it to `urc.ops`. The cache goes on with a copy of it.

        What donates it takes it away from the cache too: assign the result, or donate a copy.
        """
        self._current()
        self._shared = True
        key = id(self._state)
        self._snapshots[key] = (
            weakref.ref(self._state, lambda _, key=key, kept=self._snapshots: kept.pop(key, None)),
            dict(self._receipts),
        )
        return self._state

    @state.setter
    def state(self, state: CacheState) -> None:
        """Goes on from `state`, a snapshot of this cache or what `urc.ops` made of one.

        The receipts that were live at a snapshot are live again. Of any other state, those stay live whose lock it
        holds. Node handles from after the snapshot are void: do not use them.
        """
        snapshot, state = state, usable_state(state, self._state, self._namespaces)
        ledgers = {c.name: SlotLedger.of(c, state) for c in self.config.components}
        reference, receipts = self._snapshots.get(id(snapshot), (lambda: None, None))
        if reference() is not snapshot or receipts is None:
            receipts = {s: r for s, r in self._receipts.items() if holds_lock(state, *node_parts(r.node))}
        self._state, self._shared, self._receipts, self._ledgers = state, True, dict(receipts), ledgers

    def reset(self) -> None:
        """Empties the cache: every slot of its own pools is free, every receipt and node handle void."""
        if self._state.heads.is_deleted():
            self._epoch += _LOST  # how often rows have changed hands is not known any more
        else:
            column = self._state.nodes.columns.index("generation")
            self._epoch = int(np.asarray(self._state.nodes.data)[:, column].max()) + 1
        self._epoch &= MAX_INT32
        self._state, self._shared, self._receipts = states.init(self.config, generation=self._epoch), False, {}
        self._ledgers = {name: SlotLedger(name, self.config.pool_size(name)) for name in self._names}

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

    # -- what callers hand in ------------------------------------------------------------------------------------

    def _donate(self) -> CacheState:
        """The state to be updated in place: a copy, if somebody else holds it."""
        self._current()
        if self._shared:
            self._state, self._shared = jax.tree.map(jnp.copy, self._state), False
        return self._state

    def _current(self) -> CacheState:
        """The state, if there is one."""
        if self._state.heads.is_deleted():
            raise RuntimeError(
                "the cache has lost its state: an update was interrupted, or somebody donated `cache.state` "
                "without assigning the result; assign a state to go on from, or reset()"
            )
        return self._state

    def _batch(
        self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None
    ) -> tuple[int, tuple[np.ndarray, np.ndarray]]:
        """The number of keys; the keys padded to one shape, and (length, namespace) of each."""
        rows = [tokens_of(tokens, self.config.max_key_len) for tokens in sequence("keys", keys)]
        spaces = [None] * len(rows) if namespaces is None else sequence("namespaces", namespaces)
        if len(spaces) != len(rows):
            raise InvalidInput(f"{len(rows)} keys need as many namespaces, got {len(spaces)}")
        ids = [self._namespaces.number(space, new=False) for space in spaces]
        columns = width(max([len(key) for key in rows] + [self.config.page_size]))
        batch = 1 << max(len(rows) - 1, 0).bit_length()
        padded, where = np.full((batch, columns), -1, np.int32), np.zeros((batch, 2), np.int32)
        for i, (key, space) in enumerate(zip(rows, ids, strict=True)):
            padded[i, : len(key)] = key
            where[i] = len(key), space
        return len(rows), (padded, where)

    def _owned(self, name: str) -> None:
        self.config.component(name)
        if self.config.pool_size(name) is None:
            raise InvalidInput(f"the pool of {name!r} is the caller's own: pools[{name!r}] is None")

    def _evicted_len(self, evicted_len: Mapping[str, int]) -> dict[str, int]:
        by_name("evicted_len", evicted_len, self._names)
        lengths = {name: count(f"evicted_len[{name!r}]", evicted_len.get(name, 0)) for name in self._names}
        for component in self.config.components:
            if lengths[component.name] and not component.gives_up:
                raise InvalidInput(f"evicted_len: a request holds its {component.name!r} slots until it ends")
        return lengths

    def _node(self, node: int) -> tuple[int, int]:
        try:
            number = -1 if isinstance(node, bool) else operator.index(node)
        except TypeError:
            number = -1
        if number < 0:
            raise InvalidInput(f"a node is what a match or an insert returned, got {node!r}")
        index, generation = node_parts(number)
        if index >= self.config.max_nodes or generation > MAX_INT32 or (index == states.ROOT and generation):
            raise InvalidInput(f"{node} is not a node of this cache")
        return index, generation if index else self._root_generation()

    def _root_generation(self) -> int:
        return int(np.asarray(self._state.nodes.data)[states.ROOT, self._state.nodes.columns.index("generation")])

    # -- what they get back --------------------------------------------------------------------------------------

    def _match_result(self, numbers: list[int], slots: dict[str, Any]) -> MatchResult:
        index, generation, device_len, full_len, stop = numbers
        held = {
            component.name: np.array(component.matched(np.asarray(slots[component.name]), device_len))
            for component in self.config.components
        }
        node = node_handle(index, generation)
        return MatchResult(device_len, node, held, 0, node, full_len, Stop(stop))

    def _match_results(self, count: int, numbers: jax.Array, slots: dict[str, jax.Array]) -> list[MatchResult]:
        rows = np.asarray(numbers)[:count].tolist()
        arrays = {name: np.asarray(array) for name, array in slots.items()}
        return [self._match_result(row, {n: a[i] for n, a in arrays.items()}) for i, row in enumerate(rows)]

    def _freed(self, name: str, start: int, count: int) -> np.ndarray:
        component = self.config.component(name)
        if not count:
            return np.empty(0, np.int32)
        return np.array(np.asarray(component.pool(self._state.stores[name]))[start : start + count])
