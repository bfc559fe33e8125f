"""One node of the oracle's tree, and the two ways in which trees change shape."""

from dataclasses import dataclass, field


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
    access: dict = field(default_factory=dict)  # component -> tick

    @property
    def start(self) -> int:
        """Tokens before this node's run."""
        return len(self.parent.prefix) if self.parent else 0

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


def common_pages(run: tuple, key: tuple, page_size: int) -> int:
    """Tokens of the whole pages on which `run` and `key` agree from their starts."""
    n = 0
    while n + page_size <= min(len(run), len(key)) and run[n : n + page_size] == key[n : n + page_size]:
        n += page_size
    return n


def split(node: Node, n: int, number: int) -> Node:
    """Puts a new node, `number`, with the first `n` tokens of `node` above it; returns the new node.

    The new node takes over everything that is counted; `node` keeps its identity. No access is recorded.
    """
    assert 0 < n < len(node.key)
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
        values={name: None if v is None else v[:n] for name, v in node.values.items()},
        locks=dict(node.locks),
        access=dict(node.access),
    )
    siblings = node.parent.children
    siblings[siblings.index(node)] = front
    node.parent = front
    node.key = node.key[n:]
    node.values = {name: None if v is None else v[n:] for name, v in node.values.items()}
    return front
