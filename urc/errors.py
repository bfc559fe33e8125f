"""What goes wrong, as exceptions at the host edge and as codes inside compiled code."""

import enum


class Status(enum.IntEnum):
    """Outcome of a transition; anything but OK means that the state is as it was."""

    OK = 0
    NO_FREE_NODE = 1
    ARENA_FULL = 2
    BAD_PREFIX = 3
    STALE_NODE = 4
    NOT_LOCKED = 5
    POOL_EMPTY = 6
    BAD_SLOTS = 7
    NO_SESSION = 8


class Stop(enum.IntEnum):
    """Why a match went no further."""

    KEY_EXHAUSTED = 0
    """Every whole page of the key is in the tree."""
    NO_CHILD = 1
    """The walk came to the end of a node, and no child goes on with the key's next page."""
    DIVERGED = 2
    """The key left a node in the middle of its run."""
    NO_FREE_NODE = 3
    """The node table is full, so the node in which the key ends could not be split: the hit ends at its start."""
    WINDOW_BROKEN = 4
    """Full attention goes further, but a sliding window before that point is not whole."""
    NO_STATE = 5
    """Full attention goes further, but a component has no state there (Mamba, or one of a user's own)."""


class InvalidInput(ValueError):
    """An argument that the cache refuses; nothing has changed."""


class CacheFull(RuntimeError):
    """An insert that does not fit (no free node, or no room for its tokens); nothing has changed."""


class InvariantError(AssertionError):
    """The state breaks an invariant of the cache."""
