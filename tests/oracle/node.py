"""One node of the oracle's tree, what a lock or a session counts of a path, and how a node is split."""

from dataclasses import dataclass, field

from tests.oracle.components import FULL, MAMBA, SWA


@dataclass(eq=False)
class Node:
    number: int
    parent: "Node | None"
    namespace: object = None
    key: tuple = ()  # the tokens of the run
    children: list = field(default_factory=list)
    hit_count: int = 0
    priority: int = 0
    created: int = 0  # tick
    longest: int = 0  # tokens of the longest insert that walked or made the node
    values: dict = field(default_factory=dict)  # component -> list of slots | None
    locks: dict = field(default_factory=dict)  # component -> count
    sessions: dict = field(default_factory=dict)  # component -> count
    access: dict = field(default_factory=dict)  # component -> tick

    @property
    def start(self) -> int:
        """Tokens before this node's run."""
        return self.parent.end if self.parent else 0

    @property
    def end(self) -> int:
        return self.start + len(self.key)

    @property
    def prefix(self) -> tuple:
        return (self.parent.prefix if self.parent else ()) + self.key

    @property
    def path(self) -> "list[Node]":
        """From the top of the tree down to this node, without the root."""
        return [*self.parent.path, self] if self.parent else []


@dataclass(eq=False)
class Claim:
    """What a receipt or a session counts. A split keeps it true: the rear part keeps the identity of `node`."""

    node: Node
    since: int  # where the topmost node of the window starts; a position, which no split moves
    parts: set  # components that it counts (still)

    def nodes(self, name: str) -> list[Node]:
        if name not in self.parts:
            return []
        path = self.node.path
        return {FULL: path, SWA: [n for n in path if n.end > self.since], MAMBA: path[-1:]}[name]


def common_pages(run: tuple, key: tuple, page_size: int) -> int:
    """Tokens of the whole pages on which `run` and `key` agree from their starts."""
    n = 0
    while n + page_size <= min(len(run), len(key)) and run[n : n + page_size] == key[n : n + page_size]:
        n += page_size
    return n


def split(node: Node, n: int, number: int, components: dict) -> Node:
    """Puts a new node, `number`, with the first `n` tokens of `node` above it; returns the new node.

    What counts tokens is shared out or copied; a state stays, with its counts, where it is valid: at the end of
    `node`, which keeps its identity. No access is recorded.
    """
    assert 0 < n < len(node.key)
    shared = {name: components[name].share(value, n) for name, value in node.values.items()}
    counts = lambda of: {name: of[name] if components[name].per_token else 0 for name in of}
    front = Node(
        number=number,
        parent=node.parent,
        namespace=node.namespace,
        key=node.key[:n],
        children=[node],
        hit_count=node.hit_count,
        priority=node.priority,
        created=node.created,
        longest=node.longest,
        values={name: both[0] for name, both in shared.items()},
        locks=counts(node.locks),
        sessions=counts(node.sessions),
        access=dict(node.access),
    )
    siblings = node.parent.children
    siblings[siblings.index(node)] = front
    node.parent = front
    node.key = node.key[n:]
    node.values = {name: both[1] for name, both in shared.items()}
    return front
