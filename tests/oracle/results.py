"""What the oracle answers: plain copies of the handle's results, with lists for arrays."""

from dataclasses import dataclass

KEY_EXHAUSTED = "KEY_EXHAUSTED"
NO_CHILD = "NO_CHILD"
DIVERGED = "DIVERGED"
NO_FREE_NODE = "NO_FREE_NODE"
WINDOW_BROKEN = "WINDOW_BROKEN"
NO_STATE = "NO_STATE"


class OracleRefused(ValueError):
    """The input is wrong; nothing has changed."""


class OracleFull(RuntimeError):
    """It does not fit; nothing has changed."""


@dataclass(frozen=True)
class Match:
    device_len: int
    node: int
    slots: dict  # component -> list of slots, in the order of the tokens
    host_len: int
    best_node: int
    full_len: int
    hits: dict  # component -> how far it alone agrees
    branching_len: int
    stop: str


@dataclass(frozen=True)
class Insert:
    prefix_len: int
    node: int
    adopted: dict
    freed: dict
    existed: dict  # component -> whether the end node held it before


@dataclass(frozen=True)
class Evict:
    evicted: dict
    freed: dict


@dataclass(frozen=True)
class Sizes:
    free: int | None
    evictable: int
    protected: int


@dataclass(frozen=True)
class Receipt:
    number: int
    node: int


@dataclass(frozen=True)
class NodeView:
    node: int
    parent: int
    namespace: object
    key: tuple
    prefix: tuple
    hit_count: int
    priority: int
    values: dict
    locks: dict
    sessions: dict
    is_leaf: bool
