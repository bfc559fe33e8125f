"""A plain-Python tree with SWA and Mamba beside Full, and the handle's verbs that the hybrid rule uses.

Written from the semantics, fast enough for whole traces. As in the replay's caches, a split counts as an access of
both parts in Full's order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count, takewhile
from types import SimpleNamespace

import numpy as np

from tests.replay.stand_in import ORDERS


@dataclass(eq=False)
class Node:
    parent: Node | None = None
    key: list[int] = field(default_factory=list)
    end: int = 0
    hits: int = 0
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)  # by their first page
    values: dict[str, list[int] | None] = field(default_factory=dict)
    locks: dict[str, int] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)

    @property
    def start(self):
        return self.end - len(self.key)

    @property
    def access(self):  # as the orders of the policies read it
        return self.ticks["full"]


class HybridTree:
    def __init__(self, pools: dict[str, int], *, window: int = 0, policy: str = "lru", page_size: int = 1):
        self.names, self.page, self.window, self.order = list(pools), page_size, window, ORDERS[policy]
        self.pools = {name: list(range(n)) for name, n in pools.items()}
        self.root, self.clock, self.heaps = Node(), count(1), {name: [] for name in pools}

    def match_prefix(self, tokens):
        path, depth = self._walk(self._whole_pages(tokens))
        hits = {name: max(self._resumable(name, path), default=0) for name in self.names}
        common = set.intersection(*({0, *self._resumable(name, path)} for name in self.names))
        at = max(common)
        used = [n for n in path if n.end <= at]
        if at:
            self._touch(used, at, mamba=True)
        node = used[-1] if used else self.root
        slots = {name: [s for n in used for s in n.values[name] or [-1] * len(n.key)] for name in self.names}
        if "swa" in slots:
            slots["swa"][: max(at - self.window, 0)] = [-1] * max(at - self.window, 0)
        if "mamba" in slots:
            slots["mamba"] = node.values["mamba"] if at else []
        return SimpleNamespace(
            device_len=at,
            node=node,
            slots={name: np.array(held, np.int32) for name, held in slots.items()},
            full_len=depth,
            hits=hits,
            branching_len=depth if depth > at else 0,
        )

    def lock(self, node):
        top = node.end
        for n in self._path(node):
            for name in self.names:
                if self._needed(name, n, node):
                    n.locks[name] += 1
                    top = min(top, n.start) if name == "swa" else top
        return node, top

    def unlock(self, receipt):
        node, top = receipt
        for n in self._path(node):
            for name in self.names:
                n.locks[name] -= name == "full" or (n.end > top if name == "swa" else n is node)
            self._offer(n)

    def sizes(self):
        return {name: SimpleNamespace(free=len(pool)) for name, pool in self.pools.items()}

    def alloc(self, name, n):
        pool = self.pools[name]
        if n > len(pool):
            return None
        taken, pool[:n] = pool[:n], []
        return np.array(taken, np.int32)

    def insert(self, tokens, slots, *, prev_prefix_len, inserted_len, evicted_len):
        tokens = self._whole_pages(tokens)
        full, swa, state = (list(map(int, slots.get(name, ()))) for name in ("full", "swa", "mamba"))
        freed = dict.fromkeys(self.names, 0)
        path, present = self._walk(tokens)
        assert prev_prefix_len <= present
        assert len(full) == len(tokens)
        if present < len(tokens):
            leaf = Node(path[-1] if path else self.root, tokens[present:], len(tokens))
            leaf.values = dict.fromkeys(self.names) | {"full": full[present:]}
            leaf.locks, leaf.ticks = dict.fromkeys(self.names, 0), dict.fromkeys(self.names, 0)
            leaf.parent.children[self._page_at(leaf.key, 0)] = leaf
            path.append(leaf)
        self._free("full", full[prev_prefix_len:present], freed)
        adopters = set()
        if swa:
            assert len(swa) == len(tokens)
            low = max(prev_prefix_len, evicted_len["swa"])
            begin, tail = -(-low // self.page) * self.page, len(tokens) - -(-self.window // self.page) * self.page
            for cut in [begin, *([tail] if tail > begin else [])]:
                for i, n in enumerate(path):
                    if n.start < cut < n.end and n.values["swa"] is None:
                        path.insert(i, self._split(n, cut - n.start))
                        break
            for n in path:
                if n.values["swa"] is None and n.start >= low:
                    n.values["swa"] = swa[n.start : n.end]
                    adopters.add(n)
                else:
                    self._free("swa", swa[max(n.start, low) : n.end], freed)
        if state and path and path[-1].values["mamba"] is None:
            path[-1].values["mamba"] = state
        elif state:
            self._free("mamba", state, freed)
            state = []
        for n in path:
            n.hits += n.end > inserted_len
        if path:
            self._touch(path, len(tokens), mamba=True, also=adopters)
        node = path[-1] if path else self.root
        return SimpleNamespace(node=node, adopted={"mamba": state})

    def evict(self, targets):
        freed = dict.fromkeys(self.names, 0)
        for driver in self.names:
            heap = self.heaps[driver]
            while freed[driver] < targets.get(driver, 0) and heap:
                value, _, node = heapq.heappop(heap)
                if not self._evictable(driver, node) or value != self._value(driver, node):
                    continue
                leaf = self._is_leaf(node)
                for name in self.names if leaf else self.names[self.names.index(driver) :]:
                    if leaf or not node.locks[name]:
                        self._free(name, node.values[name] or [], freed)
                        node.values[name] = None
                if leaf:
                    del node.parent.children[self._page_at(node.key, 0)]
                    self._offer(node.parent)
        return SimpleNamespace(evicted=freed)

    def _free(self, name, slots, freed):
        assert -1 not in slots
        assert not set(slots) & set(self.pools[name])
        self.pools[name] += slots
        freed[name] += len(slots)

    def _whole_pages(self, tokens):
        return [int(t) for t in tokens[: len(tokens) // self.page * self.page]]

    def _page_at(self, tokens, at):
        return tuple(tokens[at : at + self.page])

    def _path(self, node):
        while node is not self.root:
            yield node
            node = node.parent

    def _resumable(self, name, path):
        """The ends at which the component could resume."""
        run, broken = 0, False
        for n in path:
            run, broken = (run + len(n.key), broken) if n.values[name] else (0, True)
            if {"full": run, "swa": not broken or run >= self.window, "mamba": n.values[name]}[name]:
                yield n.end

    def _needed(self, name, n, node):
        return {"full": True, "swa": n.end > node.end - self.window, "mamba": n is node}[name]

    def _walk(self, tokens):
        """The path and its length; splits where the tokens end or diverge."""
        path, node, at = [], self.root, 0
        while child := node.children.get(self._page_at(tokens, at)):
            pairs = zip(child.key, tokens[at:], strict=False)
            agree = sum(1 for _ in takewhile(lambda p: p[0] == p[1], pairs)) // self.page * self.page
            node = child if agree == len(child.key) else self._split(child, agree)
            path.append(node)
            at += agree
        return path, at

    def _split(self, child, at):
        front = Node(child.parent, child.key[:at], child.start + at, child.hits)
        front.values = {name: v and (None if name == "mamba" else v[:at]) for name, v in child.values.items()}
        front.locks, front.ticks = child.locks | {"mamba": 0}, dict(child.ticks)
        front.parent.children[self._page_at(front.key, 0)] = front
        child.values = {name: v if name == "mamba" else v and v[at:] for name, v in child.values.items()}
        child.parent, child.key = front, child.key[at:]
        front.children[self._page_at(child.key, 0)] = child
        front.ticks["full"] = child.ticks["full"] = next(self.clock)
        self._offer(front)
        self._offer(child)
        return front

    def _touch(self, path, length, *, mamba, also=()):
        tick = next(self.clock)
        for n in path:
            n.ticks["full"] = tick
            if n.end > length - self.window - self.page or n in also:
                n.ticks["swa"] = tick
            if n.end == length:
                n.ticks["mamba"] = tick
            self._offer(n)

    def _is_leaf(self, node):
        return not node.children and not any(node.locks.values())

    def _evictable(self, name, node):
        if node is self.root or not node.values[name]:
            return False
        return self._is_leaf(node) if name == "full" else not node.locks[name]

    def _value(self, name, node):
        return self.order(node) if name == "full" else (node.ticks[name], node.end)

    def _offer(self, node):
        """Puts the node's evictable values up under their present order; older offers of them go stale."""
        for name in self.names:
            if self._evictable(name, node):
                heapq.heappush(self.heaps[name], (self._value(name, node), next(self.clock), node))
