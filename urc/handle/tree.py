"""Calls that find, change and protect what is in the tree."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from urc import compiled
from urc.arguments import (
    MAX_INT32,
    Namespace,
    Tokens,
    batch_width,
    by_name,
    count,
    counts,
    demand_tokens,
    integers,
    rows_of,
    sequence,
    tokens_of,
    width,
)
from urc.components.base import Component
from urc.errors import CacheFull, InvalidInput, InvariantError, Status
from urc.handle.owner import Hold, StateOwner
from urc.program import Program
from urc.results import EvictResult, InsertResult, MatchBatch, MatchResult, Receipt, match_result, node_handle


class Entry(NamedTuple):
    """An insert to be made: its key, slots given and of these handed over, by component, and numbers as compiled."""

    key: np.ndarray
    given: dict[str, np.ndarray]
    handed: dict[str, np.ndarray]
    numbers: list[int]


class Entries(NamedTuple):
    """Inserts to be made, in order."""

    keys: list[np.ndarray]
    given: dict[str, list[int]]  # how many slots of each component are given
    handed: dict[str, list[np.ndarray]]  # those of them that are handed over, which are the last ones
    numbers: np.ndarray  # i32[n, ..], as compiled


class TreeCalls(StateOwner):
    """match, probe, alloc, free, insert, evict, lock."""

    def match_prefix(self, tokens: Tokens, namespace: Namespace = None) -> MatchResult:
        """The longest cached prefix of `tokens` from which a request can resume; marks it as used.

        `slots[name]` are those that such a request reads, i32, in order: see `MatchResult`.
        """
        return self._matched(compiled.match_prefix, tokens, namespace)

    def match_prefixes(self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None = None) -> MatchBatch:
        """`match_prefix` of each key in order, in one call."""
        return self._matched_all(compiled.match_prefixes, keys, namespaces)

    def probe(self, tokens: Tokens, namespace: Namespace = None) -> MatchResult:
        """`match_prefix` without any side effect; `node` is the one in which the prefix ends."""
        return self._matched(compiled.probe, tokens, namespace)

    def _matched(self, program: Program, tokens: Tokens, namespace: Namespace) -> MatchResult:
        key = tokens_of(tokens, self.config.max_key_len)
        length = len(key)
        columns = self._width(length)
        padded = self._buffers.take(columns + 2)
        padded[:length] = key
        padded[-2], padded[-1] = length, self._namespaces.number(namespace, new=False)
        (out,) = self._call(program, padded)
        row = np.asarray(out)
        self._buffers.give(padded)
        return match_result(self.config, row[: self._matched_fields].tolist(), row, self._form(columns))

    def probes(self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None = None) -> MatchBatch:
        """`probe` of each key, in one call."""
        return self._matched_all(compiled.probes, keys, namespaces)

    def _matched_all(
        self, program: Program, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None
    ) -> MatchBatch:
        keys, batch = self._batch(keys, namespaces)
        form = self._form(batch.shape[1] - 2)
        if not keys:
            return MatchBatch(self.config, np.empty((0, form.size), np.int32), form)
        (out,) = self._call(program, batch)
        rows = np.asarray(out)[: len(keys)]
        self._buffers.give(batch)
        return MatchBatch(self.config, rows, form)

    def alloc(self, name: str, n: int) -> np.ndarray | None:
        """`n` free slots of a component's pool (i32[n]) for the caller to hold, or None if fewer are free."""
        self._owned(name)
        wanted = count("n", n)
        if wanted > self.config.pool_room(name):
            return None
        (out,) = self._call(compiled.alloc, np.int32(wanted), name=name, width=width(wanted))
        row = np.asarray(out)
        if row[0] != Status.OK:
            return None
        taken = row[1 : 1 + wanted].copy()
        self._ledgers[name].take(taken)
        return taken

    def free(self, name: str, slots: Sequence[int] | np.ndarray) -> None:
        """Gives slots back that the caller holds."""
        self._owned(name)
        held = integers(f"slots of {name!r}", slots)
        self._ledgers[name].demand_held(held)
        padded = np.full(width(len(held)), -1, np.int32)
        padded[: len(held)] = held
        self._call(compiled.free, padded, np.int32(len(held)), name=name)
        self._ledgers[name].give(held)

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
        entry = self._entry(tokens, slots, namespace, prev_prefix_len, inserted_len, evicted_len or {}, priority)
        for name, handed in entry.handed.items():
            self._ledgers[name].demand_held(handed)
        padded, *held = self._filled(entry)
        (out,) = self._call(compiled.insert, np.array(entry.numbers, np.int32), padded, *held)
        status, prefix_len, index, generation, *each = np.asarray(out).tolist()
        self._buffers.give(padded, *held)
        self._demand_fits(status, entry.numbers[2], prefix_len)
        return self._insert_result(entry.handed, prefix_len, node_handle(index, generation), each)

    def _entry(
        self,
        tokens: Tokens,
        slots: Mapping[str, Sequence[int] | np.ndarray],
        namespace: Namespace,
        prev_prefix_len: int,
        inserted_len: int,
        evicted_len: Mapping[str, int],
        priority: int,
    ) -> Entry:
        """What goes into an insert, checked but for who holds the slots."""
        config = self.config
        key, space = tokens_of(tokens, config.max_key_len), self._namespaces.number(namespace)
        whole = len(key) // config.page_size * config.page_size
        prev = count("prev_prefix_len", prev_prefix_len)
        if prev > whole:
            raise InvalidInput(f"prev_prefix_len is {prev}, but the key has {whole} tokens in whole pages")
        by_name("slots", slots, self._names)
        evicted = self._evicted_len(evicted_len)
        options = [prev, count("inserted_len", inserted_len), count("priority", priority, -MAX_INT32 - 1)]
        given, handed = {}, {}
        for component in config.components:
            name = component.name
            given[name] = self._given(component, slots, len(key), whole, component.counts(len(key), whole))
            handed[name] = component.handed_over(given[name], prev, evicted[name])
        lengths = [*(len(given[n]) for n in self._names), *(evicted[n] for n in self._names)]
        return Entry(key, given, handed, [len(key), space, *options, self._namespaces.stamp(space), *lengths])

    def _given(
        self, component: Component, slots: Mapping[str, Any], tokens: int, whole: int, counts: tuple[int, ...]
    ) -> np.ndarray:
        """A component's slots out of those given for a key of so many tokens, `whole` in whole pages."""
        name = component.name
        if component.is_base and name not in slots:
            raise InvalidInput(f"slots lacks {name!r}, which every node holds")
        given = integers(f"slots of {name!r}", slots.get(name, ()))
        if len(given) not in counts:
            raise InvalidInput(
                f"slots[{name!r}] has {len(given)} entries for a key of {tokens} tokens, {whole} of them "
                f"in whole pages: it takes {' or '.join(map(str, sorted(set(counts))))}"
            )
        return given

    def _entries(
        self,
        tokens: list[Tokens],
        slots: list[Mapping[str, Sequence[int] | np.ndarray]],
        namespaces: list[Namespace],
        prev_prefix_lens: list[int],
        inserted_lens: list[int],
        evicted_lens: list[Mapping[str, int]],
        priorities: list[int],
    ) -> Entries:
        """`_entry` of each, but that the tokens are >= 0."""
        config, page, names = self.config, self.config.page_size, self._names
        keys = rows_of(tokens, config.max_key_len)
        lengths = list(map(len, keys))
        wholes = [length // page * page for length in lengths]
        prevs = counts("prev_prefix_len", prev_prefix_lens)
        for prev, whole in zip(prevs, wholes, strict=True):
            if prev > whole:
                raise InvalidInput(f"prev_prefix_len is {prev}, but the key has {whole} tokens in whole pages")
        for each in slots:
            by_name("slots", each, names)
        evicted = list(map(self._evicted_len, evicted_lens))
        inserted = counts("inserted_len", inserted_lens)
        priorities = counts("priority", priorities, -MAX_INT32 - 1)
        spaces = [self._namespaces.number(namespace) for namespace in namespaces]
        given, handed, columns = {}, {}, [lengths, spaces, prevs, inserted, priorities]
        columns.append([self._namespaces.stamp(space) for space in spaces])
        for component in config.components:
            name, takes = component.name, functools.cache(component.counts)
            arrays = [
                self._given(component, each, length, whole, takes(length, whole))
                for each, length, whole in zip(slots, lengths, wholes, strict=True)
            ]
            given[name] = list(map(len, arrays))
            handed[name] = [
                component.handed_over(array, prev, each[name])
                for array, prev, each in zip(arrays, prevs, evicted, strict=True)
            ]
            columns.append(given[name])
        columns += [[each[name] for each in evicted] for name in names]
        return Entries(keys, given, handed, np.array(columns, np.int32).T)

    def _width(self, length: int) -> int:
        """The length to which a key of so many tokens is padded."""
        return width(max(length, self.config.page_size))

    def _rooms(self, tokens: int) -> tuple[int, ...]:
        """The most slots of each component that go with so many tokens."""
        return tuple(self._form(tokens).rooms.values())

    def _filled(self, entry: Entry) -> list[np.ndarray]:
        """Buffers with a key, and slots of each component: of widths that go with the key's, however many there are."""
        key = entry.key
        padded = self._buffers.take(self._width(len(key)))
        padded[: len(key)] = key
        buffers = [padded]
        for name, most in zip(self._names, self._rooms(len(padded)), strict=True):
            handed, end = entry.handed[name], len(entry.given[name])
            row = self._buffers.take(width(max(end, most)))
            row[end - len(handed) : end] = handed  # no other is looked at
            buffers.append(row)
        return buffers

    def evict(self, targets: Mapping[str, int]) -> EvictResult:
        """Frees at least `targets[name]` slots per component, the least valuable first, as far as nothing is locked.

        Leaves go whole, so it may be more; the result says how far it got.
        """
        by_name("targets", targets, self._names)
        wanted = [count(f"targets[{name!r}]", targets.get(name, 0)) for name in self._names]
        (out,) = self._call(compiled.evict, np.array(wanted, np.int32))
        runs = np.asarray(out).tolist()
        freed = {name: self._freed(name, runs[2 * j], runs[2 * j + 1]) for j, name in enumerate(self._names)}
        for name, slots in freed.items():
            self._ledgers[name].give(slots)
        return EvictResult({name: len(slots) for name, slots in freed.items()}, freed)

    def lock(self, node: int) -> Receipt:
        """Protects what a request reads that resumes at `node`, until `unlock` of the receipt."""
        index, generation = self._node(node)
        (out,) = self._call(compiled.lock, np.array([index, generation], np.int32))
        status, end, *since = np.asarray(out).tolist()
        if status != Status.OK:
            raise InvalidInput(f"node {node} has left the tree: match again")
        return self._locked(node, end, since)

    def release_early(self, receipt: Receipt, name: str) -> None:
        """Gives back, before `unlock`, what the lock took of a component and of those of lower rank.

        For a request whose decoding has moved past the window of `name`; once for each lock and component.
        """
        self._demand_callers(receipt)
        self._release_early(receipt, name)

    def _release_early(self, receipt: Receipt, name: str) -> None:
        hold, component = self._hold(receipt), self.config.component(name)
        if component.is_base:
            raise InvalidInput(f"a request reads {name!r} until it ends: unlock it then")
        if name in hold.early:
            raise InvalidInput(f"{name!r} of this receipt was given back before")
        since = hold.since
        if receipt.end:  # at the root nothing is held
            (out,) = self._call(compiled.release_early, self._numbers(hold), name=name)
            status, _, *since = np.asarray(out).tolist()
            if status != Status.OK:
                raise InvariantError(f"a live receipt could not be released: {Status(status).name}")
        lower = {c.name for c in self.config.components if not c.is_base and c.rank <= component.rank}
        self._holds[receipt.serial] = hold._replace(since=tuple(since), early=hold.early | lower)

    def unlock(self, receipt: Receipt) -> None:
        """Releases exactly what the lock took and still holds."""
        self._demand_callers(receipt)
        (status,) = self._call(compiled.unlock, self._numbers(self._hold(receipt)))
        if (code := int(np.asarray(status))) != Status.OK:
            raise InvariantError(f"a live receipt could not be released: {Status(code).name}")
        del self._holds[receipt.serial]

    def _demand_callers(self, receipt: Receipt) -> None:
        """InvalidInput for a receipt that belongs to a request."""
        if self._hold(receipt).request:
            raise InvalidInput("this receipt is a running request's: finish or abort that")

    def _locked(self, node: int, end: int, since: Sequence[int], *, request: bool = False) -> Receipt:
        """The receipt of a lock just made."""
        receipt = Receipt(node, end, next(self._serials), self._id)
        self._holds[receipt.serial] = Hold(receipt, tuple(since), request=request)
        return receipt

    def _hold(self, receipt: Receipt) -> Hold:
        """What a receipt holds; InvalidInput unless it is live."""
        if not isinstance(receipt, Receipt) or not isinstance(receipt.serial, int):
            raise InvalidInput(f"this takes the Receipt that lock returned, got {type(receipt).__name__}")
        hold = self._holds.get(receipt.serial)
        if hold is None or hold.receipt != receipt:
            raise InvalidInput("this receipt is not live here: unlocked before, or of another cache or an undone lock")
        return hold

    def _numbers(self, hold: Hold) -> np.ndarray:
        """A receipt as compiled functions take it."""
        return np.array([*self._node(hold.receipt.node), hold.receipt.end, *hold.since], np.int32)

    def _batch(
        self,
        keys: Sequence[Tokens],
        namespaces: Sequence[Namespace] | None,
        *numbers: int,
        like: Sequence[np.ndarray] = (),
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """The keys; and as rows of a buffer, padded, each with (numbers.., length, namespace) at its end.

        With room for keys `like` these.
        """
        rows = rows_of(sequence("keys", keys), self.config.max_key_len)
        spaces = [None] * len(rows) if namespaces is None else sequence("namespaces", namespaces)
        if len(spaces) != len(rows):
            raise InvalidInput(f"{len(rows)} keys need as many namespaces, got {len(spaces)}")
        batch, columns = self._shape(rows, like)
        padded = self._buffers.take(batch, columns + len(numbers) + 2)
        for row, key in zip(padded, rows, strict=False):
            row[: len(key)] = key
        demand_tokens(padded[: len(rows), : max(map(len, rows), default=0)], rows)
        padded[:, columns:] = 0
        if numbers:
            padded[: len(rows), columns:-2] = numbers
        padded[: len(rows), -2] = list(map(len, rows))
        if namespaces is not None:
            padded[: len(rows), -1] = [self._namespaces.number(space, new=False) for space in spaces]
        return rows, padded

    def _shape(self, keys: Sequence[np.ndarray], like: Sequence[np.ndarray]) -> tuple[int, int]:
        """(rows, columns) for keys side by side, or for keys `like` these."""
        longest = max([*map(len, keys), *map(len, like), self.config.page_size])
        return batch_width(max(len(keys), len(like))), width(longest)

    def _evicted_len(self, evicted_len: Mapping[str, int]) -> Mapping[str, int]:
        if type(evicted_len) is dict and not evicted_len:
            return self._nothing
        by_name("evicted_len", evicted_len, self._names)
        lengths = {name: count(f"evicted_len[{name!r}]", evicted_len.get(name, 0)) for name in self._names}
        for component in self.config.components:
            if lengths[component.name] and not component.gives_up:
                raise InvalidInput(f"evicted_len: a request holds its {component.name!r} slots until it ends")
        return lengths

    def _demand_fits(self, status: int, prev: int, prefix_len: int) -> None:
        """InvalidInput or CacheFull unless an insert went through."""
        config = self.config
        if status == Status.BAD_PREFIX:
            raise InvalidInput(
                f"prev_prefix_len is {prev}, but the tree holds only {prefix_len} tokens of this key: "
                "match again and keep the match locked until the insert"
            )
        if status != Status.OK:
            room = f"max_nodes = {config.max_nodes}, arena_tokens = {config.arena_tokens}"
            raise CacheFull(f"{Status(status).name}: the key does not fit ({room}): evict, then insert again")

    def _insert_result(
        self, handed: dict[str, np.ndarray], prefix_len: int, node: int, each: Sequence[int]
    ) -> InsertResult:
        """`each`: per component, whether the end node had its value, and what was freed as a run of the pool."""
        adopted, freed, existed = {}, {}, {}
        for j, name in enumerate(self._names):
            had, *run = each[3 * j : 3 * j + 3]
            adopted[name], freed[name] = self._ledgers[name].settle(handed[name], self._freed(name, *run))
            existed[name] = bool(had)
        return InsertResult(prefix_len, node, adopted, freed, existed)
