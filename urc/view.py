"""Looking at a state: the tree as Python objects, as text, and the proof that its invariants hold.

Everything here reads the arrays with NumPy, node by node: for eyes and tests, not for the hot path.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from urc.components.base import Component
from urc.errors import InvariantError
from urc.state import LEDGER, ROOT, CacheState, key_of
from urc.tables import children, victims
from urc.tables.packed import NULL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """One node. `index` is its row; lengths in tokens."""

    index: int
    generation: int
    parent: int
    namespace: int
    key: tuple[int, ...]
    prefix: tuple[int, ...]
    hit_count: int
    priority: int
    values: dict[str, tuple[int, ...] | None]
    locks: dict[str, int]
    sessions: dict[str, int]
    is_leaf: bool


class _Rows:
    """The node table as NumPy columns, with the children of each row."""

    def __init__(self, state: CacheState) -> None:
        data = np.asarray(state.nodes.data)
        self.columns = {name: data[:, j] for j, name in enumerate(state.nodes.columns)}
        self.used = [int(i) for i in np.flatnonzero(self.columns["length"] > 0)]
        self.tokens = np.asarray(state.tokens)
        self.children: dict[int, list[int]] = {ROOT: []}
        for i in self.used:
            self.children.setdefault(self["parent"][i], []).append(i)

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def run(self, i: int) -> np.ndarray:
        start = self["start"][i]
        return self.tokens[start : start + self["length"][i]]


def nodes(state: CacheState) -> list[Node]:
    """All nodes but the root, each after its parent, siblings by namespace and key."""
    rows = _Rows(state)
    out: list[Node] = []

    def ordered(i: int) -> list[int]:
        """Children of row `i`, the last one first."""
        order = lambda c: (int(rows["namespace"][c]), rows.run(c).tolist())
        return sorted(rows.children.get(i, []), key=order, reverse=True)

    prefixes: dict[int, tuple[int, ...]] = {ROOT: ()}
    stack = ordered(ROOT)
    while stack:
        i = stack.pop()
        parent, key = int(rows["parent"][i]), tuple(rows.run(i).tolist())
        prefixes[i] = prefixes[parent] + key
        out.append(
            Node(
                index=i,
                generation=int(rows["generation"][i]),
                parent=parent,
                namespace=int(rows["namespace"][i]),
                key=key,
                prefix=prefixes[i],
                hit_count=int(rows["hits"][i]),
                priority=int(rows["priority"][i]),
                values={c.name: c.held(state.stores[c.name], rows.columns, i) for c in state.config.components},
                locks={c.name: int(rows[c.column("lock")][i]) for c in state.config.components},
                sessions={c.name: int(rows[c.column("session")][i]) for c in state.config.components},
                is_leaf=not rows.children.get(i),
            )
        )
        stack += ordered(i)
    return out


def held_slots(component: Component, state: CacheState) -> np.ndarray:
    """All slots (i32[n]) that the tree holds of one component."""
    rows = _Rows(state)
    runs = (component.held(state.stores[component.name], rows.columns, i) or () for i in rows.used)
    return np.fromiter((slot for run in runs for slot in run), np.int32)


def access_order(state: CacheState, name: str) -> list[int]:
    """Rows of the nodes that hold a component's value, the most recently accessed first."""
    component, rows = state.config.component(name), _Rows(state)
    held = [i for i in rows.used if rows[component.column("value")][i] != NULL]
    fields = (component.column("stamp_hi"), component.column("stamp_lo"), "end")
    return sorted(held, key=lambda i: tuple(int(rows[field][i]) for field in fields), reverse=True)


def pretty(state: CacheState, name_of: Callable[[int], object] = lambda i: i, *, width: int = 6) -> str:
    """The tree as text: a line per node with its first `width` tokens, what it holds, hits and locks."""
    scalars = state.scalars
    root = "root" + "".join(
        f"  {c.name}: " + ", ".join(f"{int(state.ledger(c, scalars.get(0))[f])} {f}" for f in LEDGER)
        for c in state.config.components
    )
    listed = nodes(state)
    last = {node.parent: node.index for node in listed}
    lines, bars = [root], {ROOT: ""}
    for node in listed:
        run = " ".join(map(str, node.key[:width])) + (f" .. ({len(node.key)})" if len(node.key) > width else "")
        held = "  ".join(
            name + ("=-" if value is None else "") + (f" locked {node.locks[name]}" if node.locks[name] else "")
            for name, value in node.values.items()
        )
        space = f"  in {name_of(node.namespace)!r}" if node.parent == ROOT and node.namespace else ""
        ends = last[node.parent] == node.index
        branch = bars[node.parent] + ("└─ " if ends else "├─ ")
        lines.append(f"{branch}#{node.index} [{run}]  {held}  hits {node.hit_count}{space}")
        bars[node.index] = bars[node.parent] + ("   " if ends else "│  ")
    return "\n".join(lines)


def check(state: CacheState) -> None:
    """Checks every invariant that `CacheState` states; InvariantError with the first that is broken."""
    for wrong in _broken(state):
        raise InvariantError(wrong)


@jax.jit
def _implied(state: CacheState) -> tuple[jax.Array, jax.Array]:
    """What the rows of the node table imply: the hash of the edge to each (i32[rows]), and the victim orders."""
    config, columns = state.config, {name: state.nodes.data[:, j] for j, name in enumerate(state.nodes.columns)}
    first_page = state.tokens[columns["start"][:, None] + jnp.arange(config.page_size)]
    edges = jax.vmap(children.page_hash)(columns["parent"], columns["namespace"], first_page)
    return edges, victims.rebuild(state.nodes, [key_of(component, config) for component in config.components])


def _broken(state: CacheState) -> Iterator[str]:
    config, rows = state.config, _Rows(state)
    scalars = {name: int(v) for name, v in zip(state.scalars.columns, np.asarray(state.scalars.data)[0], strict=True)}
    yield from _broken_tree(state, rows, scalars)
    yield from _broken_arena(rows, scalars, config.arena_tokens)
    edges, orders = (jax.tree.map(np.asarray, part) for part in _implied(state))
    yield from _broken_child_table(state, rows, edges)
    yield from _broken_sessions(state, rows)
    for j, component in enumerate(config.components):
        name = component.name
        lock, value = rows[component.column("lock")], rows[component.column("value")]
        held = {i: component.held(state.stores[name], rows.columns, i) or () for i in rows.used}
        slots = [s for run in held.values() for s in run]
        if len(set(slots)) != len(slots) or any(s < 0 for s in slots):
            yield f"{name}: a slot is held twice, or is none"
        if (lock[rows.used] < 0).any() or lock[ROOT] or value[ROOT] != NULL:
            yield f"{name}: a negative lock count, or a lock or value at the root"
        for locked, field in ((False, "evictable"), (True, "protected")):
            total = sum(len(held[i]) for i in rows.used if (lock[i] > 0) == locked)
            if total != scalars[component.column(field)]:
                yield f"{name}: {field} is {scalars[component.column(field)]}, the nodes hold {total}"
        size, used = config.pool_size(name), scalars[component.column("used")]
        if size is not None:
            free = np.asarray(component.pool(state.stores[name]))[used:size].tolist()
            if not 0 <= used <= size or len(set(free)) != len(free) or not all(0 <= s < size for s in free):
                yield f"{name}: the free list is not a set of the pool's slots"
            if set(free) & set(slots):
                yield f"{name}: slots both free and referenced: {sorted(set(free) & set(slots))}"
            if len(slots) > used:
                yield f"{name}: {used} slots are not free, but nodes hold {len(slots)}"
        if not np.array_equal(np.asarray(state.victims)[j], orders[j]):
            yield f"{name}: the victim order is not what the rows say"
        stamps: dict[tuple[int, int], list[int]] = {}
        for i in rows.used:
            if value[i] != NULL:
                key = (int(rows[component.column("stamp_hi")][i]), int(rows[component.column("stamp_lo")][i]))
                stamps.setdefault(key, []).append(i)
        if any(key > (scalars["clock_hi"], scalars["clock_lo"]) for key in stamps):
            yield f"{name}: an access later than now"
        for group in stamps.values():
            if len({int(rows["end"][i]) for i in group}) != len(group):
                yield f"{name}: nodes {group} were accessed at the same time, but none is the other's ancestor"


def _broken_tree(state: CacheState, rows: _Rows, scalars: dict[str, int]) -> Iterator[str]:
    config = state.config
    seen, stack = set(), [ROOT]
    while stack:
        i = stack.pop()
        if i in seen:
            yield f"row {i} is reached twice from the root"
            return
        seen.add(i)
        below = rows.children.get(i, [])
        stack += below
        if rows["children"][i] != len(below):
            yield f"row {i} counts {rows['children'][i]} children and has {len(below)}"
        for c in below:
            length, end = int(rows["length"][c]), int(rows["end"][c])
            if length % config.page_size or end != rows["end"][i] + length:
                yield f"row {c} has {length} tokens and ends at {end}, below one that ends at {rows['end'][i]}"
            if i != ROOT and rows["namespace"][c] != rows["namespace"][i]:
                yield f"row {c} is in another namespace than its parent"
        if i != ROOT and rows[config.components[0].column("value")][i] == NULL:
            yield f"row {i} does not hold {config.components[0].name}"
        firsts = [(int(rows["namespace"][c]), *rows.run(c)[: config.page_size].tolist()) for c in below]
        if len(set(firsts)) != len(firsts):
            yield f"row {i} has two children with the same first page"
    free, at = [], scalars["free_head"]
    while at != NULL and len(free) <= config.max_nodes:
        free.append(at)
        at = int(rows["next"][at])
    if len(free) != scalars["free_nodes"] or sorted([*free, *seen]) != list(range(config.max_nodes)):
        yield "the rows in use and the free list are not all rows, each once"


def _broken_sessions(state: CacheState, rows: _Rows) -> Iterator[str]:
    table = np.asarray(state.sessions.data)[:-1]
    column = {name: table[:, j] for j, name in enumerate(state.sessions.columns)}
    counts = {(c.name, i): 0 for c in state.config.components for i in rows.used}
    for s in np.flatnonzero(column["node"] != NULL):
        at = int(column["node"][s])
        if at != ROOT and at not in rows.used:
            yield f"session {s} is at row {at}, which holds no node"
            return
        if column["end"][s] != rows["end"][at]:
            yield f"session {s} is at {column['end'][s]} tokens, its node ends at {rows['end'][at]}"
        while at != ROOT:
            for component in state.config.components:
                counts[component.name, at] += int(rows["end"][at] > column[component.column("since")][s])
            at = int(rows["parent"][at])
    for component in state.config.components:
        for i in rows.used:
            if (count := rows[component.column("session")][i]) != counts[component.name, i]:
                yield f"{component.name}: row {i} counts {count} sessions, {counts[component.name, i]} refer to it"


def _broken_child_table(state: CacheState, rows: _Rows, edges: np.ndarray) -> Iterator[str]:
    heads = np.asarray(state.heads)
    found: list[int] = []
    for bucket in np.flatnonzero(heads != NULL):
        at = int(heads[bucket])
        while at != NULL and len(found) <= len(rows.used):
            found.append(at)
            if edges[at] != rows["hash"][at] or edges[at] & (len(heads) - 1) != bucket:
                yield f"row {at} is in bucket {bucket}, where its hash does not belong"
            at = int(rows["next"][at])
    if sorted(found) != rows.used:
        yield "the child table does not hold every node once"


def _broken_arena(rows: _Rows, scalars: dict[str, int], capacity: int) -> Iterator[str]:
    runs = sorted((int(rows["start"][i]), int(rows["length"][i])) for i in rows.used)
    if any(a + n > b for (a, n), (b, _) in itertools.pairwise(runs)):
        yield "two runs overlap in the token arena"
    if (runs and (runs[0][0] < 0 or sum(runs[-1]) > scalars["arena_top"])) or scalars["arena_top"] > capacity:
        yield "a run lies outside of the used part of the token arena"
    if sum(n for _, n in runs) != scalars["arena_live"]:
        yield f"arena_live is {scalars['arena_live']}, the runs hold {sum(n for _, n in runs)} tokens"
