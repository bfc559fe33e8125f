"""Calls about sessions: conversations whose next turn will come, whose prefix should be there then."""

import numpy as np

from urc import compiled
from urc.arguments import MAX_INT32, count
from urc.errors import CacheFull, InvalidInput, Status
from urc.handle.inserts import InsertCalls
from urc.results import node_handle, node_parts


class SessionCalls(InsertCalls):
    """open, advance, recede, close. A session is an int that is never given out twice."""

    def open_session(self) -> int:
        """Opens a session, which refers to nothing yet; CacheFull if `max_sessions` are open."""
        (out,) = self._call(compiled.open_session)
        status, index, generation = np.asarray(out).tolist()
        if status != Status.OK:
            raise CacheFull(f"{self.config.max_sessions} sessions are open (max_sessions): close one")
        return node_handle(index + 1, generation)

    def advance_session(self, session: int, node: int) -> bool:
        """The session refers to what a request reads that resumes at `node`: this is evicted after everything else.

        False, and no effect, if the session has been closed.
        """
        numbers = [*self._session(session), *self._node(node)]
        (status,) = self._call(compiled.advance_session, np.array(numbers, np.int32))
        if (code := int(np.asarray(status))) == Status.STALE_NODE:
            raise InvalidInput(f"node {node} has left the tree: match again")
        return code == Status.OK

    def recede_session(self, session: int, length: int) -> bool:
        """The session goes back to the last node of its path that ends at `length` tokens or before; else as above."""
        numbers = [*self._session(session), count("length", length)]
        (status,) = self._call(compiled.recede_session, np.array(numbers, np.int32))
        return int(np.asarray(status)) == Status.OK

    def close_session(self, session: int) -> bool:
        """The session refers to nothing any more. False if it has been closed before."""
        numbers = np.array(self._session(session), np.int32)
        (status,) = self._call(compiled.close_session, numbers)
        return int(np.asarray(status)) == Status.OK

    def _session(self, session: int) -> tuple[int, int]:
        """(row, generation); InvalidInput if no such session was ever opened here."""
        number = count("a session", session, 1, 2**62)
        index, generation = node_parts(number)
        table = self._current().sessions
        if not 1 <= index <= self.config.max_sessions or generation > MAX_INT32:
            raise InvalidInput(f"{session} is not a session of this cache")
        row = dict(zip(table.columns, np.asarray(table.data)[index - 1].tolist(), strict=True))
        now = row["generation"]
        if generation > now or (generation == now and row["node"] < 0):
            raise InvalidInput(f"{session} is not a session of this cache")
        return index - 1, generation
