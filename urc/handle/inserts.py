"""Calls that put keys into the tree."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from urc import compiled
from urc.arguments import (
    MAX_INT32,
    Namespace,
    Tokens,
    by_name,
    count,
    counts,
    integers,
    rows_of,
    tokens_of,
    width,
)
from urc.components.base import Component
from urc.errors import CacheFull, InvalidInput, Status
from urc.handle.owner import NO_SLOTS
from urc.handle.tree import TreeCalls
from urc.results import InsertResult, node_handle


class Entry(NamedTuple):
    """An insert to be made: its key, the slots handed over, by component, and numbers as compiled."""

    key: np.ndarray
    handed: dict[str, np.ndarray]  # the last of those given
    numbers: list[int]


class Entries(NamedTuple):
    """Inserts to be made, in order."""

    keys: list[np.ndarray]
    given: dict[str, list[int]]  # how many slots of each component are given
    handed: dict[str, list[np.ndarray]]  # those of them that are handed over, which are the last ones
    numbers: np.ndarray  # i32[n, ..], as compiled


class InsertCalls(TreeCalls):
    """insert, and what goes into one of any kind."""

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
        places = [self._ledgers[name].demand_held(handed) for name, handed in entry.handed.items()]
        padded, *held = self._filled(entry)
        (out,) = self._call(compiled.insert, padded, *held)
        status, prefix_len, index, generation, *each = np.asarray(out).tolist()
        self._buffers.give(padded, *held)
        self._demand_fits(status, entry.key, entry.numbers[2], prefix_len)
        adopted, freed, existed, i = {}, {}, {}, 0
        for name, at in zip(self._names, places, strict=True):
            some = self._freed(name, each[i + 1], each[i + 2])
            adopted[name], freed[name] = self._ledgers[name].settle(entry.handed[name], some, at)
            existed[name] = each[i] > 0
            i += 3
        return InsertResult(prefix_len, node_handle(index, generation), adopted, freed, existed)

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
        """What goes into an insert, checked but for who holds the slots, and that the tokens are >= 0."""
        config = self.config
        key, space = integers("tokens", tokens), self._namespaces.number(namespace)
        length = len(key)
        if length > config.max_key_len:
            tokens_of(key, config.max_key_len)
        whole = length // config.page_size * config.page_size
        prev = count("prev_prefix_len", prev_prefix_len)
        if prev > whole:
            raise InvalidInput(f"prev_prefix_len is {prev}, but the key has {whole} tokens in whole pages")
        by_name("slots", slots, self._names)
        evicted = self._evicted_len(evicted_len)
        numbers = [length, space, prev, count("inserted_len", inserted_len)]
        numbers += [count("priority", priority, -MAX_INT32 - 1), self._namespaces.stamp(space)]
        handed, own = {}, []
        for component in config.components:
            name = component.name
            given = self._given(component, slots, length, whole, component.counts(length, whole))
            handed[name] = mine = component.handed_over(given, prev, evicted[name])
            numbers.append(len(given))
            if component.copies_on_write:
                own.append(int(mine[0]) if len(mine) else -1)
        numbers += [*evicted.values(), *own]
        return Entry(key, handed, numbers)

    def _given(
        self, component: Component, slots: Mapping[str, Any], tokens: int, whole: int, counts: tuple[int, ...]
    ) -> np.ndarray:
        """A component's slots out of those given for a key of so many tokens, `whole` in whole pages."""
        name = component.name
        given = slots.get(name)
        if given is None:
            if component.is_base:
                raise InvalidInput(f"slots lacks {name!r}, which every node holds")
            given = NO_SLOTS
        try:
            given = integers("slots", given)
        except InvalidInput:
            given = integers(f"slots of {name!r}", given)  # raises, with the name, which takes time
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
        for name in names:
            columns.append([end - len(slots) for end, slots in zip(given[name], handed[name], strict=True)])
        return Entries(keys, given, handed, np.array(columns, np.int32).T)

    def _rooms(self, tokens: int) -> tuple[int, ...]:
        """The most slots of each component that go with so many tokens."""
        return tuple(self._form(tokens).rooms.values())

    def _filled(self, entry: Entry) -> list[np.ndarray]:
        """Buffers with a key and the numbers behind it, and with slots of each component that does not copy on write.

        They are of widths that go with the key's, however many slots there are.
        """
        key, all_handed, numbers = entry
        columns, i = self._width(len(key)), 6
        padded = self._buffers.take(columns + len(numbers))
        padded[: len(key)] = key
        padded[columns:] = numbers
        buffers = [padded]
        for name, handed in all_handed.items():
            if name not in self._writers:
                end, row = numbers[i], self._buffers.take(width(self._form(columns).rooms[name]))
                row[end - len(handed) : end] = handed  # no other is looked at
                buffers.append(row)
            i += 1
        return buffers

    def _evicted_len(self, evicted_len: Mapping[str, int]) -> Mapping[str, int]:
        if type(evicted_len) is dict and not evicted_len:
            return self._nothing
        by_name("evicted_len", evicted_len, self._names)
        lengths = {name: count(f"evicted_len[{name!r}]", evicted_len.get(name, 0)) for name in self._names}
        for component in self.config.components:
            if lengths[component.name] and not component.gives_up:
                raise InvalidInput(f"evicted_len: a request holds its {component.name!r} slots until it ends")
        return lengths

    def _demand_fits(self, status: int, key: np.ndarray, prev: int, prefix_len: int) -> None:
        """InvalidInput or CacheFull unless an insert went through."""
        config = self.config
        if status == Status.BAD_PREFIX:
            tokens_of(key, len(key))  # where one is negative, it is that
            raise InvalidInput(
                f"prev_prefix_len is {prev}, but the tree holds only {prefix_len} tokens of this key: "
                "match again and keep the match locked until the insert"
            )
        if status != Status.OK:
            room = f"max_nodes = {config.max_nodes}, arena_tokens = {config.arena_tokens}"
            raise CacheFull(f"{Status(status).name}: the key does not fit ({room}): evict, then insert again")
