"""A request's life: begin, extend, commit, abort. Each leaves the ledger closed, and is one compiled call.

But for `slide`, which is none to two, and a commit within a session, which moves the session as well.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from urc import compiled
from urc.arguments import Namespace, Tokens, count, integers, sequence, tokens_of, width
from urc.errors import CacheFull, InvalidInput, InvariantError, Status
from urc.handle.inserts import Entry
from urc.handle.sessions import SessionCalls
from urc.ledger import REQUEST, TREE
from urc.ops.rows import Layout, by_component
from urc.results import CommitResult, Request, match_result, node_handle


class RequestCalls(SessionCalls):
    """What a scheduler does with a request. The pools must be the cache's own."""

    def begin(self, tokens: Tokens, namespace: Namespace = None, session: int | None = None) -> Request:
        """Starts a request: matches `tokens`, locks what it matched, takes slots for what it writes into.

        CacheFull, and nothing changed, if there is no such slot. `session`: refers to what the request commits.
        """
        request = self.begin_all([tokens], [namespace], [session])[0]
        if request is None:
            names = [c.name for c in self.config.components if c.copies_on_write]
            raise CacheFull(f"POOL_EMPTY: no free or evictable slot of {names} to write into: finish a request first")
        return request

    def begin_all(
        self,
        keys: Sequence[Tokens],
        namespaces: Sequence[Namespace] | None = None,
        sessions: Sequence[int | None] | None = None,
    ) -> list[Request | None]:
        """`begin` of each key in order, in one call; None for one that finds no slot to write into."""
        self._demand_owned()
        keys = sequence("keys", keys)
        number = len(keys)
        spaces = [None] * number if namespaces is None else sequence("namespaces", namespaces)
        sessions = [None] * number if sessions is None else sequence("sessions", sessions)
        if len(sessions) != number:
            raise InvalidInput(f"{number} keys need as many sessions, or None for each, got {len(sessions)}")
        rows, padded = self._batch(keys, spaces)
        self._demand_beginning(sessions)
        if not number:
            return []
        before = self._used()
        lone = number == 1
        (out,) = self._call(compiled.begin, padded[0]) if lone else self._call(compiled.begins, padded)
        found, form = np.asarray(out), self._form(padded.shape[1] - 3)
        self._buffers.give(padded)
        self._settle_freed(before)
        found = found[None] if lone else found[:number]
        numbers = found[:, : self._begun_fields].tolist()
        return [self._begun(numbers[i], found[i], form, rows[i], spaces[i], sessions[i]) for i in range(number)]

    def extend(self, request: Request, n: int) -> bool:
        """Gives a request slots for `n` more tokens, evicting what they are short of.

        False, and no effect, if the unlocked nodes do not hold as much: retract or finish a request first.
        """
        self._live(request)
        more = count("n", n)
        end = count("the tokens of a request", request.length + more, 0, self.config.max_key_len)
        counts = [c.needed(request.length, end) for c in self.config.components]
        if any(n > self.config.pool_room(name) for n, name in zip(counts, self._names, strict=True)):
            return False
        before = self._used()
        widths = tuple(
            0 if c.copies_on_write else width(n) for c, n in zip(self.config.components, counts, strict=True)
        )
        (out,) = self._call(compiled.reserve, np.array(counts, np.int32), widths=widths)
        self._settle_freed(before)
        row, place = np.asarray(out), 1
        if row[0] != Status.OK:
            return False
        for j, name in enumerate(self._names):
            if widths[j]:
                taken = row[place : place + counts[j]]
                place += widths[j]
                self._ledgers[name].take(taken, REQUEST)
                request.slots[name] = np.concatenate([request.slots[name], taken])
        request.length = end
        return True

    def slide(self, request: Request, computed: int) -> dict[str, np.ndarray]:
        """Gives back what no token of a request from position `computed` on reads: slots, and the lock of a window.

        `computed`: its tokens so far whose computation is final. Returns the slots freed, per component.
        """
        self._live(request)
        freed = {}
        for component in self.config.components:
            name, page = component.name, self.config.page_size
            if not component.gives_up:
                continue
            upto = component.outlived(min(count("computed", computed), request.length)) // page * page
            if upto > request.given_up.get(name, 0):
                first, last = self._own_from(request, component), component.needed(0, upto)
                freed[name] = request.slots[name][first:last].copy()
                self._ledgers[name].take(freed[name])
                if len(freed[name]):
                    self.free(name, freed[name])
                request.slots[name] = request.slots[name].copy()
                request.slots[name][:last] = -1
                request.given_up[name] = upto
            if upto >= request.committed and name not in self._hold(request.receipt).early:
                self._release_early(request.receipt, name)
        return freed

    def commit_unfinished(
        self, request: Request, tokens: Tokens, *, leave_state: bool = True, priority: int = 0
    ) -> CommitResult:
        """Puts what a request has computed so far into the tree; it goes on, and holds that.

        `tokens`: all of its tokens that are computed, from the first. `leave_state`: where they are whole pages, the
        state after them may stay in the tree, in a slot taken for it: `copies` says where to copy it to. From then on
        the request uses `request.slots`.
        """
        return self._commit(request, tokens, finished=False, leave_state=leave_state, priority=priority)

    def commit_finished(self, request: Request, tokens: Tokens, *, priority: int = 0) -> CommitResult:
        """Puts all that a request has computed into the tree; the request is over, and all that it held is released.

        `tokens`: all of its tokens that are computed. Its own state stays if they are whole pages. In a streaming
        session the request is not over: carry out its `copies`, and `resume` goes on with it.
        """
        self._live(request)
        session = request.session
        if session is None or session not in self._streaming:
            return self._commit(request, tokens, finished=True, leave_state=True, priority=priority)
        done = self._commit(request, tokens, finished=False, leave_state=True, priority=priority)
        request.waiting = True
        return done

    def abort(self, request: Request) -> None:
        """Drops a request, running or waiting: its slots come back, and its lock goes."""
        self._live(request, waiting=True)
        own = self._own(request)
        buffers = np.full((len(self._names), width(max(map(len, own.values())))), -1, np.int32)
        for name, row in zip(self._names, buffers, strict=True):
            row[: len(own[name])] = own[name]
        counts = [len(own[name]) for name in self._names]
        numbers = np.array([*counts, *self._numbers(self._hold(request.receipt))], np.int32)
        (status,) = self._call(compiled.abort, numbers, *buffers)
        if (code := int(np.asarray(status))) != Status.OK:
            raise InvariantError(f"a live receipt could not be released: {Status(code).name}")
        for name, held in own.items():
            self._ledgers[name].give(held)
        self._over(request)

    # -- streaming -----------------------------------------------------------------------------------------------

    def open_session(self, *, streaming: bool = False) -> int:
        """Opens a session, which refers to nothing yet; CacheFull if `max_sessions` are open.

        `streaming`: one request goes on through all turns, and what it holds stays locked in between: see `resume`.
        """
        session = super().open_session()
        if streaming:
            self._streaming[session] = None
        return session

    def close_session(self, session: int) -> bool:
        """The session refers to nothing any more; a request that waits in it is aborted. False if closed before."""
        self._session(session)
        request = self._streaming.get(session)
        if request is not None and request.waiting:
            self.abort(request)
        self._streaming.pop(session, None)
        return super().close_session(session)

    def resume(self, session: int) -> Request:
        """The request that waits in a streaming session, to be extended by the next turn: no walk, no call, O(1)."""
        self._session(session)
        request = self._streaming.get(session)
        if request is None or not request.waiting:
            raise InvalidInput(f"no request waits in session {session}: `begin` one, or finish it first")
        self._live(request, waiting=True)
        request.waiting = False
        return request

    def _demand_beginning(self, sessions: Sequence[int | None]) -> None:
        """InvalidInput unless a request may begin in each of these sessions."""
        given = [session for session in sessions if session is not None]
        for session in given:
            self._session(session)
            if session in self._streaming and (self._streaming[session] or given.count(session) > 1):
                raise InvalidInput(f"streaming session {session} has a request already: resume or abort that")

    # -- within --------------------------------------------------------------------------------------------------

    def _demand_owned(self) -> None:
        for name in self._names:
            self._owned(name)

    def _running(self, request: Request, *, waiting: bool = False) -> None:
        """InvalidInput unless a request is running, or waits where that is allowed."""
        if not isinstance(request, Request):
            raise InvalidInput(f"this takes the Request that begin returned, got {type(request).__name__}")
        if request.over:
            raise InvalidInput("this request is over: finished, aborted, or undone by a roll-back or a reset")
        if request.waiting and not waiting:
            raise InvalidInput(f"this request waits in session {request.session}: resume it first")
        self._hold(request.receipt)

    def _demand_own(self, requests: Sequence[Request]) -> None:
        """InvalidInput unless what requests hold is theirs in the state as it is."""
        for component in self.config.components if requests else ():
            name, slots = component.name, [self._own_slots(request, component) for request in requests]
            if not self._ledgers[name].belong(np.concatenate(slots)):
                raise InvalidInput(
                    f"slots of {name!r} that this request held have another holder in the state assigned"
                )

    def _live(self, request: Request, *, waiting: bool = False) -> None:
        """InvalidInput unless a request is running, or waits where that is allowed, and has what it holds."""
        self._running(request, waiting=waiting)
        self._demand_own([request])

    def _settle_freed(self, before: Mapping[str, int]) -> None:
        """Notes in the book what a call has freed that is still free; what it took is noted by who took it."""
        for name, used in self._used().items():
            if used < before[name]:
                self._ledgers[name].give(self._pool(name)[used : before[name]])

    def _begun(
        self,
        numbers: list[int],
        row: np.ndarray,
        form: Layout,
        key: np.ndarray,
        space: Namespace,
        session: int | None,
        end: int | None = None,
    ) -> Request | None:
        """A request that has begun, if it has, of a row as compiled functions return it, and the numbers in it.

        It has slots up to `end` tokens; by default, those matched.
        """
        at = 1 + self._matched_fields
        if numbers[0] != Status.OK:
            return None
        match = match_result(self.config, numbers[1:at], row, form)
        length = match.device_len if end is None else end
        since, own = numbers[at + 1 : at + 1 + len(self._names)], numbers[at + 1 + len(self._names) :]
        receipt = self._locked(match.node, numbers[at], since, request=True)
        rows, copies = {}, {}
        for component in self.config.components:
            name, place = component.name, form.places[component.name]
            if not component.copies_on_write:
                rows[name] = row[place : place + component.needed(0, length)]
                continue
            slot = own.pop(0)
            rows[name] = np.array([slot], np.int32)
            self._ledgers[name].take(rows[name], REQUEST)
            if len(match.slots[name]):
                copies[name] = int(match.slots[name][-1]), slot
        request = Request(
            match=match,
            slots=rows,
            copies=copies,
            length=length,
            committed=match.device_len,
            receipt=receipt,
            namespace=space,
            session=session,
            tokens=key[: match.device_len].copy(),
        )
        self._requests[id(request)] = request
        if session in self._streaming:
            self._streaming[session] = request
        return request

    def _over(self, request: Request) -> None:
        del self._holds[request.receipt.serial]
        request.over, request.waiting = True, False
        del self._requests[id(request)]
        if request.session in self._streaming:
            self._streaming[request.session] = None

    def _commit(
        self, request: Request, tokens: Tokens, *, finished: bool, leave_state: bool, priority: int
    ) -> CommitResult:
        self._live(request)
        entry = self._committing(request, tokens, finished=finished, leave_state=leave_state, priority=priority)
        before, (padded, *held) = self._used(), self._filled(entry)
        (out,) = self._call(compiled.commit, padded, *held, finished=finished)
        row = np.asarray(out)
        fields = row[: self._committed_fields].tolist()
        self._buffers.give(padded, *held)
        self._demand_fits(fields[0], entry.key, request.committed, fields[1])
        # The stack may have gone up by one in between; all of it from `used` on is free now.
        free, after = {}, self._used()
        for component in self.config.components:
            name = component.name
            top = min(before[name] + component.copies_on_write, self.config.pool_room(name))
            free[name] = self._pool(name)[after[name] : top]
        rows = None if finished else by_component(row, self._form(self._width(len(entry.key))))
        return self._committed(request, entry, fields, rows, free)

    def _committing(
        self, request: Request, tokens: Tokens, *, finished: bool, leave_state: bool = True, priority: int = 0
    ) -> Entry:
        """A commit to be made of a request that is `_live`."""
        key = self._computed(request, tokens)
        config = self.config
        whole = len(key) // config.page_size * config.page_size
        given, handed = [], {}
        for component in config.components:
            # A last, partial page goes on with the request; so does a state, of which a copy stays.
            name, some = component.name, component.copies_on_write or finished
            held = request.slots[name]
            mine = held if some else held[: component.needed(0, whole)]
            given.append(len(mine))
            if not component.copies_on_write:
                mine = component.handed_over(mine, request.committed, request.given_up.get(name, 0))
            handed[name] = mine
        space = self._namespaces.number(request.namespace)
        evicted = [request.given_up.get(name, 0) for name in self._names]
        numbers = [
            *(len(key), space, request.committed, request.inserted, count("priority", priority, -(2**31))),
            self._namespaces.stamp(space),
            *(*given, *evicted),
            *(int(handed[name][0]) for name in self._names if name in self._writers),
            *self._node(request.receipt.node),
            request.receipt.end,
            *self._hold(request.receipt).since,
            (finished or leave_state) and whole == len(key),
        ]
        return Entry(key, handed, numbers)

    def _computed(self, request: Request, tokens: Tokens) -> np.ndarray:
        """What a request says that it has computed, i32[n]; InvalidInput unless it can have."""
        key, committed = integers("tokens", tokens), request.committed
        if not committed <= len(key) <= request.length:
            raise InvalidInput(
                f"{len(key)} tokens: the request has committed {committed} and has slots for {request.length}"
            )
        if np.count_nonzero(key[:committed] != request.tokens):
            raise InvalidInput("the tokens do not begin with those that the request has committed (`request.tokens`)")
        new = key[committed:]  # the others are known to be tokens
        if len(new) and np.minimum.reduce(new) < 0:
            tokens_of(key, len(key))
        return key

    def _committed(
        self,
        request: Request,
        entry: Entry,
        fields: Sequence[int],
        rows: Mapping[str, np.ndarray] | None,
        free: Mapping[str, np.ndarray],
    ) -> CommitResult:
        """Notes a commit: `fields` as compiled, the request's `rows` if it goes on, and slots `free` now."""
        config, finished, key = self.config, rows is None, entry.key
        whole = len(key) // config.page_size * config.page_size
        _, prefix_len, index, generation, *rest = fields
        each, (end, *rest) = rest[: 3 * len(self._names)], rest[3 * len(self._names) :] or [0]
        since, left = rest[: len(self._names)], rest[len(self._names) :]
        existed = {name: bool(each[3 * j]) for j, name in enumerate(self._names)}
        node, adopted, freed, copies = node_handle(index, generation), {}, {}, {}
        for component in config.components:
            name, handed = component.name, entry.handed[component.name]
            if component.copies_on_write and not finished:
                stays = left.pop(0)
                copies |= {name: (int(handed[0]), stays)} if stays >= 0 else {}
                handed = np.array([stays] if stays >= 0 else [], np.int32)
            ledger = self._ledgers[name]
            ledger.take(handed, TREE)
            ledger.give(free[name])
            adopted[name], freed[name] = ledger.kept(handed)
        if rows is None:
            self._over(request)
        else:
            del self._holds[request.receipt.serial]
            request.receipt = self._locked(node, end, since, request=True)
            request.tokens = key[:whole].copy()
            self._rebase(request, whole, rows)
        if request.session is not None:
            self.advance_session(request.session, node)
        return CommitResult(prefix_len, node, adopted, freed, existed, {} if finished else dict(request.slots), copies)

    def _rebase(self, request: Request, whole: int, rows: Mapping[str, np.ndarray]) -> None:
        """The request uses the tree's slots for what it has committed, and its own from there on."""
        request.committed = request.inserted = whole
        for component in self.config.components:
            if not component.copies_on_write:
                name = component.name
                mine = request.slots[name][component.needed(0, whole) :]
                request.slots[name] = np.concatenate([rows[name][: component.matched(whole)], mine])
