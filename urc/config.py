"""What a cache is: static choices, validated once."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from urc.arguments import MAX_INT32, count
from urc.components.base import COLUMNS, Component
from urc.components.full import Full
from urc.errors import InvalidInput
from urc.policies import resolve
from urc.tables import children, victims
from urc.tables.packed import Row

NODE_COLUMNS = (
    "parent",
    "start",
    "length",
    "end",
    "children",
    "next",
    "hash",
    "namespace",
    "generation",
    "hits",
    "priority",
    "longest",
    "created_hi",
    "created_lo",
)
"""The tree's own columns of the node table. `start` is a place in the token arena; `length` and `end` (the depth of
the node's end) count tokens; `next` links a bucket of the child table, and the free rows; `generation` tells the
nodes apart that one row has held; `longest` is the longest insert through the node, in tokens."""

_DEFAULT_NODES = 2**20
_DEFAULT_ARENA = 2**20
_MOST_TOKENS = MAX_INT32 - 2**16  # with what arrays are longer by than the runs that they hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Static, hashable description of a cache; equal configurations share compiled code.

    Attributes:
        components: kinds of state, each with a name of its own.
        page_size: tokens per page; the tree holds whole pages only.
        pools: component name -> slots in its pool. None, or no entry: the caller owns the allocator.
        policy: name (see `urc.policies.POLICIES`) or `Policy` by which leaves go.
        max_nodes: nodes, the root included. Default: one per page of the pool, so that the table never fills, but
            at most 2**20.
        arena_tokens: room for the tokens of all nodes and the holes between them; at least Full's pool. Default:
            half as much again as the pool, so that compaction is rare, or 2**20 where the caller owns the pool.
        max_key_len: longest key in tokens that a call takes.
        max_sessions: sessions that can be open at once.

    Raises:
        InvalidInput: a value out of range, with what would be right.

    """

    components: tuple[Component, ...] = (Full(),)
    page_size: int = 1
    pools: Any = None
    policy: Any = "lru"
    max_nodes: int = 0
    arena_tokens: int = 0
    max_key_len: int = 2**20
    max_sessions: int = 1024

    def __post_init__(self) -> None:
        """Fills in the defaults and checks everything."""
        fill = lambda **values: [object.__setattr__(self, k, v) for k, v in values.items()]
        components = (self.components,) if isinstance(self.components, Component) else self.components
        components = tuple(components) if isinstance(components, (list, tuple)) else ()
        if not components or not all(isinstance(c, Component) for c in components):
            raise InvalidInput(f"components must be urc.Component objects such as urc.Full(), got {self.components!r}")
        names = [c.name for c in components]
        if len(set(names)) != len(names):
            raise InvalidInput(f"components need distinct names, got {names}")
        if [c.is_base for c in components] != [True] + [False] * (len(components) - 1):
            raise InvalidInput(f"the first component, and only it, must be one that nodes live on, urc.Full(): {names}")
        try:
            policy = resolve(self.policy)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
        page = count("page_size", self.page_size, 1)
        pools = self.pools if self.pools is not None else {}
        if isinstance(pools, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pools):
            pools = dict(pools)  # as a configuration keeps it
        if not isinstance(pools, Mapping) or set(pools) - set(names):
            raise InvalidInput(f"pools maps names of components ({names}) to slots or None, got {self.pools!r}")
        sizes = tuple(
            (name, None if pools.get(name) is None else count(f"pools[{name!r}]", pools[name], 1)) for name in names
        )
        full = sizes[0][1]
        if full is not None and full < page:
            raise InvalidInput(f"the pool of {names[0]} ({full} slots) holds no page of {page} tokens")
        arena = count("arena_tokens", self.arena_tokens or 0, 0)
        if not arena:
            arena = _DEFAULT_ARENA if full is None else min(full + full // 2, _MOST_TOKENS)
        if full is not None and arena < full:
            raise InvalidInput(f"arena_tokens must be at least the pool of {names[0]} ({full}), got {arena}")
        if arena > _MOST_TOKENS:
            raise InvalidInput(f"arena_tokens must be at most {_MOST_TOKENS}, got {arena}")
        if arena < page:
            raise InvalidInput(f"arena_tokens must hold at least one page of {page} tokens, got {arena}")
        nodes = count("max_nodes", self.max_nodes or 0, 0)
        if not nodes:
            nodes = min((arena if full is None else full) // page + 1, _DEFAULT_NODES)
        fill(
            components=components,
            policy=policy,
            page_size=page,
            pools=sizes,
            arena_tokens=arena,
            max_nodes=count("max_nodes", nodes, 2 if full is None or full >= page else 1),
            max_key_len=count("max_key_len", self.max_key_len, 1),
            max_sessions=count("max_sessions", self.max_sessions, 0),
        )
        self._try_policy()

    def _try_policy(self) -> None:
        """InvalidInput unless the policy scores a node by three int32 words."""
        try:
            hash(self.policy)
            row = jax.eval_shape(lambda: Row.of(dict.fromkeys(self.node_columns, 0)))
            word = jax.ShapeDtypeStruct((), jnp.int32)
            score = [jnp.result_type(x) for x in jax.eval_shape(self.policy.score, row, (word, word))]
        except Exception as error:
            raise InvalidInput(f"policy {self.policy!r} scores no node: {type(error).__name__}: {error}") from error
        if score != [jnp.int32] * 3:
            raise InvalidInput(f"policy {self.policy!r} must score a node by three int32 words, got {score}")

    def __hash__(self) -> int:
        """Computed once per process: every call of a compiled function hashes its configuration."""
        if "_hash" not in self.__dict__:
            parts = (self.components, self.policy, self.page_size, self.pools, self.arena_tokens, self.max_nodes)
            object.__setattr__(self, "_hash", hash((*parts, self.max_key_len, self.max_sessions)))
        return self.__dict__["_hash"]

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which is another one in another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def pool_size(self, name: str) -> int | None:
        """Slots in a component's pool; None where the caller owns it."""
        return dict(self.pools)[name]

    def pool_room(self, name: str) -> int:
        """Entries of a component's pool: its slots; where the caller owns them, what one transition can free."""
        size = self.pool_size(name)
        return self.arena_tokens + self.page_size if size is None else size

    def component(self, name: str) -> Component:
        """A component by name; InvalidInput if there is none."""
        for component in self.components:
            if component.name == name:
                return component
        raise InvalidInput(f"unknown component {name!r}: this cache has {[c.name for c in self.components]}")

    @property
    def alignment(self) -> int:
        """Tokens between positions at which every component can leave a value."""
        return math.lcm(self.page_size, *(component.alignment for component in self.components))

    @property
    def node_columns(self) -> tuple[str, ...]:
        """Columns of the node table."""
        return NODE_COLUMNS + tuple(c.column(field) for c in self.components for field in COLUMNS)

    @property
    def node_rows(self) -> int:
        """Rows of the node table: the nodes, at least one spare row, whole blocks of the victim order."""
        return victims.padded_rows(self.max_nodes + 1)

    @property
    def buckets(self) -> int:
        """Heads of the child table."""
        return children.buckets(self.max_nodes)
