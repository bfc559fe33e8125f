"""SGLang 0.5.23's UnifiedRadixCache on a CPU, and what is measured of it. Needs `sglang_standins.install` first.

The tree cores, the controller, the components and the allocators are the published wheel's. Below them are pools of
nothing: no keys and values, no states, as nothing that is measured reads any. And what is freed waits in a queue until
an allocation needs it: the wheel's own free lists are copied whole at each free, which a GPU hardly notices, but which
on a CPU would cost more than the tree.
"""

# pyright: reportMissingImports=false
import logging
from array import array
from functools import partial

import numpy as np
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from workload import BATCH, LEAVES, NEW, STEP, WINDOW, Tree, undisturbed

STATE_EVERY = 64  # tokens between two places at which a Mamba state may be kept; no more than a page of 64

torch.set_num_threads(1)
logging.disable(logging.INFO)


class _Tokens(TokenToKVPoolAllocator):
    """The wheel's allocator of single slots, whose frees wait in a queue."""

    def clear(self) -> None:
        super().clear()
        self.queue, self.queued = [], 0

    def available_size(self) -> int:
        return super().available_size() + self.queued

    def alloc(self, need_size: int):
        if need_size > len(self.free_pages):
            self.free_pages = torch.cat([self.free_pages, *self.queue])
            self.queue, self.queued = [], 0
        return super().alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        self.queue.append(free_index)
        self.queued += len(free_index)


class _Pages(PagedTokenToKVPoolAllocator):
    """The wheel's allocator of whole pages, with its own queue, but joined without sorting."""

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        self.staged_pages.extend(page_ids)
        self.num_staged_pages += sum(len(ids) for ids in page_ids)

    def merge_and_sort_free(self) -> None:
        self.free_pages, self.staged_pages, self.num_staged_pages = self.get_all_free_pages(), [], 0


class _NoKeysAndValues(BaseSWAKVPool):
    """A pool that holds nothing."""

    def __init__(self) -> None:
        pass

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        return self.full_to_swa_index_mapping[kv_indices]


_NoKeysAndValues.__abstractmethods__ = frozenset()


class _NoStates(HybridReqToTokenPool):
    """The slots of Mamba states, without the states."""

    def __init__(self, size: int) -> None:
        self.mamba_allocator = MambaSlotAllocator(size, "cpu")


def _allocator(pools: dict[str, int], page: int):
    single, options = _Tokens if page == 1 else _Pages, {"dtype": torch.bfloat16, "device": "cpu", "need_sort": False}
    if "swa" not in pools:
        size = {} if page == 1 else {"page_size": page}
        return single(pools["full"], kvcache=None, **size, **options)
    both = SWATokenToKVPoolAllocator(
        pools["full"], size_swa=pools["swa"], page_size=page, kvcache=_NoKeysAndValues(), **options
    )
    for part in (both.full_attn_allocator, both.swa_attn_allocator):
        part.__class__ = single
        part.clear()
    return both


class Cache:
    """One cache, with the few calls that a scheduler makes."""

    def __init__(self, core: str, pools: dict[str, int], page: int, policy: str) -> None:
        arguments = ServerArgs(model_path="none", page_size=page)
        arguments._mamba_cache_chunk_size = max(STATE_EVERY, page)
        set_global_server_args_for_scheduler(arguments)
        self.page, self.names = page, list(pools)
        self.allocator = _allocator(pools, page)
        self.states = _NoStates(pools.get("mamba", 1))
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.states,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page,
                eviction_policy=policy,
                sliding_window_size=WINDOW if "swa" in pools else None,
                tree_components=tuple(ComponentType[name.upper()] for name in pools),
                enable_mamba_extra_buffer="mamba" in pools and page > 1,
                tree_core_backend=core,
            )
        )
        if self.tree._tree_core_backend != core:
            raise RuntimeError(f"the {core} core was asked for, {self.tree._tree_core_backend} came")

    def alloc(self, count: int) -> torch.Tensor:
        """Full slots, with one of SWA behind each where there are any."""
        if "swa" not in self.names:
            return self.allocator.alloc(count)
        full = self.allocator.full_attn_allocator.alloc(count)
        self.allocator.set_full_to_swa_mapping(full, self.allocator.swa_attn_allocator.alloc(count))
        return full

    def free(self) -> int:
        return self.allocator.full_available_size() if "swa" in self.names else self.allocator.available_size()

    def insertion(self, key: RadixKey, row: torch.Tensor, known: int) -> InsertParams:
        state = self.states.mamba_allocator.alloc(1) if "mamba" in self.names else None
        return InsertParams(key=key, value=row, mamba_value=state, prev_prefix_len=known)

    def match(self, params: MatchPrefixParams):
        return self.tree.match_prefix(params)

    def evict(self, tokens: int) -> int:
        return self.tree.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted

    def lock(self, node) -> tuple:
        return node, self.tree.inc_lock_ref(node).to_dec_params()

    def unlock(self, receipt: tuple) -> None:
        self.tree.dec_lock_ref(*receipt)


def key_of(tokens: np.ndarray) -> RadixKey:
    return RadixKey(array("q", np.asarray(tokens, np.int64).tobytes()))


class Subject:
    """A cache that holds the tree; each operation prepares, is timed, and is undone. Returns (seconds, answers)."""

    def __init__(self, core: str, tree: Tree, pools: dict[str, int], page: int) -> None:
        self.tree, self.cache = tree, Cache(core, pools, page, "filo")
        self.known = tree.tokens - NEW
        self.running: list[tuple] = []
        for tokens, shared in tree.inserts():
            self._insert(tokens, shared)
        self.free = self.cache.free()

    def _insertion(self, tokens: np.ndarray, known: int) -> InsertParams:
        """Slots below `known` are not looked at."""
        row = torch.cat([torch.zeros(known, dtype=torch.int64), self.cache.alloc(len(tokens) - known)])
        return self.cache.insertion(key_of(tokens), row, known)

    def _insert(self, tokens: np.ndarray, known: int) -> None:
        self.cache.tree.insert(self._insertion(tokens, known))

    def _undo(self, tokens: int) -> None:
        """Takes out the newest leaves, of so many tokens."""
        if tokens:
            self.cache.evict(tokens)
        if self.cache.free() != self.free:
            raise RuntimeError("a round was not undone")

    def match(self, number: int) -> tuple[float, list[int]]:
        given = [MatchPrefixParams(key=key_of(key)) for key in self.tree.round(number, BATCH)]
        match = self.cache.tree.match_prefix
        seconds, found = undisturbed(lambda: [match(params) for params in given])
        return seconds, [match.device_prefix_len for match in found]

    def insert(self, number: int) -> tuple[float, list[int]]:
        given = [self._insertion(key, self.known) for key in self.tree.round(number, BATCH)]
        insert = self.cache.tree.insert
        seconds, done = undisturbed(lambda: [insert(params) for params in given])
        self._undo(BATCH * NEW)
        return seconds, [result.prefix_len for result in done]

    def _leaves(self, number: int, count: int) -> int:
        """Puts in leaves like the tree's, for an eviction to take out. Returns the tokens of each."""
        leaf = self.tree.levels[-1][0]
        for key in self.tree.round(number, count, leaves=True):
            self._insert(key, len(key) - leaf)
        return leaf

    def evict(self, number: int) -> tuple[float, list[int]]:
        leaf = self._leaves(number, BATCH)
        params, evict = EvictParams(num_tokens=1), self.cache.tree.evict
        seconds, done = undisturbed(lambda: [evict(params) for _ in range(BATCH)])
        answers = [result.num_tokens_evicted for result in done]
        self._undo(BATCH * leaf - sum(answers))  # with SWA a leaf is cut where its window begins
        return seconds, answers

    def evict_many(self, number: int) -> tuple[float, list[int]]:
        leaf = self._leaves(number, LEAVES)
        seconds, done = undisturbed(lambda: [self.cache.evict(LEAVES * leaf)])
        self._undo(LEAVES * leaf - sum(done))
        return seconds, done

    def lock(self, number: int) -> tuple[float, list[int]]:
        found = [self.cache.match(MatchPrefixParams(key=key_of(key))) for key in self.tree.round(number, BATCH)]
        nodes, tree = [match.last_device_node for match in found], self.cache.tree

        def pairs() -> None:
            held = [tree.inc_lock_ref(node).to_dec_params() for node in nodes]
            for node, params in zip(nodes, held, strict=True):
                tree.dec_lock_ref(node, params)

        return undisturbed(pairs)[0], [match.device_prefix_len for match in found]

    def start_steps(self) -> None:
        """Holds all free slots but those of one step, so that each step has to evict what it needs."""
        self.cache.alloc(self.free - STEP * NEW)

    def step(self, number: int) -> tuple[float, list[int]]:
        keys = [key_of(key) for key in self.tree.round(number, STEP)]
        given = [(key, MatchPrefixParams(key=key)) for key in keys]
        seconds, answers = undisturbed(partial(self._step, given))
        return seconds, [*answers, self.cache.free()]

    def _step(self, given: list[tuple]) -> list[int]:
        cache, tree, answers = self.cache, self.cache.tree, []
        for key, row, known, receipt in self.running:
            answers.append(tree.insert(cache.insertion(key, row, known)).prefix_len)
            cache.unlock(receipt)
        found, wanted = [], []
        for key, params in given:
            match = cache.match(params)
            found.append((key, match.device_prefix_len, cache.lock(match.last_device_node)))
            wanted.append(len(key) - match.device_prefix_len)
        if (short := sum(wanted) - cache.free()) > 0:
            cache.evict(short)
        self.running = []
        for (key, known, receipt), fresh in zip(found, cache.alloc(sum(wanted)).split(wanted), strict=True):
            row = torch.cat([tree.path_device_indices(receipt[0]), fresh])
            self.running.append((key, row, known, receipt))
            answers.append(known)
        return answers


class Replay:
    """A trace, block by block; its keys are made before the clock runs."""

    def __init__(self, requests: list, page: int) -> None:
        self.page = page
        self.requests = []
        for ids, inputs in requests:
            whole = np.array(ids[: len(ids) // page * page], np.int64)
            self.requests.append((key_of(np.array(ids[:inputs], np.int64)), key_of(whole), inputs == len(ids)))

    def run(self, core: str, capacity: int, policy: str) -> tuple[float, list[int]]:
        """(seconds, [input blocks matched, blocks evicted, calls that evicted, refused])."""
        cache = Cache(core, {"full": capacity}, self.page, policy)
        return undisturbed(partial(self._run, cache))

    def _run(self, cache: Cache) -> list[int]:
        matched = evicted = calls = refused = 0
        ignored = torch.zeros(max(len(whole) for _, whole, _ in self.requests), dtype=torch.int64)
        for asked, whole, same in self.requests:
            if not len(whole):
                continue
            hit = cache.match(MatchPrefixParams(key=asked))
            prefix = hit if same else cache.match(MatchPrefixParams(key=whole))
            known, rest = prefix.device_prefix_len, len(whole) - prefix.device_prefix_len
            if not rest:
                matched += hit.device_prefix_len
                continue
            receipt = cache.lock(prefix.last_device_node)
            if (short := rest - cache.free()) > 0:
                evicted += cache.evict(short)
                calls += 1
            fresh = cache.alloc(rest)
            if fresh is None:
                refused += 1
            else:
                matched += hit.device_prefix_len
                row = torch.cat([ignored[:known], fresh])  # those of the prefix are the tree's own
                cache.tree.insert(cache.insertion(whole, row, known))
            cache.unlock(receipt)
        return [matched, evicted, calls, refused]
