"""How the host handle calls a compiled transition: on the arrays of a state, in place, at the least cost per call.

A call costs about a microsecond per array that goes in or comes out. So the state goes in as its arrays, not as a tree
to be taken apart in Python; and only those come back that the transition writes, which are donated: others are read.
"""

import functools
import operator
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from urc.kernel import one_kernel, supported
from urc.state import CacheState

Arrays = tuple[jax.Array, ...]
"""Results, in an order that each transition tells."""

ALL = ("nodes", "heads", "tokens", "scalars", "sessions", "victims", "stores")
"""The fields of a state that hold arrays."""


@functools.cache
def jit_options() -> dict[str, Any]:
    """Arguments of `jax.jit` by which XLA runs a program's kernels one after the other, on a CPU.

    Its default is to hand kernels that do not need each other to a pool of threads, and these are so small that to
    wake a thread takes longer than all of them. Empty for accelerators, and where XLA or JAX do not know the option.
    """
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, Any] = {"compiler_options": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}}
    try:
        jax.jit(lambda: 0, **options).lower().compile()
    except (TypeError, RuntimeError):
        return {}
    return options


class StateArrays:
    """The arrays of a state, which calls update in place."""

    def __init__(self, state: CacheState) -> None:
        self.leaves, self.tree = jax.tree.flatten(state)
        self.calls: dict[Any, Call] = {}
        self.places: dict[Callable[[CacheState], Any], int | None] = {}
        self._state: CacheState | None = state

    @property
    def state(self) -> CacheState:
        """The state: the same object until the next update."""
        state = self._state
        if state is None:
            state = self._state = jax.tree.unflatten(self.tree, self.leaves)
        return state

    def read(self, get: Callable[[CacheState], Any]) -> np.ndarray:
        """One array of the state, on the host; found at its place, if `get` only looks it up."""
        if get not in self.places:
            marks = [object() for _ in self.leaves]
            try:
                found = get(jax.tree.unflatten(self.tree, marks))
            except (AttributeError, TypeError):  # it computes
                found = None
            self.places[get] = marks.index(found) if found in marks else None
        place = self.places[get]
        return np.asarray(get(self.state) if place is None else self.leaves[place])

    def is_lost(self) -> bool:
        """Whether somebody has donated an array of it."""
        return any(leaf.is_deleted() for leaf in self.leaves)

    def copy(self) -> None:
        """Goes on with a copy."""
        self.leaves, self._state = [jnp.copy(leaf) for leaf in self.leaves], None

    def update(self, written: slice | tuple[int, ...], leaves: list[jax.Array]) -> None:
        """Replaces the arrays that a call has written."""
        if isinstance(written, slice):
            self.leaves[written] = leaves
        else:
            for i, leaf in zip(written, leaves, strict=True):
                self.leaves[i] = leaf
        self._state = None


NOT_READ = (1,) * 7
"""The shape of what stands for an array that a program does not read: one that no other has, nor can be taken for."""


class Call(NamedTuple):
    """A program for one kind of state."""

    run: Any  # the jitted function of some arrays of the state and what else is given
    takes: Callable[[list[jax.Array]], tuple[jax.Array, ...]]  # which arrays, out of all
    written: slice | tuple[int, ...]  # places, among all, of those that it writes and returns first
    number: int  # of these


class Program:
    """`transition(state, *arrays, **static) -> (state, results)`, and the fields of the state that it writes and reads.

    It gets no others (see `NOT_READ`): to hand one in takes a fifth of a microsecond.
    """

    def __init__(
        self,
        transition: Callable[..., tuple[CacheState, Arrays]],
        writes: tuple[str, ...],
        reads: tuple[str, ...] = ALL,
        *,
        lone: bool = False,
        sees_locks: bool = True,
    ) -> None:
        self.transition, self.writes, self.reads, self.lone = transition, writes, reads, lone
        self.sees_locks = sees_locks
        self.__doc__ = transition.__doc__
        self._lock = Lock()
        self._made: dict[Any, Call] = {}
        self._pieces: set[Any] = set()

    def __call__(self, arrays: StateArrays, *given: Any, **static: Any) -> Arrays:
        """The results; `arrays` are updated."""
        key = (self, *static.items()) if static else self
        found = arrays.calls.get(key)
        if found is None:
            found = arrays.calls[key] = self.compiled(arrays.tree, **static)
        run, takes, written, number = found
        try:
            out = run(*takes(arrays.leaves), *given)
        except jax.errors.JaxRuntimeError:
            if not supported() or arrays.is_lost():
                raise
            pieces = self._in_pieces(arrays.tree, **static)
            if pieces is found:
                raise
            run, takes, written, number = arrays.calls[key] = pieces
            out = run(*takes(arrays.leaves), *given)
        if number:
            arrays.update(written, out[:number])
        return out[number:]

    def compiled(self, tree: Any, **static: Any) -> Call:
        """For states of one structure."""
        key = (tree, *static.items())
        with self._lock:  # two threads that make one would compile it twice
            if key not in self._made:
                self._made[key] = self._make(tree, static)
            return self._made[key]

    def lower(self, arrays: StateArrays, *given: Any, **static: Any) -> Any:
        """`jax.jit(..).lower` of the program; what is given may be shapes."""
        call = self.compiled(arrays.tree, **static)
        return call.run.lower(*call.takes(arrays.leaves), *given)

    def _in_pieces(self, tree: Any, **static: Any) -> Call:
        """`compiled`, from now on not as one kernel: a component or a policy does what a kernel cannot, as to sort."""
        key = (tree, *static.items())
        with self._lock:
            if key not in self._pieces:
                self._pieces.add(key)
                self._made[key] = self._make(tree, static, whole=False)
            return self._made[key]

    def compilations(self) -> int:
        """How many shapes it has been compiled for in this process."""
        return sum(call.run._cache_size() for call in self._made.values())

    def _make(self, tree: Any, static: dict[str, Any], *, whole: bool = True) -> Call:
        places = jax.tree.unflatten(tree, range(tree.num_leaves))
        of = lambda names: jax.tree.leaves([getattr(places, name) for name in names])
        written, taken = tuple(sorted(of(self.writes))), sorted({*of(self.writes), *of(self.reads)})

        def call(*arrays: jax.Array) -> list[jax.Array]:
            nothing = jnp.zeros(NOT_READ, jnp.int32)
            found = dict(zip(taken, arrays, strict=False))
            state = jax.tree.unflatten(tree, [found.get(i, nothing) for i in range(tree.num_leaves)])
            state, results = self.transition(state, *arrays[len(taken) :], **static)
            leaves = jax.tree.leaves(state)
            return [*(leaves[i] for i in written), *results]

        updated = tuple(map(taken.index, written))

        def in_one_kernel(*arrays: jax.Array) -> list[jax.Array]:
            return one_kernel(call, *arrays, updated=updated, hides_numbers=self.lone)

        function = in_one_kernel if whole and supported() else call
        function.__name__ = call.__name__ = self.transition.__name__
        run = jax.jit(function, donate_argnums=updated, **jit_options())
        number, first = len(written), min(written, default=0)
        together = written == tuple(range(first, first + number))
        return Call(run, operator.itemgetter(*taken), slice(first, first + number) if together else written, number)


def program(
    *writes: str, reads: tuple[str, ...] = ALL, lone: bool = False, sees_locks: bool = True
) -> Callable[[Callable[..., tuple[CacheState, Arrays]]], Program]:
    """Decorates a transition that writes some fields of the state, and reads no others than these and `reads`.

    `lone`: it does little, and each request calls it for itself, so that the cost of a call is what matters.
    `sees_locks`: what it does depends on what is locked; if not, it is the same before an unlock as after it, and so is
    the state after both.
    """
    return lambda transition: Program(transition, writes, reads, lone=lone, sees_locks=sees_locks)
