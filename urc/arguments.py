"""What callers hand in to the host handle: checked once, and brought into the shapes that programs are compiled for."""

import operator
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from urc.errors import InvalidInput

Tokens = Sequence[int] | np.ndarray
"""Token ids >= 0, in order."""

Namespace = Hashable
"""None, a str, bytes or int, or a tuple of those."""

MAX_INT32 = 2**31 - 1

_INT32 = np.dtype(np.int32)


def count(what: str, value: Any, least: int = 0, most: int = MAX_INT32) -> int:
    """`value` as an int in [least, most]."""
    if type(value) is int and least <= value <= most:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{what} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise InvalidInput(f"{what} must lie in [{least}, {most}], got {value!r}")
    return number


def counts(what: str, values: list[Any], least: int = 0, most: int = MAX_INT32) -> list[int]:
    """`count` of each."""
    if not values or (set(map(type, values)) == {int} and min(values) >= least and max(values) <= most):
        return values
    return [count(what, value, least, most) for value in values]


def tokens_of(tokens: Tokens, max_len: int) -> np.ndarray:
    """A key as i32[n]; InvalidInput unless it is at most `max_len` token ids >= 0."""
    key = integers("tokens", tokens)
    if len(key) > max_len:
        raise InvalidInput(
            f"the key has {len(key)} tokens, more than max_key_len = {max_len}: cut it, or configure a larger maximum"
        )
    if len(key) and np.minimum.reduce(key) < 0:
        raise InvalidInput(f"tokens must be >= 0, got {int(key.min())} at {int(key.argmin())}")
    return key


def rows_of(keys: Sequence[Tokens], max_len: int) -> list[np.ndarray]:
    """`tokens_of` each key, but that they are >= 0: see `demand_tokens`."""
    array, int32 = np.ndarray, _INT32
    rows = [
        key if type(key) is array and key.dtype is int32 and key.ndim == 1 else integers("tokens", key) for key in keys
    ]
    if max(map(len, rows), default=0) > max_len:
        for row in rows:
            tokens_of(row, max_len)
    return rows


def demand_tokens(array: np.ndarray, rows: Sequence[np.ndarray]) -> None:
    """InvalidInput unless all of `rows` are >= 0, which `array` holds; what else it holds does not matter."""
    few = array.size < 1000  # NumPy counts a few sooner than it reduces them
    if np.count_nonzero(array < 0) if few else np.minimum.reduce(array, axis=None) < 0:
        for row in rows:
            tokens_of(row, len(row))


def by_name(what: str, given: Any, names: tuple[str, ...]) -> None:
    """InvalidInput unless `given` maps only names of components."""
    if type(given) is dict and given.keys() <= set(names):
        return
    if not isinstance(given, Mapping) or set(given) - set(names):
        got = sorted(map(repr, given)) if isinstance(given, Mapping) else given
        raise InvalidInput(f"{what} maps names of components ({', '.join(names)}), got {got}")


def sequence(what: str, values: Any) -> list[Any]:
    """`values` as a list; InvalidInput if it is none, or one thing that happens to be iterable."""
    if isinstance(values, (str, bytes)) or hasattr(values, "_fields") or not hasattr(values, "__iter__"):
        raise InvalidInput(f"{what} must be a sequence, got {values!r}")
    return list(values)


class Namespaces:
    """Numbers for namespaces, injective: "1", 1 and ("1",) differ, and so do ("ab", "c") and ("a", "bc").

    A number is given at the first insert and never taken back, so a state that is rolled back still finds its names.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {_typed(None): 0}
        self._names: list[Namespace] = [None]
        self._hashes = [0]  # of the first n names, n = 1, 2, ..

    def number(self, namespace: Namespace, *, new: bool = True) -> int:
        """The namespace's number; if it has none, a new one, or -1, which is nobody's, where `new` is not set."""
        if namespace is None:
            return 0
        typed = _typed(namespace)
        number = self._numbers.get(typed, -1)
        if number < 0 and new:
            number = self._numbers[typed] = len(self._names)
            self._names.append(namespace)
            self._hashes.append(zlib.crc32(repr(typed).encode(), self._hashes[-1]) & MAX_INT32)
        return number

    def name(self, number: int) -> Namespace:
        """The namespace that has a number."""
        return self._names[number]

    def stamp(self, number: int) -> int:
        """A hash of the names up to that of a number: what a state carries of the largest number in it."""
        return self._hashes[number]

    def gave(self, stamp: tuple[int, int]) -> bool:
        """Whether a state with that stamp has its numbers from here."""
        return 0 <= stamp[0] < len(self._hashes) and self._hashes[stamp[0]] == stamp[1]


LEAST_WIDTH = 128


def width(n: int) -> int:
    """The length to which `n` entries are padded, so that few programs are compiled."""
    return 1 << (max(n, LEAST_WIDTH) - 1).bit_length()


def batch_width(n: int) -> int:
    """The number to which a batch of `n` is filled up."""
    return 1 << max(n - 1, 0).bit_length()


def integers(what: str, values: Any) -> np.ndarray:
    """`values` as i32[n]; InvalidInput unless they are a sequence of integers that fit."""
    if type(values) is np.ndarray and values.dtype is _INT32 and values.ndim == 1:  # to compare dtypes takes longer
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidInput(f"{what} must be a flat sequence of integers, got a ragged one") from None
    if array.ndim != 1:
        raise InvalidInput(f"{what} must be a flat sequence of integers, got shape {array.shape}")
    if not array.size:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"{what} must be integers, got dtype {array.dtype}")
    if array.dtype != np.int32 and (array.max() > MAX_INT32 or array.min() < -MAX_INT32 - 1):
        raise InvalidInput(f"{what} must fit in 32 bits, got {array.max()}")
    return array.astype(np.int32, copy=False)


def _typed(namespace: Namespace) -> Any:
    """The namespace with its type, all the way down, so that 1, True and "1" differ."""
    if isinstance(namespace, tuple):
        return tuple, tuple(_typed(part) for part in namespace)
    if namespace is None or type(namespace) in (str, bytes, int):
        return type(namespace), namespace
    raise InvalidInput(f"a namespace is None, a str, bytes or int, or a tuple of those, got {namespace!r}")
