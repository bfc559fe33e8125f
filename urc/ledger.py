"""What the host knows of a state: who holds which slot, by which bad slots are refused before anything changes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from urc.arguments import Namespaces
from urc.components.base import Component
from urc.errors import InvalidInput, InvariantError
from urc.state import ROOT, CacheState
from urc.view import held_slots

HELD, TREE, FREE, REQUEST = 0, 1, 2, 3

MOST_SLOTS = 2**28
"""Bound on the numbers of slots that a caller's own allocator gives out."""


_COUNT = np.arange(1024, dtype=np.int32)


def _places(slots: np.ndarray) -> np.ndarray:
    """Slots (i32[n]) as NumPy looks them up at the least cost; what is negative is large."""
    return slots.view(np.uint32).astype(np.intp)


class SlotLedger:
    """Per slot of one component: held by a caller or a running request, in the tree, or free (in a pool of ours)."""

    def __init__(self, name: str, size: int | None) -> None:
        self._name, self._size = name, size
        self._holder = np.zeros(0, np.int8) if size is None else np.full(size, FREE, np.int8)
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
            if top >= MOST_SLOTS:
                raise InvalidInput(
                    f"slot {top} of {self._name!r}: numbers of a caller's slots must be below {MOST_SLOTS}"
                )
            size = min(max(2 * len(self._holder), top + 1), MOST_SLOTS)  # zeros take no memory until they are touched
            holder, place = np.zeros(size, np.int8), np.zeros(size, np.int32)
            holder[: len(self._holder)], place[: len(self._place)] = self._holder, self._place
            self._holder, self._place = holder, place

    def demand_held(self, slots: np.ndarray) -> Any:
        """InvalidInput unless every slot (i32[n]) is the caller's, and listed once. Returns where they are noted."""
        number = len(slots)
        if number == 1 and 0 <= (slot := int(slots[0])) < len(self._holder) and self._holder[slot] == HELD:
            return slot
        at = _places(slots)
        if not number:
            return at
        if self._size is None:
            if at.max() >= 2**31:
                raise self._not_of_the_pool(slots)
            self._grow(slots)
        try:
            holder = self._holder[at]
        except IndexError:
            raise self._not_of_the_pool(slots) from None
        if np.count_nonzero(holder):
            first = int(np.flatnonzero(holder)[0])
            where = {TREE: "in the tree already", FREE: "free: allocate it first", REQUEST: "a running request's"}
            where = where[int(holder[first])]
            raise InvalidInput(f"slot {int(slots[first])} of {self._name!r} is {where}")
        index = _COUNT[:number] if number <= len(_COUNT) else np.arange(number, dtype=np.int32)
        self._place[at] = index
        if np.count_nonzero(self._place[at] != index):
            twice = int(slots[np.flatnonzero(self._place[at] != index)[0]])
            raise InvalidInput(f"slot {twice} of {self._name!r} is given twice")
        return at

    def _not_of_the_pool(self, slots: np.ndarray) -> InvalidInput:
        bad = min(int(slots.min()), 0) or int(slots.max())
        return InvalidInput(f"slot {bad} is not of the pool of {self._name!r}" + self._range())

    def _range(self) -> str:
        return "" if self._size is None else f", which has 0 .. {self._size - 1}"

    def take(self, slots: np.ndarray, holder: int = HELD) -> None:
        """The caller, or a request, holds `slots` now."""
        self._holder[_places(slots)] = holder

    def belong(self, slots: np.ndarray) -> bool:
        """Whether all of `slots` are a request's."""
        return not np.count_nonzero(self._holder[_places(slots)] != REQUEST)

    def in_tree(self, slots: np.ndarray) -> np.ndarray:
        """bool[n]: those that the tree has now."""
        return self._holder[_places(slots)] == TREE

    def kept(self, handed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(adopted, freed): of slots handed over, those that the tree has now, and the others: copies."""
        stays = self.in_tree(handed)
        return handed[stays], handed[~stays]

    def give(self, slots: np.ndarray) -> None:
        """`slots` go back to the pool, or to the caller who owns it."""
        self._holder[_places(slots)] = HELD if self._size is None else FREE

    def settle(self, handed: np.ndarray, freed: np.ndarray, at: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """After an insert took over `handed` and freed `freed`: (adopted, freed), in the order handed in.

        What the tree had before and has freed comes last. `at`: where `handed` are noted, as `demand_held` says.
        """
        at = _places(handed) if at is None else at
        if not len(freed):
            self._holder[at] = TREE
            return handed.copy(), freed  # the caller may write into its own
        others = freed[self.in_tree(freed)]
        self._holder[at] = TREE
        self.give(freed)
        stays = self.in_tree(handed)
        return handed[stays], np.concatenate([handed[~stays], others])

    def check(self, implied: "SlotLedger") -> None:
        """InvariantError if this book differs from the one that the state implies."""
        size = min(len(self._holder), len(implied._holder))
        mine = np.where(self._holder == REQUEST, HELD, self._holder)  # a state does not tell the two apart
        wrong = np.flatnonzero(mine[:size] != implied._holder[:size])
        if len(wrong) or mine[size:].any() or implied._holder[size:].any():
            raise InvariantError(f"{self._name}: the book of who holds which slot differs at {wrong[:8].tolist()}")


def _columns(state: CacheState) -> dict[str, np.ndarray]:
    data = np.asarray(state.nodes.data)
    return {name: data[:, j] for j, name in enumerate(state.nodes.columns)}


def usable_state(state: Any, like: CacheState, namespaces: Namespaces) -> CacheState:
    """`state` on the device; InvalidInput unless it can take the place of `like`, its namespaces numbered as here."""
    if not isinstance(state, CacheState) or state.config != like.config:
        raise InvalidInput("state must be a CacheState of the same configuration")
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)):
        raise InvalidInput("the buffers of this state were donated away: it cannot be used any more")
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(one)] for one in (state, like)]
    if jax.tree.structure(state) != jax.tree.structure(like) or shapes[0] != shapes[1]:
        raise InvalidInput("the arrays of this state do not have the shapes of its configuration")
    state = jax.tree.map(jnp.asarray, state)
    columns, scalars = _columns(state), state.scalars.get(0)
    top = int(columns["namespace"][columns["length"] > 0].max(initial=0))
    if top > int(scalars["named"]) or not namespaces.gave((int(scalars["named"]), int(scalars["names"]))):
        raise InvalidInput(
            "this state has namespaces that this cache did not number: a state goes back to the cache that it came "
            "from, or holds the default namespace only"
        )
    return state


def holds_lock(state: CacheState, index: int, generation: int) -> bool:
    """Whether the node of a row and generation is in the tree, and locked by some component (or is the root)."""
    columns = _columns(state)
    locked = any(columns[c.column("lock")][index] > 0 for c in state.config.components)
    return index == ROOT or bool(columns["generation"][index] == generation and locked)
