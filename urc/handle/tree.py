"""Calls that find, change and protect what is in the tree."""

from collections.abc import Mapping, Sequence

import numpy as np

from urc import compiled
from urc.arguments import (
    Namespace,
    Tokens,
    batch_width,
    by_name,
    count,
    demand_tokens,
    integers,
    rows_of,
    sequence,
    tokens_of,
    width,
)
from urc.errors import InvalidInput, InvariantError, Status
from urc.handle.owner import Hold, StateOwner
from urc.program import Program
from urc.results import EvictResult, MatchBatch, MatchResult, Receipt, match_result, node_parts


class TreeCalls(StateOwner):
    """match, probe, alloc, free, evict, lock."""

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
        key = integers("tokens", tokens)
        length = len(key)
        if length > self.config.max_key_len:
            tokens_of(key, self.config.max_key_len)
        columns = self._width(length)
        padded = self._buffers.take(columns + 2)
        padded[:length] = key
        padded[-2], padded[-1] = length, self._namespaces.number(namespace, new=False)
        (out,) = self._call(program, padded)
        row = np.asarray(out)
        self._buffers.give(padded)
        numbers = row[: self._matched_fields].tolist()
        if numbers[5] < 0:
            tokens_of(key, length)
        return match_result(self.config, numbers, row, self._form(columns))

    def probes(self, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None = None) -> MatchBatch:
        """`probe` of each key, in one call."""
        return self._matched_all(compiled.probes, keys, namespaces)

    def _matched_all(
        self, program: Program, keys: Sequence[Tokens], namespaces: Sequence[Namespace] | None
    ) -> MatchBatch:
        keys, batch = self._batch(keys, namespaces)
        form = self._form(batch.shape[1] - 3)
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

    def _width(self, length: int) -> int:
        """The length to which a key of so many tokens is padded."""
        return 1 << (max(length, self._least_width) - 1).bit_length()

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
        status, end, *since = self._lock_after_releases(index, generation)
        if status != Status.OK:
            raise InvalidInput(f"node {node} has left the tree: match again")
        return self._locked(node, end, since)

    def release_early(self, receipt: Receipt, name: str) -> None:
        """Gives back, before `unlock`, what the lock took of a component and of those of lower rank.

        For a request whose decoding has moved past the window of `name`; once for each lock and component.
        """
        self._callers(receipt)
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
        """Releases exactly what the lock took and still holds.

        It is carried out with the next lock, or before the next call to which it matters; looking at the cache is one.
        """
        self._release([self._listed(self._callers(receipt))])
        del self._holds[receipt.serial]

    def _callers(self, receipt: Receipt) -> Hold:
        """What a receipt of the caller holds; InvalidInput for one that belongs to a request."""
        hold = self._hold(receipt)
        if hold.request:
            raise InvalidInput("this receipt is a running request's: finish or abort that")
        return hold

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
        if hold is None or (hold.receipt is not receipt and hold.receipt != receipt):
            raise InvalidInput("this receipt is not live here: unlocked before, or of another cache or an undone lock")
        return hold

    def _numbers(self, hold: Hold) -> np.ndarray:
        """A receipt as compiled functions take it."""
        return np.array(self._listed(hold), np.int32)

    def _listed(self, hold: Hold) -> list[int]:
        node, end, _, _ = hold.receipt
        index, generation = node_parts(node)
        return [index, generation if index else self._root_generation(), end, *hold.since]

    def _batch(
        self,
        keys: Sequence[Tokens],
        namespaces: Sequence[Namespace] | None,
        *numbers: int,
        like: Sequence[np.ndarray] = (),
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """The keys; and as compiled functions take many (`compiled._keys`), with `numbers` for each.

        With room for keys `like` these.
        """
        rows = rows_of(sequence("keys", keys), self.config.max_key_len)
        spaces = [None] * len(rows) if namespaces is None else sequence("namespaces", namespaces)
        if len(spaces) != len(rows):
            raise InvalidInput(f"{len(rows)} keys need as many namespaces, got {len(spaces)}")
        batch, columns = self._shape(rows, like)
        each, number = 3 + len(numbers), len(rows)
        padded = self._buffers.take(batch, columns + each)
        flat, lengths = padded.reshape(-1), np.array(list(map(len, rows)), np.int32)
        ends = np.cumsum(lengths)
        if rows:
            tokens = np.concatenate(rows, out=flat[: ends[-1]])
            demand_tokens(tokens, rows)
        beside = flat[batch * columns :].reshape(batch, each)
        beside[:] = 0
        beside[1:number, 0] = ends[:-1]
        if numbers:
            beside[:number, 1:-2] = numbers
        beside[:number, -2] = lengths
        beside[number:, -2] = -1
        if namespaces is not None:
            beside[:number, -1] = [self._namespaces.number(space, new=False) for space in spaces]
        return rows, padded

    def _shape(self, keys: Sequence[np.ndarray], like: Sequence[np.ndarray]) -> tuple[int, int]:
        """(rows, columns) for keys side by side, or for keys `like` these."""
        longest = max([*map(len, keys), *map(len, like), self.config.page_size])
        return batch_width(max(len(keys), len(like))), width(longest)
