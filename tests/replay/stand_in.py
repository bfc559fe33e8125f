"""A plain-Python radix tree with the handle's verbs that the replay uses: Full only, whole leaves evicted.

As the replay's caches do, it counts a split as an access of both parts.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count, takewhile
from types import SimpleNamespace

import numpy as np

ORDERS = {
    "lru": lambda n: (n.access,),
    "lfu": lambda n: (n.hits, n.access),
    "slru": lambda n: (n.hits >= 2, n.access),
}


@dataclass(eq=False)
class Node:
    parent: Node | None = None
    key: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)  # by their first page
    access: int = 0
    hits: int = 0
    locks: int = 0


class RadixTree:
    def __init__(self, capacity: int, policy: str = "lru", page_size: int = 1):
        self.page, self.order, self.pool = page_size, ORDERS[policy], list(range(capacity))
        self.root, self.clock, self.leaves = Node(), count(1), []

    def match_prefix(self, tokens):
        node, slots = self._walk(self._whole_pages(tokens))
        return SimpleNamespace(device_len=len(slots), node=node, slots={"full": np.array(slots, np.int32)})

    def lock(self, node):
        path = [*self._path(node)]
        for n in path:
            n.locks += 1
        return node

    def unlock(self, receipt):
        for n in self._path(receipt):
            n.locks -= 1
            self._offer(n)

    def sizes(self):
        return {"full": SimpleNamespace(free=len(self.pool))}

    def alloc(self, name, n):
        if n > len(self.pool):
            return None
        taken, self.pool = self.pool[:n], self.pool[n:]
        return np.array(taken, np.int32)

    def insert(self, tokens, slots, *, prev_prefix_len):
        tokens, slots = self._whole_pages(tokens), slots["full"].tolist()
        assert len(slots) == len(tokens)
        node, held = self._walk(tokens)
        assert held[:prev_prefix_len] == slots[:prev_prefix_len]
        self.pool += slots[prev_prefix_len : len(held)]
        if len(held) < len(tokens):
            leaf = Node(node, tokens[len(held) :], slots[len(held) :], access=next(self.clock))
            node.children[tuple(leaf.key[: self.page])] = node = leaf
        for n in self._path(node):
            n.hits += 1
            self._offer(n)

    def evict(self, targets):
        freed = 0
        while freed < targets["full"] and self.leaves:
            value, _, leaf = heapq.heappop(self.leaves)
            if leaf.parent is None or leaf.children or leaf.locks or value != self.order(leaf):
                continue
            freed += len(leaf.slots)
            self.pool += leaf.slots
            del leaf.parent.children[tuple(leaf.key[: self.page])]
            leaf.parent, parent = None, leaf.parent
            self._offer(parent)
        return SimpleNamespace(evicted={"full": freed})

    def _whole_pages(self, tokens):
        return [int(t) for t in tokens[: len(tokens) // self.page * self.page]]

    def _path(self, node):
        while node is not self.root:
            yield node
            node = node.parent

    def _walk(self, tokens):
        """Matches, splits where the tokens end or diverge, and refreshes the path."""
        node, slots, at = self.root, [], 0
        while child := node.children.get(tuple(tokens[at : at + self.page])):
            pairs = zip(child.key, tokens[at:], strict=False)
            agree = sum(1 for _ in takewhile(lambda p: p[0] == p[1], pairs)) // self.page * self.page
            node = child if agree == len(child.key) else self._split(child, agree)
            slots += node.slots
            at += agree
        tick = next(self.clock)
        for n in self._path(node):
            n.access = tick
            self._offer(n)
        return node, slots

    def _split(self, child, at):
        front = Node(child.parent, child.key[:at], child.slots[:at], {}, child.access, child.hits, child.locks)
        front.parent.children[tuple(front.key[: self.page])] = front
        child.parent, child.key, child.slots = front, child.key[at:], child.slots[at:]
        front.children[tuple(child.key[: self.page])] = child
        child.access = next(self.clock)
        self._offer(child)
        return front

    def _offer(self, node):
        """Puts an evictable leaf up under its present value; older offers of it go stale."""
        if node is not self.root and not node.children and not node.locks:
            heapq.heappush(self.leaves, (self.order(node), next(self.clock), node))
