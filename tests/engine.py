"""A model server of integers: what it keeps in each slot tells which prefix it was computed for.

The entry of a token is a hash of all tokens up to it. So a request that is handed a wrong slot, one that was freed, or
a state of another position is found at once, whatever the cache believes.
"""

from dataclasses import dataclass, field

import numpy as np

import urc

POISON = -1


def states_of(tokens) -> list[tuple[int, int]]:
    """(position, hash) after each prefix, the empty one first: what a recurrent layer would know there."""
    out = [(0, 17)]
    for token in tokens:
        out.append((out[-1][0] + 1, (out[-1][1] * 1_000_003 + int(token) + 1) % (2**61 - 1)))
    return out


@dataclass(eq=False)
class Running:
    request: urc.Request
    tokens: tuple  # all that it will be asked for
    computed: int = 0
    state: dict = field(default_factory=dict)


class Engine:
    """Serves requests out of one cache; every read checks what it reads."""

    def __init__(self, cache: urc.UnifiedRadixCache, window: int | None):
        self.cache, self.window = cache, window
        config = cache.config
        self.per_token = [c.name for c in config.components if not c.copies_on_write]
        self.writers = [c.name for c in config.components if c.copies_on_write]
        self.memory = {name: {} for name in (*self.per_token, *self.writers)}
        self.running: list[Running] = []

    # -- what a model does

    def _slot(self, run: Running, name: str, position: int) -> int | None:
        """The slot in which a component keeps what the token at a position leaves; None if it leaves nothing."""
        row, component = run.request.slots[name], self.cache.config.component(name)
        index = component.needed(0, position)
        return int(row[index]) if component.needed(0, position + 1) > index else None

    def _copy(self, copies) -> None:
        for name, (source, target) in copies.items():
            assert source != target
            self.memory[name][target] = self.memory[name][source]

    def begin(self, tokens, **options) -> Running | None:
        try:
            request = self.cache.begin(tokens, **options)
        except urc.CacheFull:
            return None
        return self.start(request, tokens)

    def start(self, request, tokens) -> Running:
        run = Running(request, tuple(tokens), computed=request.match.device_len)
        for name in self.writers:
            self.memory[name][int(request.slots[name][0])] = (0, 17)
        self._copy(request.copies)
        assert set(request.copies) == (set(self.writers) if request.match.device_len else set())
        self.running.append(run)
        self.read(run)
        return run

    def read(self, run: Running) -> None:
        """All that the next token of the request attends to is what this request would have computed."""
        known, at = states_of(run.tokens[: run.computed]), run.computed
        for name in self.per_token:
            first = max(at - self.window, 0) if name == "swa" else 0
            for position in range(first, at):
                slot = self._slot(run, name, position)
                if slot is None:
                    continue
                assert slot >= 0, f"{name}: no slot for position {position} of {at}"
                assert self.memory[name][slot] == known[position + 1], f"{name}: position {position} of {at}"
        for name in self.writers:
            assert self.memory[name][int(run.request.slots[name][0])] == known[at], f"{name} at {at}"

    def compute(self, run: Running, upto: int) -> bool:
        """Computes the tokens up to `upto`; False if there is no room for them."""
        if upto > run.request.length and not self.cache.extend(run.request, upto - run.request.length):
            return False
        self.read(run)
        known = states_of(run.tokens[:upto])
        for position in range(run.computed, upto):
            for name in self.per_token:
                if (slot := self._slot(run, name, position)) is not None:
                    self.memory[name][slot] = known[position + 1]
        for name in self.writers:
            self.memory[name][int(run.request.slots[name][0])] = known[upto]
        run.computed = max(run.computed, upto)
        self.read(run)
        return True

    def _poison(self, freed) -> None:
        for name, slots in freed.items():
            for slot in np.asarray(slots).tolist():
                self.memory[name][slot] = POISON

    def slide(self, run: Running) -> None:
        self._poison(self.cache.slide(run.request, run.computed))
        self.read(run)

    def commit(self, run: Running, *, finished: bool = False, leave_state: bool = True) -> bool:
        tokens = run.tokens[: run.computed]
        streams = run.request.session in self.cache._streaming
        try:
            if finished:
                done = self.cache.commit_finished(run.request, tokens)
            else:
                done = self.cache.commit_unfinished(run.request, tokens, leave_state=leave_state)
        except urc.CacheFull:
            return False
        self._copy(done.copies)
        self._poison(done.freed)
        if finished:
            assert run.request.over != streams
            self.running.remove(run)
        else:
            self.read(run)
        return True

    def abort(self, run: Running) -> None:
        self.cache.abort(run.request)
        self.running.remove(run)

    # -- what always holds

    def held(self, waiting=()) -> dict[str, int]:
        """Slots that requests hold themselves."""
        requests = [run.request for run in self.running] + list(waiting)
        counts = dict.fromkeys(self.memory, 0)
        for request in requests:
            for name in self.writers:
                counts[name] += len(request.slots[name])
            for name in self.per_token:
                first = max(request.committed, request.given_up.get(name, 0))
                counts[name] += self.cache.config.component(name).needed(first, request.length)
        return counts

    def ledger_closes(self, waiting=()) -> None:
        self.cache.check()
        held, sizes = self.held(waiting), self.cache.sizes()
        for name, size in dict(self.cache.config.pools).items():
            mine = sizes[name]
            assert mine.free + mine.evictable + mine.protected + held[name] == size, name
        for run in self.running:
            self.read(run)
