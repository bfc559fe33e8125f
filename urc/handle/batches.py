"""Many at once: a scheduling step in one compiled call, and the batched forms of single calls."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from urc import compiled
from urc.arguments import Namespace, Tokens, batch_width, count, sequence, width
from urc.errors import InvalidInput, InvariantError, Status
from urc.handle.requests import RequestCalls
from urc.handle.tree import Entry
from urc.ledger import REQUEST, TREE
from urc.results import CommitResult, InsertResult, Receipt, Request, node_handle

_NO_SLOTS = np.empty(0, np.int32)

_NOTHING = -1
"""A prev_prefix_len that makes an insert be refused: what fills a batch up."""


class Step(NamedTuple):
    """What a scheduling step has done.

    Attributes:
        finished: what each request that finished has put into the tree; None where it did not fit: that one goes on.
            `adopted` is what the tree has of it after the step; what is `freed` a request that began may have by then.
        begun: each request that began; None where there was no room for it.
    """

    finished: list[CommitResult | None]
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
        commits = self._finishing(finish)
        keys = [entry.key for _, entry in commits]  # both halves have one shape, so that there are fewer programs
        rows, beginning = self._batch(prompts, spaces, more, like=keys)
        self._demand_beginning(sessions)
        count("the tokens of a request", max(map(len, rows), default=0) + more, 0, self.config.max_key_len)
        if not commits and not rows:
            return Step([], [])
        beginning[len(rows) :, -2] = -1
        room = width(beginning.shape[1] - 3 + more)
        numbers, done, held = self._stacked([entry for _, entry in commits], 3 + len(self._names) + 3, like=rows)
        before = self._used()
        out = self._call(compiled.step, numbers, done, beginning, *held, width=room)
        finished, *out = (np.asarray(array) for array in out)
        self._buffers.give(beginning, done, *held)
        slots, fields, taken = out[: len(self._names)], out[len(self._names)], out[len(self._names) + 1 :]

        # Who holds which slot now: first what was handed over, then what is free, then what requests have taken.
        commits_done, begins_done = finished[: len(commits)].tolist(), fields[: len(rows)].tolist()
        went_through = [row[0] == Status.OK for row in commits_done]
        own = [
            self._taken(numbers, len(row) + more, [each[i] for each in taken])
            for i, (numbers, row) in enumerate(zip(begins_done, rows, strict=True))
        ]
        handed = self._together(entry.handed for (_, entry), went in zip(commits, went_through, strict=True) if went)
        mine = self._together(own)
        for name, ledger in self._ledgers.items():
            ledger.take(handed[name], TREE)
        self._note_free(before, {name: len(rows) + len(slots) for name, slots in mine.items()})
        for name, ledger in self._ledgers.items():
            ledger.take(mine[name], REQUEST)
        begun = []
        for i, numbers in enumerate(begins_done):
            each = [array[i] for array in slots]
            request = self._begun(numbers, each, rows[i], spaces[i], sessions[i], own[i])
            if request is not None:
                request.length = len(rows[i]) + more
            begun.append(request)
        kept = {name: self._ledgers[name].all_kept(slots) for name, slots in handed.items()}
        results: list[CommitResult | None] = []
        for (request, entry), row, went in zip(commits, commits_done, went_through, strict=True):
            results.append(self._committed(request, entry, row, None, None, kept) if went else None)
        return Step(results, begun)

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
    ) -> list[InsertResult | None]:
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
        entries = [self._entry(*each) for each in zip(tokens, handed_in, *columns, strict=True)]
        for name, handed in self._together(entry.handed for entry in entries).items():
            self._ledgers[name].demand_held(handed)
        if not entries:
            return []
        numbers, padded, held = self._stacked(entries, 0)
        (out,) = self._call(compiled.inserts, numbers, padded, *held)
        rows = np.asarray(out).tolist()
        self._buffers.give(padded, *held)
        results: list[InsertResult | None] = []
        for entry, (status, prefix_len, index, generation, *each) in zip(entries, rows, strict=False):
            went = status == Status.OK
            node = node_handle(index, generation)
            results.append(self._insert_result(entry.handed, prefix_len, node, each) if went else None)
        return results

    def lock_all(self, nodes: Sequence[int]) -> list[Receipt]:
        """`lock` of each node in order, in one call. If one has left the tree, none is locked."""
        nodes = sequence("nodes", nodes)
        parts = [self._node(node) for node in nodes]
        if not parts:
            return []
        padded = np.zeros((batch_width(len(parts)), 2), np.int32)
        padded[: len(parts)] = parts
        (out,) = self._call(compiled.locks, padded)
        rows = np.asarray(out)[: len(parts)].tolist()
        receipts = [
            self._locked(node, end, since) if status == Status.OK else None
            for node, (status, end, *since) in zip(nodes, rows, strict=True)
        ]
        live = [receipt for receipt in receipts if receipt is not None]
        if len(live) < len(receipts):
            self.unlock_all(live)
            raise InvalidInput(f"node {nodes[receipts.index(None)]} has left the tree: match again")
        return live

    def unlock_all(self, receipts: Sequence[Receipt]) -> None:
        """`unlock` of each receipt, in one call."""
        given = sequence("receipts", receipts)
        for receipt in given:
            self._demand_callers(receipt)
        if len({receipt.serial for receipt in given}) < len(given):
            raise InvalidInput("a receipt is given twice")
        if not given:
            return
        padded = np.zeros((batch_width(len(given)), 3 + len(self._names)), np.int32)
        padded[len(given) :, 0] = -1
        padded[: len(given)] = [self._numbers(self._hold(receipt)) for receipt in given]
        (status,) = self._call(compiled.unlocks, padded)
        if any(code != Status.OK for code in np.asarray(status)[: len(given)].tolist()):
            raise InvariantError("a live receipt could not be released")
        for receipt in given:
            del self._holds[receipt.serial]

    # -- within --------------------------------------------------------------------------------------------------

    def _finishing(self, finish: Any) -> list[tuple[Request, Entry]]:
        """Each request that finishes, and its commit to be made."""
        commits, seen = [], set()
        pairs = sequence("finish", finish)
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidInput(f"finish takes pairs of a Request and its tokens, got {pair!r}")
            self._running(pair[0])
        self._demand_own([request for request, _ in pairs])
        for request, tokens in pairs:
            entry = self._committing(request, tokens, finished=True)
            if request.session in self._streaming:
                raise InvalidInput("a request of a streaming session goes on: commit_finished")
            if id(request) in seen:
                raise InvalidInput("a request is to finish twice")
            seen.add(id(request))
            session = (-1, 0) if request.session is None else self._session(request.session)
            *numbers, leaves = entry.numbers
            commits.append((request, entry._replace(numbers=[*numbers, *session, leaves])))
        return commits

    def _stacked(
        self, entries: Sequence[Entry], more: int, like: Sequence[np.ndarray] = ()
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Inserts as rows: numbers (`more` beyond an insert's), keys, slots. With room for keys `like` these."""
        rows, columns = self._shape([entry.key for entry in entries], like)
        numbers = np.zeros((rows, 6 + 2 * len(self._names) + more), np.int32)
        numbers[:, 2] = _NOTHING
        numbers[: len(entries)] = [entry.numbers for entry in entries] or 0
        keys, held = self._buffers.take(rows, columns), []
        for row, entry in zip(keys, entries, strict=False):
            row[: len(entry.key)] = entry.key
        for name, room in zip(self._names, self._rooms(columns), strict=True):
            most = max(room, *(len(entry.given[name]) for entry in entries), 0)
            held.append(self._buffers.take(rows, width(most)))
            for row, entry in zip(held[-1], entries, strict=False):
                entry.put(name, row)
        return numbers, keys, held

    def _together(self, each: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Slots of many, by component, one after the other."""
        together: dict[str, list[np.ndarray]] = {name: [] for name in self._names}
        for slots in each:
            for name, mine in slots.items():
                together[name].append(mine)
        return {name: np.concatenate(parts) if parts else _NO_SLOTS for name, parts in together.items()}

    def _note_free(self, before: Mapping[str, int], taken: Mapping[str, int]) -> None:
        """Notes what is free after a call that may have `taken` so many slots of each component in between."""
        after = self._used()
        for name in self._names:
            top = min(before[name] + taken[name], self.config.pool_room(name))
            self._ledgers[name].give(self._pool(name)[after[name] : top])

    def _taken(self, numbers: Sequence[int], end: int, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Of slots taken for a request up to `end`, by component, its share: beyond what it has matched."""
        status, _, _, matched, *_ = numbers
        rest, taken = iter(rows), {}
        for component in self.config.components:
            if not component.copies_on_write and status == Status.OK:
                taken[component.name] = next(rest)[: component.needed(matched, end)]
        return taken
