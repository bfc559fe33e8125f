"""Arrays in which arguments travel: kept from call to call, as new ones cost more than to fill them."""

from math import prod

import numpy as np

_ALIGNMENT = 64
"""Bytes: JAX copies an argument that is aligned to less."""


class Buffers:
    """Arrays i32 of some shapes, lent to one call at a time."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, ...], list[np.ndarray]] = {}

    def take(self, *shape: int) -> np.ndarray:
        """An array of any values >= NULL; give it back when the program that reads it has ended.

        One that is not given back, as after an error, is nobody's: a program may still read it.
        """
        free = self._free.get(shape)
        return free.pop() if free else _aligned(shape)

    def give(self, *arrays: np.ndarray) -> None:
        """Takes arrays back, to be lent again."""
        for array in arrays:
            self._free.setdefault(array.shape, []).append(array)


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    size = 4 * prod(shape)
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(np.int32).reshape(shape)
