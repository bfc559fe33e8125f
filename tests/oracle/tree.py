"""What the oracle is made of, and what can be asked of it: the tree, the slots, and the proof that both are sound."""

import copy

from tests.oracle import results as r
from tests.oracle.components import FULL, MAMBA, SWA, Full, Mamba, Swa
from tests.oracle.node import Claim, Node, common_pages, split

MAX_TOKEN = 2**31 - 1


def tagged(namespace) -> object:
    """A namespace with the types of its parts, so that 1 and "1" and True and (1,) are all different."""
    if isinstance(namespace, tuple):
        return ("tuple", *(tagged(part) for part in namespace))
    return (type(namespace).__name__, namespace)


class OracleTree:
    """The components are those of `pools`, in that order: slots owned by the cache, or None where the caller owns them.

    `mamba`: its options.
    """

    def __init__(
        self,
        *,
        page_size=1,
        pools=None,
        window=None,
        mamba=None,
        policy="lru",
        policy_args=None,
        max_nodes=None,
        arena_tokens=None,
        max_sessions=None,
    ):
        self.page_size = page_size
        self.pools = {FULL: None} if pools is None else dict(pools)
        kinds = {FULL: Full(), SWA: Swa(window=window), MAMBA: Mamba(**(mamba or {}))}
        self.components = {name: kinds[name] for name in self.pools}
        assert next(iter(self.components)) == FULL
        self.policy = policy
        self.policy_args = policy_args or {}
        self.max_nodes = max_nodes
        self.arena_tokens = arena_tokens
        self.max_sessions = max_sessions
        self.reset()

    def reset(self) -> None:
        self.root = Node(number=0, parent=None, locks=self.none(), sessions=self.none())
        self.free_slots = {name: None if n is None else set(range(n)) for name, n in self.pools.items()}
        self.clock = 0
        self.numbers = 0  # of nodes made so far
        self.receipts: dict[int, Claim] = {}  # number of each receipt that was not unlocked -> what it holds
        self.receipts_made = 0
        self.sessions: dict[int, Claim | None] = {}  # number of each session -> what it counts; None: closed

    def none(self) -> dict[str, int]:
        return dict.fromkeys(self.components, 0)

    def snapshot(self) -> dict:
        return copy.deepcopy(self.__dict__)

    def restore(self, snapshot: dict) -> None:
        self.__dict__ = copy.deepcopy(snapshot)

    def digest(self) -> str:
        """Equal digests, equal caches."""
        nodes = [
            (v, n.created, n.longest, tuple(n.access.items())) for v, n in zip(self.tree(), self.nodes(), strict=True)
        ]
        free = [None if free is None else sorted(free) for free in self.free_slots.values()]
        claims = [
            (number, c and (c.node.number, c.since, sorted(c.parts)))
            for of in (self.receipts, self.sessions)
            for number, c in sorted(of.items())
        ]
        return repr((nodes, free, self.clock, self.numbers, claims, self.receipts_made))

    # Nodes

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

    def _split(self, node: Node, n: int) -> Node:
        self.numbers += 1
        return split(node, n, self.numbers, self.components)

    def _touch(self, path: list[Node], length: int, also=()) -> None:
        """One tick for all that a request uses which resumes at `length`; for SWA `also` nodes that it brought back."""
        self.clock += 1
        for name, component in self.components.items():
            for node in path:
                if component.touches(node, length, self.page_size) or (name == SWA and node in also):
                    node.access[name] = self.clock

    # Slots

    def tree_slots(self, name: str = FULL) -> list[int]:
        return [slot for n in self.nodes() for slot in n.values[name] or ()]

    def held_slots(self, name: str = FULL) -> set[int]:
        """Slots of a pool of ours that are neither free nor in the tree: the requests have them."""
        return set(range(self.pools[name])) - self.free_slots[name] - set(self.tree_slots(name))

    def _owned(self, name: str) -> None:
        if self.pools.get(name) is None:
            raise r.OracleRefused("no pool of ours")

    def alloc(self, name: str, n: int, slots=None) -> list[int] | None:
        """Hands out `n` slots or none; `slots`: those that another allocator chose, which must be free."""
        self._owned(name)
        if n < 0:
            raise r.OracleRefused("cannot allocate")
        free = self.free_slots[name]
        if n > len(free):
            assert slots is None, "slots handed out beyond the pool"
            return None
        slots = sorted(free)[:n] if slots is None else [int(s) for s in slots]
        assert len(slots) == n, "not as many slots as were asked for"
        assert len(set(slots)) == n, "a slot handed out twice at once"
        assert set(slots) <= free, "a slot handed out that was not free"
        self.free_slots[name] = free - set(slots)
        return slots

    def free(self, name: str, slots) -> None:
        self._owned(name)
        self._check_held({name: list(slots)})
        self._give(name, slots)

    def _give(self, name: str, slots) -> None:
        """`slots` leave the tree, or a caller: they are free where the pool is ours."""
        if self.free_slots[name] is not None:
            self.free_slots[name] = self.free_slots[name] | set(slots)

    def _check_held(self, handed: dict[str, list[int]]) -> None:
        """Refuses slots that the caller cannot own: each must be his, and named once."""
        for name, slots in handed.items():
            if len(set(slots)) != len(slots):
                raise r.OracleRefused("a slot is listed twice")
            if self.pools[name] is None:
                bad = [s for s in slots if s < 0 or s in self.tree_slots(name)]
            else:
                bad = set(slots) - self.held_slots(name)
            if bad:
                raise r.OracleRefused(f"slots of {name} that the caller does not hold: {sorted(bad)}")

    # Reporting

    def sizes(self) -> dict[str, r.Sizes]:
        out = {}
        for name, free in self.free_slots.items():
            evictable = sum(len(n.values[name] or ()) for n in self.nodes() if n.locks[name] == 0)
            protected = sum(len(n.values[name] or ()) for n in self.nodes() if n.locks[name] > 0)
            out[name] = r.Sizes(None if free is None else len(free), evictable, protected)
        return out

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
                sessions=dict(n.sessions),
                is_leaf=not n.children,
            )
            for n in self.nodes()
        ]

    def check(self) -> None:
        """What must hold whatever was done; it guards the oracle against itself."""
        nodes = self.nodes()
        assert self.free_nodes() >= 0
        assert self.arena_tokens is None or self.live_tokens() <= self.arena_tokens
        for node in nodes:
            assert node.key
            assert len(node.key) % self.page_size == 0
            assert node.values[FULL] is not None
            assert node.parent is self.root or node.parent.namespace == node.namespace
            first_pages = [c.key[: self.page_size] for c in node.children]
            assert len(first_pages) == len(set(first_pages)), "two children for one page"
        for name, component in self.components.items():
            self._check_slots(name, nodes)
            members = [n for n in nodes if n.values[name] is not None]
            assert all(len(n.values[name]) == (len(n.key) if component.per_token else 1) for n in members)
            order = [(n.access[name], n.start) for n in members]
            assert len(order) == len(set(order)), f"{name}: two nodes accessed at the same moment at the same depth"
            assert all(0 < tick <= self.clock for tick, _ in order)
            self._check_counts(name, "locks", nodes, self.receipts.values())
            self._check_counts(name, "sessions", nodes, [c for c in self.sessions.values() if c])
        assert all(n.parent is self.root or n.parent.locks[FULL] >= n.locks[FULL] for n in nodes)

    def _check_slots(self, name: str, nodes: list[Node]) -> None:
        slots, free = self.tree_slots(name), self.free_slots[name]
        assert len(slots) == len(set(slots)), f"{name}: a slot in the tree twice"
        if free is not None:
            assert not free & set(slots), f"{name}: a slot both free and in the tree"
            assert free | set(slots) <= set(range(self.pools[name])), f"{name}: a slot from nowhere"

    def _check_counts(self, name: str, field: str, nodes: list[Node], claims) -> None:
        """The counts of every node are what those make who count."""
        counts = dict.fromkeys([self.root, *nodes], 0)
        for claim in claims:
            assert claim.node in counts, "somebody counts from a node that is gone"
            for node in claim.nodes(name):
                counts[node] += 1
        for node, count in counts.items():
            assert getattr(node, field)[name] == count, f"{name}: {field} of the node at {node.prefix}"
