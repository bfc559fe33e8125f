"""urc: the unified radix cache for JAX.

Prefix caching for hybrid language models on one radix tree: the cache is one immutable pytree of fixed-capacity
arrays, and every transition a pure function that compiles. `UnifiedRadixCache` is the handle for a serving stack;
`urc.ops` are the functions, for use under a caller's own jit, scan, vmap and shard_map.
"""

from urc import ops, policies, testing
from urc.cache import UnifiedRadixCache
from urc.components import SWA, Component, Full, Mamba
from urc.config import CacheConfig
from urc.errors import CacheFull, InvalidInput, InvariantError, Status, Stop
from urc.program import jit_options
from urc.results import (
    CommitBatch,
    CommitResult,
    EvictResult,
    InsertBatch,
    InsertResult,
    MatchBatch,
    MatchResult,
    NodeView,
    Receipt,
    Request,
    Sizes,
)
from urc.state import CacheState, init

__version__ = "0.1.0"

__all__ = [
    "SWA",
    "CacheConfig",
    "CacheFull",
    "CacheState",
    "CommitBatch",
    "CommitResult",
    "Component",
    "EvictResult",
    "Full",
    "InsertBatch",
    "InsertResult",
    "InvalidInput",
    "InvariantError",
    "Mamba",
    "MatchBatch",
    "MatchResult",
    "NodeView",
    "Receipt",
    "Request",
    "Sizes",
    "Status",
    "Stop",
    "UnifiedRadixCache",
    "init",
    "jit_options",
    "ops",
    "policies",
    "testing",
]
