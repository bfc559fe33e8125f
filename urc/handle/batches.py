"""Many at once: a scheduling step in one compiled call, and the batched forms of single calls."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from urc import compiled
from urc.arguments import Namespace, Tokens, batch_width, count, demand_tokens, sequence, width
from urc.errors import InvalidInput, Status
from urc.handle.inserts import Entries
from urc.handle.owner import NO_SLOTS, Hold
from urc.handle.requests import RequestCalls
from urc.ledger import REQUEST, TREE
from urc.ops.rows import Layout
from urc.results import CommitBatch, HandedOver, InsertBatch, Receipt, Request, node_parts

_NOTHING = -1
"""A prev_prefix_len that makes an insert be refused: what fills a batch up."""


class Step(NamedTuple):
    """What a scheduling step has done.

    Attributes:
        finished: what each request that finished has put into the tree; None where it did not fit: that one goes on.
            `adopted` is what the tree has of it after the step; what is `freed` a request that began may have by then.
        begun: each request that began; None where there was no room for it.
    """

    finished: CommitBatch
    begun: list[Request | None]


class BatchCalls(RequestCalls):
    """What a scheduler does with all requests of a step together."""

    def step(
        self,
        *,
        finish: Sequence[tuple[Request, Tokens]] = (),
        begin: Sequence[Tokens] = (),
        extend: int = 0,
        namespaces: Sequence[Namespace] | None = None,
        sessions: Sequence[int | None] | None = None,
    ) -> Step:
        """Finishes some requests and begins others, which get slots for all their tokens: one compiled call.

        Requests of streaming sessions do not finish here, as they go on: `commit_finished`.

        Args:
            finish: requests, each with all of its tokens that are computed: see `commit_finished`.
            begin: prompts. All are matched and locked before any takes slots; then, in order, what is short is evicted.
            extend: tokens beyond its prompt for which each request that begins gets slots too.
            namespaces: of the prompts.
            sessions: of the prompts.

        """
        self._demand_owned()
        more, prompts = count("extend", extend), sequence("begin", begin)
        spaces = [None] * len(prompts) if namespaces is None else sequence("namespaces", namespaces)
        sessions = [None] * len(prompts) if sessions is None else sequence("sessions", sessions)
        if len(sessions) != len(prompts):
            raise InvalidInput(f"{len(prompts)} prompts need as many sessions, got {len(sessions)}")
        requests, commits = self._finishing(finish)
        keys = commits.keys  # both halves have one shape, so that there are fewer programs
        rows, beginning = self._batch(prompts, spaces, more, like=keys)
        self._demand_beginning(sessions)
        count("the tokens of a request", max(map(len, rows), default=0) + more, 0, self.config.max_key_len)
        if not requests and not rows:
            return Step(CommitBatch(InsertBatch(np.empty((0, 4), np.int32), {})), [])
        columns = beginning.shape[1] - 4
        room = columns + (width(more) if more else 0)
        numbers, done, held = self._stacked(commits, like=rows)
        before = self._used()
        finished, begun = map(np.asarray, self._call(compiled.step, numbers, done, beginning, *held, width=room))
        self._buffers.give(beginning, done, *held)
        finished, begun, form = finished[: len(requests)], begun[: len(rows)], self._form(room)

        # Who holds which slot now: first what was handed over, then what is free, then what requests have taken.
        fits = (finished[:, 0] == Status.OK).tolist()
        handed = {
            name: [slots if fit else NO_SLOTS for slots, fit in zip(all_slots, fits, strict=True)]
            for name, all_slots in commits.handed.items()
        }
        together = {name: _together(slots) for name, slots in handed.items()}
        for name, ledger in self._ledgers.items():
            ledger.take(together[name], TREE)
        ends, fields = [len(row) + more for row in rows], begun[:, : self._begun_fields].tolist()
        mine = self._taken(fields, begun, form, ends)
        self._note_free(before, {name: len(rows) + len(slots) for name, slots in mine.items()})
        for name, ledger in self._ledgers.items():
            ledger.take(mine[name], REQUEST)
        begins = [
            self._begun(*each)
            for each in zip(fields, begun, [form] * len(rows), rows, spaces, sessions, ends, strict=True)
        ]
        for request, fit in zip(requests, fits, strict=True):
            if fit:
                self._over(request)
        shares = {name: self._shares(name, slots, together[name]) for name, slots in handed.items()}
        return Step(CommitBatch(InsertBatch(finished, shares)), begins)

    def insert_all(
        self,
        keys: Sequence[Tokens],
        slots: Sequence[Mapping[str, Sequence[int] | np.ndarray]],
        *,
        namespaces: Sequence[Namespace] | None = None,
        prev_prefix_lens: Sequence[int] | None = None,
        inserted_lens: Sequence[int] | None = None,
        evicted_lens: Sequence[Mapping[str, int]] | None = None,
        priorities: Sequence[int] | None = None,
    ) -> InsertBatch:
        """`insert` of each key in order, in one call. The pools must be the cache's own.

        None for a key that does not fit, or of which the tree does not hold the prefix said: its slots stay the
        caller's.
        """
        self._demand_owned()
        tokens, handed_in = sequence("keys", keys), sequence("slots", slots)
        columns = [
            sequence(what, [default] * len(tokens) if given is None else given)
            for what, given, default in (
                ("namespaces", namespaces, None),
                ("prev_prefix_lens", prev_prefix_lens, 0),
                ("inserted_lens", inserted_lens, 0),
                ("evicted_lens", evicted_lens, {}),
                ("priorities", priorities, 0),
            )
        ]
        if any(len(column) != len(tokens) for column in (handed_in, *columns)):
            raise InvalidInput(f"{len(tokens)} keys need as many of everything else")
        entries = self._entries(tokens, handed_in, *columns)
        together = {name: _together(slots) for name, slots in entries.handed.items()}
        for name, slots_of in together.items():
            self._ledgers[name].demand_held(slots_of)
        if not tokens:
            return InsertBatch(np.empty((0, 4), np.int32), {})
        # Of the prefix that the tree is said to hold, the program finds out.
        new = [key[prev:] for key, prev in zip(entries.keys, entries.numbers[:, 2].tolist(), strict=True)]
        demand_tokens(np.concatenate(new), entries.keys)
        numbers, padded, held = self._stacked(entries)
        (out,) = self._call(compiled.inserts, numbers, padded, *held)
        rows = np.asarray(out)[: len(tokens)]
        self._buffers.give(padded, *held)
        fits = rows[:, 0] == Status.OK
        frees = np.any(rows[:, 6::3])
        if fits.all() and not frees:
            for name, ledger in self._ledgers.items():
                ledger.take(together[name], TREE)
            shares = {name: self._shares(name, slots, together[name]) for name, slots in entries.handed.items()}
            return InsertBatch(rows, shares)
        settled: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._names}
        for i, (fit, row) in enumerate(zip(fits.tolist(), rows.tolist(), strict=True)):
            for j, name in enumerate(self._names):
                freed = self._freed(name, *row[5 + 3 * j : 7 + 3 * j])
                share = self._ledgers[name].settle(entries.handed[name][i], freed) if fit else (NO_SLOTS, NO_SLOTS)
                settled[name].append(share)
        return InsertBatch(rows, {name: shares.__getitem__ for name, shares in settled.items()})

    def lock_all(self, nodes: Sequence[int]) -> list[Receipt]:
        """`lock` of each node in order, in one call. If one has left the tree, none is locked."""
        nodes = sequence("nodes", nodes)
        if not nodes:
            return []
        padded = np.zeros((batch_width(len(nodes)), 2), np.int32)
        padded[: len(nodes)] = self._all_nodes(nodes)
        releases = self._buffers.take(self._releases_size)
        self._releases(releases)
        (out,) = self._call(compiled.locks, padded, releases)
        self._released = []
        rows = np.asarray(out)[: len(nodes)]
        self._buffers.give(releases)
        self._demand_released(int(rows[0, -1]))
        locked = (rows[:, 0] == Status.OK).tolist()
        ends, sinces = rows[:, 1].tolist(), map(tuple, rows[:, 2:-1].tolist())
        serials = list(itertools.islice(self._serials, len(nodes)))
        receipts = _all_of(Receipt, nodes, ends, serials, itertools.repeat(self._id))
        holds = _all_of(Hold, receipts, sinces, itertools.repeat(frozenset()), itertools.repeat(False))
        self._holds.update(zip(serials, holds, strict=True))
        if not all(locked):
            for serial in itertools.compress(serials, [not one for one in locked]):
                del self._holds[serial]
            self.unlock_all(list(itertools.compress(receipts, locked)))
            raise InvalidInput(f"node {nodes[locked.index(False)]} has left the tree: match again")
        return receipts

    def unlock_all(self, receipts: Sequence[Receipt]) -> None:
        """`unlock` of each receipt."""
        given = sequence("receipts", receipts)
        holds = [self._callers(receipt) for receipt in given]
        serials = [receipt.serial for receipt in given]
        if len(set(serials)) < len(given):
            raise InvalidInput("a receipt is given twice")
        self._release(list(map(self._listed, holds)))
        for serial in serials:
            del self._holds[serial]

    # -- within --------------------------------------------------------------------------------------------------

    def _finishing(self, finish: Any) -> tuple[list[Request], Entries]:
        """The requests that finish, and their commits to be made."""
        pairs = sequence("finish", finish)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidInput(f"finish takes pairs of a Request and its tokens, got {pair!r}")
            self._running(pair[0])
        requests = [request for request, _ in pairs]
        self._demand_own(requests)
        if len(set(map(id, requests))) < len(requests):
            raise InvalidInput("a request is to finish twice")
        keys, numbers, page, root = [], [], self.config.page_size, self._node(0)
        given: dict[str, list[int]] = {name: [] for name in self._names}
        handed: dict[str, list[np.ndarray]] = {name: [] for name in self._names}
        kinds = [(c.name, c, c.copies_on_write) for c in self.config.components]
        for request, tokens in pairs:
            key = self._computed(request, tokens)
            session, space = request.session, self._namespaces.number(request.namespace)
            if session is not None and session in self._streaming:
                raise InvalidInput("a request of a streaming session goes on: commit_finished")
            keys.append(key)
            ends, evicted, firsts = [], [], []
            for name, component, copied in kinds:
                row, gone = request.slots[name], request.given_up.get(name, 0)
                end = len(row)
                if not copied:
                    row = component.handed_over(row, request.committed, gone)
                given[name].append(end)
                handed[name].append(row)
                ends.append(end)
                evicted.append(gone)
                firsts.append(end - len(row))
            receipt = request.receipt
            numbers.append(
                [
                    *(len(key), space, request.committed, request.inserted, 0, self._namespaces.stamp(space)),
                    *ends,
                    *evicted,
                    *(node_parts(receipt.node) if receipt.node else root),
                    receipt.end,
                    *self._holds[receipt.serial].since,
                    *((-1, 0) if session is None else self._session(session)),
                    len(key) % page == 0,
                    *firsts,
                ]
            )
        width_of_all = 6 + 2 * len(self._names) + 3 + len(self._names) + 3 + len(self._names)
        return requests, Entries(keys, given, handed, np.array(numbers, np.int32).reshape(len(keys), width_of_all))

    def _stacked(
        self, entries: Entries, like: Sequence[np.ndarray] = ()
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Inserts as rows: numbers, keys, slots. With room for keys `like` these."""
        rows, columns = self._shape(entries.keys, like)
        numbers = np.zeros((rows, entries.numbers.shape[1]), np.int32)
        numbers[:, 2] = _NOTHING
        numbers[: len(entries.keys)] = entries.numbers
        keys, held = self._buffers.take(rows, columns), []
        for row, key in zip(keys, entries.keys, strict=False):
            row[: len(key)] = key
        for name, room in zip(self._names, self._rooms(columns), strict=True):
            ends = entries.given[name]
            slots = self._buffers.take(rows, width(max(room, *ends, 0)))
            for row, handed, end in zip(slots, entries.handed[name], ends, strict=False):
                row[end - len(handed) : end] = handed  # no other is looked at
            held.append(slots)
        return numbers, keys, held

    def _shares(
        self, name: str, each: Sequence[np.ndarray], together: np.ndarray
    ) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        """Who asks later which slots the tree has now of what each has handed over, which is all `together`."""
        ends = list(itertools.accumulate(map(len, each)))
        return HandedOver(together, ends, self._ledgers[name].in_tree(together)).adopted_and_freed

    def _note_free(self, before: Mapping[str, int], taken: Mapping[str, int]) -> None:
        """Notes what is free after a call that may have `taken` so many slots of each component in between."""
        after = self._used()
        for name in self._names:
            top = min(before[name] + taken[name], self.config.pool_room(name))
            self._ledgers[name].give(self._pool(name)[after[name] : top])

    def _taken(
        self, fields: Sequence[Sequence[int]], rows: np.ndarray, form: Layout, ends: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Per component the slots that requests have taken beyond what each has matched, up to `ends` (tokens)."""
        taken = {}
        for component in self.config.components:
            name, place, parts = component.name, form.places[component.name], []
            if not component.copies_on_write:
                for numbers, row, end in zip(fields, rows, ends, strict=True):
                    if numbers[0] == Status.OK:
                        first, last = component.needed(0, numbers[3]), component.needed(0, end)
                        parts.append(row[place + first : place + last])
            taken[name] = _together(parts)
        return taken


def _together(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Slots of many, one after the other, in an array of their own."""
    return np.concatenate(parts) if parts else NO_SLOTS


def _all_of(kind: type, *columns: Iterable[Any]) -> list[Any]:
    """The NamedTuples of one kind that have these fields, without a Python call for each."""
    return list(map(tuple.__new__, itertools.repeat(kind), zip(*columns, strict=False)))
