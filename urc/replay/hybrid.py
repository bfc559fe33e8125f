"""The replay for hybrid models, which keep SWA slots, Mamba states or both beside Full's slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from urc.cache import UnifiedRadixCache
from urc.components import SWA, Full, Mamba
from urc.config import MAX_INT32, CacheConfig
from urc.replay import engine
from urc.replay.engine import FULL, Cache, Match, Rate, Run, Served, rate_of
from urc.replay.trace import Request, Trace

WINDOW, STATE = "swa", "mamba"
COMPONENTS = (FULL, WINDOW, STATE)  # in the order in which a cache has them


class HybridMatch(Match, Protocol):
    """What the rule reads of a match."""

    @property
    def full_len(self) -> int: ...  # noqa: D102
    @property
    def hits(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def branching_len(self) -> int: ...  # noqa: D102


class HybridCache(Cache, Protocol):
    """What the rule needs of a cache: `urc.UnifiedRadixCache` has it."""

    def match_prefix(self, tokens: np.ndarray, /) -> HybridMatch: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """A hybrid model on one trace: what it keeps, and where its requests take checkpoints."""

    components: tuple[str, ...]  # of COMPONENTS, in their order
    window: int  # tokens; nothing without SWA
    interval: int  # tokens
    block_size: int  # tokens
    page_size: int = 1  # blocks
    branching: bool = True  # whether the branching point is taken

    @property
    def variant(self) -> str:
        """In words, whether the branching point is taken."""
        return f"{'with' if self.branching else 'without'} branching point"

    @property
    def window_blocks(self) -> int:
        """The window in blocks, rounded up."""
        return -(-self.window // self.block_size)

    @property
    def window_pages(self) -> int:
        """Blocks of the whole pages that a window needs."""
        return -(-self.window_blocks // self.page_size) * self.page_size

    def pools(self, capacity: int, *, states: int | None = None, swa: int | None = None) -> dict[str, int]:
        """Slots by component beside `capacity` blocks of Full.

        States: by default one for each interval that the capacity holds. SWA: by default a window for each of those
        states, but no more than the capacity.
        """
        states = states or -(-capacity * self.block_size // self.interval)
        swa = swa or min(states * self.window_pages, capacity)
        slots = {FULL: capacity, WINDOW: swa, STATE: states}
        return {name: slots[name] for name in self.components}

    def checkpoints(self, start: int, end: int, branching_len: int) -> list[int]:
        """Where a request takes checkpoints that computes the blocks from `start` to `end`, the best first.

        The end, the branching point, then the multiples of the interval, the last one first, each rounded down to
        whole pages.
        """
        branch = [branching_len] if self.branching and branching_len else []
        first, last = (blocks * self.block_size // self.interval for blocks in (start, end))
        page = self.block_size * self.page_size
        regular = [step * self.interval // page * self.page_size for step in range(last, first, -1)]
        return [at for at in dict.fromkeys([end, *branch, *regular]) if at > start]

    def needs(self, start: int, checkpoints: Sequence[int]) -> dict[str, int]:
        """Slots by component for a request that computes from `start` and takes these checkpoints."""
        steps = [at - before for before, at in pairwise([start, *sorted(checkpoints)])]
        slots = {FULL: sum(steps), WINDOW: sum(min(step, self.window_pages) for step in steps), STATE: len(steps)}
        return {name: slots[name] for name in self.components}


class Outcome(NamedTuple):
    """What became of one request. Lengths in blocks of its input; all 0 if it was refused."""

    served: Served
    full: int = 0  # that Full alone had
    stated: int = 0  # of these, up to the last Mamba state; without Mamba all
    taken: int = 0  # states, duplicates included
    untaken: int = 0  # states for which there was no slot
    growth: int = 0  # of the states that the cache holds


def serve(cache: HybridCache, request: Request, model: Hybrid) -> Outcome:
    """Serves one request: the hybrid rule of the replay.

    Match the input and lock its node. The request computes everything from `device_len` on, its output included, and
    passes checkpoints: every multiple of the interval beyond `device_len`, rounded down to whole pages; where the
    branching point is taken and `branching_len > 0`, that; the end of its whole pages. At each of them it needs a
    Mamba state, and the SWA slots of the last window, those before the previous checkpoint excepted: nobody can
    resume elsewhere, so it has given the others up. It needs Full slots for all that it computes.

    What exceeds the free slots is evicted, each component's shortfall exactly, in one call. If there are still too
    few states, the least useful checkpoints are left out (the order of usefulness: the end, the branching point, the
    multiples, the last one first); without any state the whole is inserted as one. If too few Full or SWA slots could
    be freed, the request is refused: it hits nothing and inserts nothing, but the eviction has happened.

    Each checkpoint in turn is an insert of all tokens up to it. Slots in nodes that are there already are duplicates,
    which are freed; SWA slots where the tree has a tombstone recover it. Nothing is evicted in between. Unlock.

    Only whole pages of filled blocks take part: a state at the end of a block that the input fills in part would stand
    where no longer input can resume, as the next one has another block there. A request that finds everything there,
    output included, inserts nothing.
    """
    filled = min(request.input_blocks, request.input_length // model.block_size)
    blocks = len(request.ids) - (request.input_blocks - filled)
    ids = request.ids[: blocks // model.page_size * model.page_size]
    hit = cache.match_prefix(request.ids[:filled])
    start, end, full = hit.device_len, len(ids), hit.full_len
    stated = hit.hits.get(STATE, full)
    if start == end:
        return Outcome(Served(start, None, False), full, stated)
    receipt = cache.lock(hit.node)
    try:
        wanted = model.checkpoints(start, end, hit.branching_len)
        room, evicted = _make_room(cache, model.needs(start, wanted))
        freed, dropped = evicted.get(FULL), evicted.get(STATE, 0)
        taken = sorted(wanted[: room.get(STATE, len(wanted))])
        stops = taken or [end]
        needs = model.needs(start, stops) | ({} if taken else {STATE: 0})
        if any(needs[name] > room[name] for name in room):
            return Outcome(Served(0, freed, True), growth=-dropped)
        fresh: dict[str, Any] = {name: cache.alloc(name, needs[name]) for name in room}
        held, adopted = np.concatenate([hit.slots[FULL], fresh[FULL]]), 0
        for before, at in pairwise([start, *stops]):
            slots, given_up = {FULL: held[:at]}, {}
            if WINDOW in room:
                given_up[WINDOW] = first = max(before, at - model.window_pages)
                slots[WINDOW] = np.concatenate([np.full(first, -1, np.int32), fresh[WINDOW][: at - first]])
                fresh[WINDOW] = fresh[WINDOW][at - first :]
            if STATE in room:
                slots[STATE], fresh[STATE] = fresh[STATE][:1], fresh[STATE][1:]
            inserted = before if before > start else 0
            result = cache.insert(ids[:at], slots, prev_prefix_len=before, inserted_len=inserted, evicted_len=given_up)
            adopted += len(result.adopted.get(STATE, ()))
    finally:
        cache.unlock(receipt)
    served = Served(start, freed, False)
    if STATE not in room:
        return Outcome(served, full, stated)
    return Outcome(served, full, stated, len(taken), len(wanted) - len(taken), adopted - dropped)


def _make_room(cache: HybridCache, needs: Mapping[str, int]) -> tuple[dict[str, int], Mapping[str, int]]:
    """Evicts what exceeds the free slots: the slots that are free by component, and those evicted, if any had to be."""
    sizes = cache.sizes()
    short = {name: n - sizes[name].free for name, n in needs.items() if n > sizes[name].free}
    evicted = cache.evict(short).evicted if short else {}
    return {name: sizes[name].free + evicted.get(name, 0) for name in needs}, evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRun(Run):
    """The result of one trace through one cache under the hybrid rule, with or without the branching point."""

    model: Hybrid
    pools: dict[str, int]  # slots by component
    full: Rate  # what Full alone had of the inputs in this cache
    stated: Rate  # of this, what lies before the last Mamba state; without Mamba all
    taken: int  # states, duplicates included
    untaken: int  # states for which there was no slot
    held: int  # states in the end
    peak: int  # the most states held after a request

    @property
    def label(self) -> str:
        """What tells runs of one capacity apart."""
        return f"{self.policy}, {self.model.variant}"

    @property
    def lost(self) -> dict[str, Rate]:
        """By component, the rate of what Full alone had but the request could not use for want of it.

        Mamba: what lies beyond the last state. SWA: what else there is: a state is there, but the window before it is
        broken.
        """
        lost = {WINDOW: self.stated - self.rate, STATE: self.full - self.stated}
        return {name: rate for name, rate in lost.items() if name in self.model.components}


def replay(
    trace: Trace,
    cache: HybridCache,
    model: Hybrid,
    *,
    pools: dict[str, int],
    policy: str,
    on_progress: Callable[[int], None] = lambda served: None,
) -> HybridRun:
    """Replays `trace` through an empty cache of `pools` by the hybrid rule; `policy` is for the result."""
    outcomes: list[Outcome] = []

    def rule(cache: HybridCache, request: Request) -> Served:
        outcomes.append(serve(cache, request, model))
        return outcomes[-1].served

    run = engine.replay(
        trace,
        cache,
        capacity=pools[FULL],
        policy=policy,
        page_size=model.page_size,
        rule=rule,
        on_progress=on_progress,
    )
    held = list(accumulate(outcome.growth for outcome in outcomes))
    return HybridRun(
        **{field.name: getattr(run, field.name) for field in fields(run)},
        model=model,
        pools=pools,
        full=rate_of(trace, [outcome.full for outcome in outcomes]),
        stated=rate_of(trace, [outcome.stated for outcome in outcomes]),
        taken=sum(outcome.taken for outcome in outcomes),
        untaken=sum(outcome.untaken for outcome in outcomes),
        held=held[-1] if held else 0,
        peak=max(held, default=0),
    )


def open_cache(*, slots: Mapping[str, int], pools: Mapping[str, int], policy: str, model: Hybrid) -> HybridCache:
    """Makes an empty cache of `pools`; as `engine.open_cache`, its arrays have room for `slots` >= `pools`."""
    kinds = {
        FULL: Full(split_refreshes=True),
        WINDOW: SWA(window=model.window_blocks),
        STATE: Mamba(),
    }
    config = CacheConfig(
        components=tuple(kinds[name] for name in model.components),
        page_size=model.page_size,
        pools=dict(slots),
        policy=policy,
        max_nodes=slots[FULL] // model.page_size + 1,
        max_key_len=MAX_INT32,
    )
    cache = UnifiedRadixCache(config)
    for name, pool in pools.items():
        if slots[name] > pool:
            cache.alloc(name, slots[name] - pool)
    return cache
