"""The replay of one trace through one cache, and what an infinite cache would have hit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from urc.cache import UnifiedRadixCache
from urc.components import Full
from urc.config import MAX_INT32, CacheConfig
from urc.replay.trace import Request, Trace

FULL = "full"
CHUNK = 64  # requests served between two reports of progress
POINTS = 120  # at most, of a hit-rate series


class Match(Protocol):
    """What the replay reads of a match."""

    @property
    def device_len(self) -> int: ...  # noqa: D102
    @property
    def node(self) -> int: ...  # noqa: D102
    @property
    def slots(self) -> Mapping[str, np.ndarray]: ...  # noqa: D102


class Cache(Protocol):
    """What the replay needs of a cache: `urc.UnifiedRadixCache` has it."""

    def match_prefix(self, tokens: np.ndarray, /) -> Match: ...  # noqa: D102
    def lock(self, node: int, /) -> Any: ...  # noqa: D102
    def unlock(self, receipt: Any, /) -> Any: ...  # noqa: D102
    def sizes(self) -> Mapping[str, Any]: ...  # noqa: D102
    def evict(self, targets: dict[str, int], /) -> Any: ...  # noqa: D102
    def alloc(self, name: str, n: int, /) -> np.ndarray | None: ...  # noqa: D102
    def insert(  # noqa: D102
        self,
        tokens: np.ndarray,
        slots: dict[str, np.ndarray],
        /,
        *,
        prev_prefix_len: int,
        inserted_len: int = 0,
        evicted_len: dict[str, int] | None = None,
    ) -> Any: ...


class Served(NamedTuple):
    """What became of one request. All in blocks but `refused`."""

    matched: int  # of the input; 0 if refused
    evicted: int | None  # None: nothing had to be evicted
    refused: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """A hit rate of a trace's inputs, by blocks and by tokens; 0 of an empty input."""

    matched_blocks: int
    input_blocks: int
    matched_tokens: int
    input_tokens: int

    @property
    def blocks(self) -> float:
        """Matched input blocks / input blocks."""
        return self.matched_blocks / max(self.input_blocks, 1)

    @property
    def tokens(self) -> float:
        """Matched input tokens / input tokens."""
        return self.matched_tokens / max(self.input_tokens, 1)

    def __sub__(self, other: Rate) -> Rate:
        """What this one matched of the same inputs and `other`, which matched less, did not."""
        blocks, tokens = self.matched_blocks - other.matched_blocks, self.matched_tokens - other.matched_tokens
        return Rate(blocks, self.input_blocks, tokens, self.input_tokens)


class Ideal(NamedTuple):
    """What an infinite cache makes of a trace."""

    rate: Rate
    blocks: int  # that it holds in the end


class Point(NamedTuple):
    """Sums over the first requests of a replay."""

    requests: int
    matched: int  # input blocks
    asked: int  # input blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one trace at one capacity under one policy."""

    capacity: int  # blocks
    policy: str
    page_size: int  # blocks
    requests: int
    rate: Rate
    evicted: int  # blocks
    evict_calls: int
    refused: int  # requests for which not enough could be freed
    seconds: float  # wall clock, compilation included
    compile_seconds: float | None = None  # of these; runs of one policy share it; None: not told apart
    requests_per_second: float  # of the median chunk of requests, so that compilation does not count
    series: tuple[Point, ...]  # at most POINTS, evenly spaced, the last at the end

    @property
    def label(self) -> str:
        """What tells runs of one capacity apart."""
        return self.policy


def serve(cache: Cache, request: Request, *, page_size: int = 1) -> Served:
    """Serves one request: the rule of the replay.

    Match the input; where the output enters the cache too, match the whole sequence, which counts
    for what follows but not as a hit. Lock the node; if the free slots do not cover the rest, evict
    exactly the shortfall; allocate; insert with the tree's slots for the prefix; unlock. Whole
    leaves are evicted, so more may be freed than was asked for. Where nothing is left to insert, no
    insert is made, and the request counts as a match only. If too little can be freed the request is
    refused: it hits nothing and inserts nothing, but the eviction has happened.

    Only whole pages take part: the blocks of a last, partial page are missed and never cached.
    """
    ids = request.ids[: len(request.ids) // page_size * page_size]
    if not len(ids):
        return Served(0, None, False)
    hit = cache.match_prefix(request.ids[: request.input_blocks])
    prefix = hit if request.input_blocks == len(request.ids) else cache.match_prefix(ids)
    rest = len(ids) - prefix.device_len
    if not rest:
        return Served(hit.device_len, None, False)
    receipt = cache.lock(prefix.node)
    try:
        shortfall = rest - cache.sizes()[FULL].free
        evicted = cache.evict({FULL: shortfall}).evicted[FULL] if shortfall > 0 else None
        fresh = cache.alloc(FULL, rest)
        if fresh is None:
            return Served(0, evicted, True)
        slots = {FULL: np.concatenate([prefix.slots[FULL], fresh])}
        cache.insert(ids, slots, prev_prefix_len=prefix.device_len)
    finally:
        cache.unlock(receipt)
    return Served(hit.device_len, evicted, False)


def replay(
    trace: Trace,
    cache: Cache,
    *,
    capacity: int,
    policy: str,
    page_size: int = 1,
    rule: Callable[[Any, Request], Served] | None = None,
    on_progress: Callable[[int], None] = lambda served: None,
) -> Run:
    """Replays `trace` through an empty cache; the rest says which cache it is, for the result.

    Args:
      trace: the requests.
      cache: empty, of `capacity` blocks and pages of `page_size` blocks.
      capacity: blocks that the cache holds.
      policy: the name of its eviction policy.
      page_size: blocks of a page.
      rule: serves one request; `serve` by default.
      on_progress: called now and then with the number of requests served since the last call.

    """
    rule = rule or partial(serve, page_size=page_size)
    served: list[Served] = []
    speeds: list[float] = []
    start = time.perf_counter()
    for first in range(0, len(trace.requests), CHUNK):
        chunk = trace.requests[first : first + CHUNK]
        began = time.perf_counter()
        served.extend(rule(cache, request) for request in chunk)
        speeds.append(len(chunk) / (time.perf_counter() - began))
        on_progress(len(chunk))
    seconds = time.perf_counter() - start
    return run_of(trace, served, capacity=capacity, policy=policy, page_size=page_size, seconds=seconds, speeds=speeds)


def run_of(
    trace: Trace,
    served: Sequence[Served],
    *,
    capacity: int,
    policy: str,
    page_size: int,
    seconds: float,
    speeds: Sequence[float],
    compile_seconds: float | None = None,
) -> Run:
    """Adds up what became of the requests of a trace; `speeds`: requests per second of each chunk of them."""
    matched = [s.matched for s in served]
    evicted = [s.evicted for s in served if s.evicted is not None]
    return Run(
        capacity=capacity,
        policy=policy,
        page_size=page_size,
        requests=len(served),
        rate=rate_of(trace, matched),
        evicted=sum(evicted),
        evict_calls=len(evicted),
        refused=sum(s.refused for s in served),
        seconds=seconds,
        compile_seconds=compile_seconds,
        requests_per_second=statistics.median(speeds) if speeds else 0.0,
        series=_series([r.input_blocks for r in trace.requests], matched),
    )


def config_of(*, slots: int, policy: str, page_size: int = 1) -> CacheConfig:
    """What the caches of a replay are, of `slots` blocks; one token stands for one block.

    A split counts as an access of both parts, as in SGLang 0.5.23, whose hit rates are reproduced.
    """
    return CacheConfig(
        components=(Full(split_refreshes=True),),
        page_size=page_size,
        pools={FULL: slots},
        policy=policy,
        max_nodes=slots // page_size + 1,
        max_key_len=MAX_INT32,
    )


def open_cache(*, slots: int, capacity: int, policy: str, page_size: int = 1) -> Cache:
    """Makes an empty cache of `capacity` blocks.

    Its pool has `slots` >= `capacity` of them, the rest being held back: caches with equally many slots share
    compiled code.
    """
    cache = UnifiedRadixCache(config_of(slots=slots, policy=policy, page_size=page_size))
    if slots > capacity:
        cache.alloc(FULL, slots - capacity)
    return cache


def ideal(trace: Trace, *, page_size: int = 1) -> Ideal:
    """Replays `trace` through a cache without limits: each input against all that was served before."""
    children: dict[tuple[int, ...], int] = {}  # (node, *page) -> node
    matched = []
    for request in trace.requests:
        ids = request.ids.tolist()
        node, depth = 0, 0
        for end in range(page_size, len(ids) + 1, page_size):
            edge = (node, *ids[end - page_size : end])
            if edge in children and end <= request.input_blocks:
                depth = end
            node = children.setdefault(edge, len(children) + 1)
        matched.append(depth)
    return Ideal(rate_of(trace, matched), len(children) * page_size)


def rate_of(trace: Trace, matched: Sequence[int]) -> Rate:
    """The hit rate of a trace of whose requests so many input blocks were matched, each."""
    tokens = (
        min(blocks * trace.block_size, request.input_length)  # a Mooncake input's last block may be partial
        for request, blocks in zip(trace.requests, matched, strict=True)
    )
    return Rate(sum(matched), trace.input_blocks, sum(tokens), trace.input_tokens)


def _series(inputs: Sequence[int], matched: Sequence[int]) -> tuple[Point, ...]:
    """Sums at the ends of at most `POINTS` windows of equal length."""
    total = len(inputs)
    ends = sorted({-(-total * window // POINTS) for window in range(1, POINTS + 1)}) if total else []
    hits, asked = np.cumsum(matched), np.cumsum(inputs)
    return tuple(Point(end, int(hits[end - 1]), int(asked[end - 1])) for end in ends)
