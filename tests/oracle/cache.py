"""A radix cache of plain lists and dicts, written from the semantics, as simple as it can be.

It knows the `Full` component on the device tier. Everything is found by walking or scanning; nothing is
cached, so nothing can be stale. Checks come first in every operation, so a refused one has changed nothing.
"""

import copy

from tests.oracle import results as r
from tests.oracle.node import Node, common_pages, split
from tests.oracle.policies import FULL, score

MAX_TOKEN = 2**31 - 1


def tagged(namespace) -> object:
    """A namespace with the types of its parts, so that 1 and "1" and True and (1,) are all different."""
    if isinstance(namespace, tuple):
        return ("tuple", *(tagged(part) for part in namespace))
    return (type(namespace).__name__, namespace)


class OracleCache:
    """`pool`: slots owned by the cache, or None where the caller owns the allocator."""

    def __init__(self, *, page_size=1, pool=None, policy="lru", policy_args=None, max_nodes=None, arena_tokens=None):
        self.page_size = page_size
        self.pool = pool
        self.policy = policy
        self.policy_args = policy_args or {}
        self.max_nodes = max_nodes
        self.arena_tokens = arena_tokens
        self.reset()

    def reset(self) -> None:
        self.root = Node(number=0, parent=None)
        self.free_slots = None if self.pool is None else set(range(self.pool))
        self.clock = 0
        self.numbers = 0  # of nodes made so far
        self.receipts = {}  # number of each receipt not yet given back -> its node
        self.receipts_made = 0

    def snapshot(self) -> dict:
        return copy.deepcopy(self.__dict__)

    def restore(self, snapshot: dict) -> None:
        self.__dict__ = copy.deepcopy(snapshot)

    def digest(self) -> tuple:
        """Equal digests, equal caches."""
        nodes = [
            (v, n.created, n.longest, tuple(n.access.items())) for v, n in zip(self.tree(), self.nodes(), strict=True)
        ]
        free = None if self.free_slots is None else sorted(self.free_slots)
        return repr((nodes, free, self.clock, self.numbers, sorted(self.receipts), self.receipts_made))

    # Looking

    def nodes(self) -> list[Node]:
        """All nodes but the root, in the order of namespace and prefix."""
        found, rest = [], list(self.root.children)
        while rest:
            node = rest.pop()
            found.append(node)
            rest += node.children
        return sorted(found, key=lambda n: (repr(tagged(n.namespace)), n.prefix))

    def find(self, number: int) -> Node:
        for node in [self.root, *self.nodes()]:
            if node.number == number:
                return node
        raise r.OracleRefused(f"no node {number}")

    def free_nodes(self) -> float:
        return float("inf") if self.max_nodes is None else self.max_nodes - 1 - len(self.nodes())

    def live_tokens(self) -> int:
        return sum(len(n.key) for n in self.nodes())

    def tree_slots(self) -> list[int]:
        return [slot for n in self.nodes() for slot in n.values[FULL] or ()]

    def held_slots(self) -> set[int]:
        """Slots of a pool of ours that are neither free nor in the tree: the requests have them."""
        return set(range(self.pool)) - self.free_slots - set(self.tree_slots())

    def _tokens(self, tokens) -> tuple:
        tokens = tuple(int(t) for t in tokens)
        if any(not 0 <= t <= MAX_TOKEN for t in tokens):
            raise r.OracleRefused("a token out of range")
        return tokens

    def _pages(self, tokens) -> tuple:
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _walk(self, namespace, key: tuple) -> tuple[list[Node], tuple[Node, int] | None, str]:
        """The nodes that agree with `key` to their ends; one that agrees in part, and how far; the reason."""
        path, node, rest = [], self.root, key
        while rest:
            for child in node.children:
                same_space = node is not self.root or tagged(child.namespace) == tagged(namespace)
                n = common_pages(child.key, rest, self.page_size)
                if same_space and n > 0:
                    break
            else:
                return path, None, r.NO_CHILD
            if n < len(child.key):
                return path, (child, n), r.KEY_EXHAUSTED if n == len(rest) else r.DIVERGED
            path.append(child)
            node, rest = child, rest[n:]
        return path, None, r.KEY_EXHAUSTED

    @staticmethod
    def _match(path: list[Node], node: Node, slots: list[int], stop: str) -> r.Match:
        n = len(slots)
        return r.Match(n, node.number, {FULL: slots}, 0, node.number, n, stop)

    def probe(self, tokens, namespace=None) -> r.Match:
        path, part, stop = self._walk(namespace, self._pages(self._tokens(tokens)))
        slots = [slot for node in path for slot in node.values[FULL]]
        node = path[-1] if path else self.root
        if part:
            node, n = part
            slots += node.values[FULL][:n]
        return self._match(path, node, slots, stop)

    def probes(self, keys, namespaces=None) -> list[r.Match]:
        spaces = namespaces or [None] * len(keys)
        return [self.probe(key, space) for key, space in zip(keys, spaces, strict=True)]

    # Matching

    def match_prefix(self, tokens, namespace=None) -> r.Match:
        path, part, stop = self._walk(namespace, self._pages(self._tokens(tokens)))
        if part and self.free_nodes() < 1:
            stop = r.NO_FREE_NODE
        elif part:
            path.append(self._split(*part))
        self._touch(path)
        slots = [slot for node in path for slot in node.values[FULL]]
        return self._match(path, path[-1] if path else self.root, slots, stop)

    def match_prefixes(self, keys, namespaces=None) -> list[r.Match]:
        spaces = namespaces or [None] * len(keys)
        return [self.match_prefix(key, space) for key, space in zip(keys, spaces, strict=True)]

    def _split(self, node: Node, n: int) -> Node:
        self.numbers += 1
        return split(node, n, self.numbers)

    def _touch(self, path: list[Node]) -> None:
        if path:
            self.clock += 1
        for node in path:
            node.access[FULL] = self.clock

    # Slots

    def alloc(self, name: str, n: int, slots=None) -> list[int] | None:
        """Hands out `n` slots or none; `slots`: those that another allocator chose, which must be free."""
        if name != FULL or self.free_slots is None or n < 0:
            raise r.OracleRefused("cannot allocate")
        if n > len(self.free_slots):
            assert slots is None, "slots handed out beyond the pool"
            return None
        slots = sorted(self.free_slots)[:n] if slots is None else [int(s) for s in slots]
        assert len(slots) == n, "not as many slots as were asked for"
        assert len(set(slots)) == n, "a slot handed out twice at once"
        assert set(slots) <= self.free_slots, "a slot handed out that was not free"
        self.free_slots -= set(slots)
        return slots

    def free(self, name: str, slots) -> None:
        if name != FULL or self.free_slots is None:
            raise r.OracleRefused("no pool of ours")
        self._check_held(list(slots))
        self.free_slots |= set(slots)

    def _check_held(self, slots: list[int]) -> None:
        """Refuses slots that the caller cannot own: each must be his, and named once."""
        if len(set(slots)) != len(slots):
            raise r.OracleRefused("a slot is listed twice")
        if self.free_slots is None:
            bad = [s for s in slots if s < 0 or s in self.tree_slots()]
        else:
            bad = set(slots) - self.held_slots()
        if bad:
            raise r.OracleRefused(f"slots that the caller does not hold: {sorted(bad)}")

    # Inserting

    def insert(
        self, tokens, slots, namespace=None, prev_prefix_len=0, inserted_len=0, evicted_len=None, priority=0
    ) -> r.Insert:
        tokens = self._tokens(tokens)
        key = self._pages(tokens)
        path, part, _ = self._walk(namespace, key)
        present = sum(len(node.key) for node in path) + (part[1] if part else 0)
        given = [int(s) for s in slots.get(FULL, ())]
        if set(slots) - {FULL} or len(given) not in (len(tokens), len(key)):
            raise r.OracleRefused("not one slot per token")
        if not 0 <= prev_prefix_len <= present or inserted_len < 0:
            raise r.OracleRefused("a length out of range")
        self._check_held(given[prev_prefix_len:])

        new_nodes = (1 if part else 0) + (1 if present < len(key) else 0)
        if new_nodes > self.free_nodes():
            raise r.OracleFull("no free node")
        if self.arena_tokens is not None and self.live_tokens() + len(key) - present > self.arena_tokens:
            raise r.OracleFull("no room for the key")

        if part:
            path.append(self._split(*part))
        for node in path:
            node.hit_count += node.end > inserted_len
            node.priority = max(node.priority, priority)
            node.longest = max(node.longest, len(key))
        parent = path[-1] if path else self.root
        if present < len(key):
            self.numbers += 1
            leaf = Node(
                number=self.numbers,
                parent=parent,
                namespace=namespace,
                key=key[present:],
                hit_count=int(len(key) > inserted_len),
                priority=priority,
                created=self.clock + 1,
                longest=len(key),
                values={FULL: given[present : len(key)]},
                locks={FULL: 0},
            )
            parent.children.append(leaf)
            path.append(leaf)
        self._touch(path)

        adopted = given[present : len(key)]
        freed = given[prev_prefix_len:present] + given[len(key) :]
        if self.free_slots is not None:
            self.free_slots |= set(freed)
        return r.Insert(present, path[-1].number if path else 0, {FULL: adopted}, {FULL: freed})

    # Evicting

    def evict(self, wanted: dict) -> r.Evict:
        if set(wanted) - {FULL} or any(n < 0 for n in wanted.values()):
            raise r.OracleRefused("cannot evict that")
        freed = []
        while len(freed) < wanted.get(FULL, 0):
            leaves = [n for n in self.nodes() if not n.children and not any(n.locks.values())]
            if not leaves:
                break
            victim = min(leaves, key=lambda n: score(self.policy, n, **self.policy_args))
            victim.parent.children.remove(victim)
            freed += victim.values[FULL]
        if self.free_slots is not None:
            self.free_slots |= set(freed)
        return r.Evict({FULL: len(freed)}, {FULL: freed})

    # Locking

    def lock(self, number: int) -> r.Receipt:
        node = self.find(number)
        for above in node.path:
            above.locks[FULL] += 1
        self.receipts_made += 1
        self.receipts[self.receipts_made] = node
        return r.Receipt(self.receipts_made, number)

    def unlock(self, receipt: r.Receipt) -> None:
        if receipt.number not in self.receipts or self.receipts[receipt.number].number != receipt.node:
            raise r.OracleRefused("no such receipt is out")
        for above in self.receipts.pop(receipt.number).path:
            above.locks[FULL] -= 1

    # Reporting

    def sizes(self) -> dict[str, r.Sizes]:
        evictable = sum(len(n.values[FULL]) for n in self.nodes() if n.locks[FULL] == 0)
        protected = sum(len(n.values[FULL]) for n in self.nodes() if n.locks[FULL] > 0)
        free = None if self.free_slots is None else len(self.free_slots)
        return {FULL: r.Sizes(free, evictable, protected)}

    def access_order(self, name: str) -> list[int]:
        """Newest first; of nodes touched at once, all of them on one path, the deeper one is the newer."""
        members = [n for n in self.nodes() if n.values[name] is not None]
        return [n.number for n in sorted(members, key=lambda n: (-n.access[name], -n.start))]

    def tree(self) -> list[r.NodeView]:
        return [
            r.NodeView(
                node=n.number,
                parent=n.parent.number,
                namespace=n.namespace,
                key=n.key,
                prefix=n.prefix,
                hit_count=n.hit_count,
                priority=n.priority,
                values={name: None if v is None else tuple(v) for name, v in n.values.items()},
                locks=dict(n.locks),
                is_leaf=not n.children,
            )
            for n in self.nodes()
        ]

    def check(self) -> None:
        """What must hold whatever was done; it guards the oracle against itself."""
        slots = self.tree_slots()
        assert len(slots) == len(set(slots)), "a slot in the tree twice"
        if self.free_slots is not None:
            assert not self.free_slots & set(slots), "a slot both free and in the tree"
            assert (self.free_slots | set(slots)) <= set(range(self.pool)), "a slot from nowhere"
        assert self.free_nodes() >= 0
        assert self.arena_tokens is None or self.live_tokens() <= self.arena_tokens
        holders = list(self.receipts.values())
        order = [(n.access[FULL], n.start) for n in self.nodes()]
        assert len(order) == len(set(order)), "two nodes accessed at the same moment at the same depth"
        for node in self.nodes():
            assert node.key
            assert len(node.key) % self.page_size == 0
            assert len(node.values[FULL]) == len(node.key)
            assert node.locks[FULL] == sum(node in holder.path for holder in holders)
            assert node.parent is self.root or node.parent.namespace == node.namespace
            assert node.parent is self.root or node.parent.locks[FULL] >= node.locks[FULL]
            first_pages = [c.key[: self.page_size] for c in node.children]
            assert len(first_pages) == len(set(first_pages)), "two children for one page"
