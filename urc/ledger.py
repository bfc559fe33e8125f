"""Who holds which slot: the host's own book, by which bad slots are refused before anything changes."""

import numpy as np

from urc.components.base import Component
from urc.errors import InvalidInput, InvariantError
from urc.state import CacheState
from urc.view import held_slots

HELD, TREE, FREE = 0, 1, 2


class SlotLedger:
    """Per slot of one component: held by a caller, in the tree, or free (never, where the caller owns the pool)."""

    def __init__(self, name: str, size: int | None) -> None:
        self._name, self._size = name, size
        self._holder = np.full(size or 0, FREE, np.int8)
        self._place = np.zeros(size or 0, np.int32)

    @classmethod
    def of(cls, component: Component, state: CacheState) -> "SlotLedger":
        """The book that a state implies: what is neither free nor in the tree is held."""
        size = state.config.pool_size(component.name)
        book = cls(component.name, size)
        if size is not None:
            used = int(state.ledger(component, state.scalars.get(0))["used"])
            book._holder[:] = HELD
            book._holder[np.asarray(component.pool(state.stores[component.name]))[used:size]] = FREE
        slots = held_slots(component, state)
        book._grow(slots)
        book._holder[slots] = TREE
        return book

    def _grow(self, slots: np.ndarray) -> None:
        """Makes room for the caller's own slot numbers, which have no known bound."""
        if self._size is None and len(slots) and (top := int(slots.max())) >= len(self._holder):
            more = max(2 * len(self._holder), top + 1) - len(self._holder)
            self._holder = np.concatenate([self._holder, np.full(more, HELD, np.int8)])
            self._place = np.concatenate([self._place, np.zeros(more, np.int32)])

    def demand_held(self, slots: np.ndarray) -> None:
        """InvalidInput unless every slot (i32[n]) is the caller's, and listed once."""
        if not len(slots):
            return
        low, high = int(slots.min()), int(slots.max())
        if low < 0 or (self._size is not None and high >= self._size):
            bad = low if low < 0 else high
            raise InvalidInput(f"slot {bad} is not of the pool of {self._name!r}" + self._range())
        self._grow(slots)
        holder = self._holder[slots]
        if holder.any():
            at = int(np.flatnonzero(holder)[0])
            where = "in the tree already" if holder[at] == TREE else "free: allocate it first"
            raise InvalidInput(f"slot {int(slots[at])} of {self._name!r} is {where}")
        index = np.arange(len(slots), dtype=np.int32)
        self._place[slots] = index
        if not np.array_equal(self._place[slots], index):
            twice = int(slots[np.flatnonzero(self._place[slots] != index)[0]])
            raise InvalidInput(f"slot {twice} of {self._name!r} is given twice")

    def _range(self) -> str:
        return "" if self._size is None else f", which has 0 .. {self._size - 1}"

    def take(self, slots: np.ndarray) -> None:
        """The caller holds `slots` now."""
        self._holder[slots] = HELD

    def give(self, slots: np.ndarray) -> None:
        """`slots` go back to the pool, or to the caller who owns it."""
        self._holder[slots] = HELD if self._size is None else FREE

    def settle(self, handed: np.ndarray, freed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """After an insert took over `handed` and freed `freed` of them: (adopted, freed), in the order handed in."""
        self._holder[handed] = TREE
        self.give(freed)
        stays = self._holder[handed] == TREE
        return handed[stays], handed[~stays]

    def check(self, implied: "SlotLedger") -> None:
        """InvariantError if this book differs from the one that the state implies."""
        size = min(len(self._holder), len(implied._holder))
        wrong = np.flatnonzero(self._holder[:size] != implied._holder[:size])
        if len(wrong) or self._holder[size:].any() or implied._holder[size:].any():
            raise InvariantError(f"{self._name}: the book of who holds which slot differs at {wrong[:8].tolist()}")
