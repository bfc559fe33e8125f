"""Compiling ahead: all programs that a scheduler's calls will need."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from urc import compiled
from urc.arguments import LEAST_WIDTH, batch_width, count, sequence, width
from urc.errors import CacheFull, InvalidInput
from urc.handle.batches import BatchCalls
from urc.results import Request

LONE = ("match_prefix", "probe", "insert", "alloc", "begin", "extend", "commit_unfinished", "commit_finished", "abort")
"""Calls that are compiled for each length."""

BY_SLOTS = ("alloc", "extend", "abort")
"""Of these, those that are compiled for numbers of slots, of which there may be any up to a key's length."""

BATCHED = ("step", "match_prefixes", "probes", "begin_all", "insert_all")
"""Calls that are compiled for each length and each number of requests."""

FIXED = ("evict", "lock", "lock_all", "sessions")
"""Calls that are compiled once, or once for each number."""

Task = Callable[["WarmCalls"], object]


class Warmed(NamedTuple):
    """What a warm-up took: calls made on an empty cache, each with another shape; seconds."""

    calls: int
    seconds: float


class WarmCalls(BatchCalls):
    """The handle, and how it is made ready."""

    def warmup(
        self,
        *,
        tokens: int | Sequence[int],
        batch: int | Sequence[int] = 1,
        extend: int = 0,
        calls: Sequence[str] = ("step", "extend", "commit_unfinished", "abort", *FIXED),
    ) -> Warmed:
        """Compiles what `calls` need, so that afterwards none of them compiles within these bounds.

        A key is padded to a power of two from 128 on, a batch to a power of two, and each combination is a program of
        its own. They compile side by side, on all cores. With JAX's persistent compilation cache
        (`jax_compilation_cache_dir`) the next process reads them from there. Nothing of this cache changes; an empty
        one of the same size is made for each core meanwhile.

        Args:
            tokens: the longest key, for all widths up to it; or several lengths, for their widths alone.
            batch: the largest batch, for all sizes up to it; or several, for these alone.
            extend: what `step` is called with.
            calls: names out of `LONE`, `BATCHED` and `FIXED`; `alloc` goes with `free`, `lock` with `unlock` and
                `release_early`, and so do the batched forms.

        """
        widths = _upto(tokens, "tokens", LEAST_WIDTH, width, self.config.max_key_len)
        sizes = _upto(batch, "batch", 1, batch_width, 2**20)
        names = sequence("calls", calls)
        if unknown := set(names) - {*LONE, *BATCHED, *FIXED}:
            raise InvalidInput(f"calls: {sorted(unknown)} are none of {', '.join((*LONE, *BATCHED, *FIXED))}")
        start, more = time.perf_counter(), count("extend", extend)
        tasks: list[Task] = []
        for name in names:
            if name in BATCHED:
                tasks += [partial(_batched, name, w, b, more) for w in reversed(widths) for b in reversed(sizes)]
            elif name in LONE:
                lengths = _upto(max(widths), "", LEAST_WIDTH, width, max(widths)) if name in BY_SLOTS else widths
                tasks += [partial(_lone, name, w) for w in reversed(lengths)]
            elif name == "lock_all":
                tasks += [partial(_locks, b) for b in sizes]
            else:
                tasks.append(partial(_fixed, name))
        workers = min(os.cpu_count() or 1, len(tasks)) or 1
        idle: SimpleQueue[WarmCalls] = SimpleQueue()
        for _ in range(workers):
            idle.put(type(self)(self.config))

        def run(task: Task) -> None:
            cache = idle.get()
            try:
                task(cache)
            finally:
                idle.put(cache)

        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(run, task) for task in tasks]:
                done.result()
        return Warmed(len(tasks), time.perf_counter() - start)


def _upto(given: int | Sequence[int], what: str, least: int, padded: Callable[[int], int], most: int) -> list[int]:
    """The padded sizes up to one, or those of several."""
    if isinstance(given, Iterable):
        return sorted({padded(count(what, each, 1, most)) for each in given})
    top, sizes = padded(count(what, given, 1, most)), [least]
    while sizes[-1] < top:
        sizes.append(2 * sizes[-1])
    return sizes


def _key(cache: WarmCalls, length: int) -> np.ndarray:
    return np.zeros(min(length, cache.config.max_key_len), np.int32)


def _as_refused(call: Callable[..., Any], *given: Any, **options: Any) -> None:
    """A call that compiles, runs and is refused, or not: it does not matter."""
    with suppress(InvalidInput, CacheFull):
        call(*given, **options)


def _slots(cache: WarmCalls, key: np.ndarray) -> dict[str, np.ndarray]:
    """Slots for a key of whose prefix all is said to be in the tree, which it is not."""
    page = cache.config.page_size
    return {c.name: np.zeros(c.counts(len(key), len(key) // page * page)[0], np.int32) for c in cache.config.components}


def _whole(cache: WarmCalls, key: np.ndarray) -> int:
    return len(key) // cache.config.page_size * cache.config.page_size


def _batched(name: str, length: int, size: int, more: int, cache: WarmCalls) -> None:
    keys = [_key(cache, length)] * size
    if name == "insert_all":
        slots, prefix = [_slots(cache, keys[0])] * size, [_whole(cache, keys[0])] * size
        cache.insert_all(keys, slots, prev_prefix_lens=prefix)
    elif name == "step":
        shorter = [key[: max(cache.config.max_key_len - more, 0)] for key in keys]  # a request may be no longer
        for request in cache.step(begin=shorter, extend=more).begun:
            if request is not None:
                cache._over(request)
        cache.reset()
    else:
        getattr(cache, name)(keys)
        cache.reset()


def _lone(name: str, length: int, cache: WarmCalls) -> None:
    key = _key(cache, length)
    if name in ("match_prefix", "probe"):
        getattr(cache, name)(key)
    elif name == "insert":
        _as_refused(cache.insert, key, _slots(cache, key), prev_prefix_len=_whole(cache, key))
    elif name == "alloc":
        for component in cache._names:
            slots = cache.alloc(component, min(length, cache.config.pool_room(component)))
            if slots is not None:
                cache.free(component, slots)
    elif name == "begin":
        cache.begin(key)
    else:
        request = _request(cache)
        rest = min(length, *(cache.config.pool_room(c.name) for c in cache.config.components if not c.copies_on_write))
        cache.extend(request, rest)
        if name == "abort":
            cache.abort(request)
        elif name.startswith("commit"):
            getattr(cache, name)(request, key[: request.length])
    cache.reset()


def _request(cache: WarmCalls) -> Request:
    """A request as one begins that finds nothing, without the program of that; its own state is in any slot."""
    form = cache._form(LEAST_WIDTH)
    request = cache._begun(
        [0] * cache._begun_fields, np.zeros(form.size, np.int32), form, np.empty(0, np.int32), None, None
    )
    assert request is not None
    return request


def _locks(size: int, cache: WarmCalls) -> None:
    cache.unlock_all(cache.lock_all([0] * size))


def _fixed(name: str, cache: WarmCalls) -> None:
    if name == "evict":
        cache.evict({})
    elif name == "lock":
        cache.unlock(cache.lock(0))
        for component in cache.config.components:
            if not component.is_base:  # of the root there is nothing to give back, which it finds out
                numbers = np.zeros(3 + len(cache._names), np.int32)
                cache._call(compiled.release_early, numbers, name=component.name)
    else:
        session = cache.open_session()
        cache.advance_session(session, 0)
        cache.recede_session(session, 0)
        cache.close_session(session)
