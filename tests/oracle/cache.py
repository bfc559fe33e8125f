"""A radix cache of plain lists and dicts, written from the semantics, as simple as it can be.

It knows `Full`, `SWA` and `Mamba` on the device tier. Everything is found by walking or scanning; nothing is
cached, so nothing can be stale. Checks come first in every operation, so a refused one has changed nothing.
"""

import math
from itertools import accumulate

from tests.oracle import results as r
from tests.oracle.components import FULL, MAMBA, RANKED, SWA
from tests.oracle.node import Claim, Node
from tests.oracle.policies import score
from tests.oracle.tree import OracleTree


class OracleCache(OracleTree):
    # Matching. A segment is a node and how many of its tokens agree: all but in the last one of a path.

    def _segments(self, tokens, namespace) -> tuple[list, bool, str]:
        """The segments of a key, whether the last one ends inside its node, and why the walk ended."""
        path, part, stop = self._walk(namespace, self._pages(self._tokens(tokens)))
        return [(node, len(node.key)) for node in path] + ([part] if part else []), part is not None, stop

    def _agreed(self, segments: list) -> dict[str, list[int]]:
        """Per component the positions at which it alone agrees."""
        ends = list(accumulate(n for _, n in segments))
        return {
            name: [0] + [end for end, agrees in zip(ends, component.agrees(segments), strict=True) if agrees]
            for name, component in self.components.items()
        }

    def _answer(self, segments: list, inside: bool, stop: str, *, stuck: bool = False) -> r.Match:
        """The result, with the segments' nodes as they are; `stuck`: no node is free to split the last one."""
        agreed = self._agreed(segments)
        full_len = sum(n for _, n in segments)
        together = set.intersection(*map(set, agreed.values()))
        device_len = max(together)
        hits = {name: max(positions) for name, positions in agreed.items()}
        if stuck and inside and device_len == full_len:
            device_len = full_len = max(together - {full_len})
            hits = {name: min(hit, device_len) for name, hit in hits.items()}
            stop = r.NO_FREE_NODE
        elif device_len < full_len:
            least = min(self.components, key=lambda name: (hits[name], RANKED.index(name)))
            stop = self.components[least].missing
        used = [s for s, end in zip(segments, accumulate(n for _, n in segments), strict=True) if end <= device_len]
        node = used[-1][0].number if used else 0
        return r.Match(
            device_len=device_len,
            node=node,
            slots={name: component.matched(used) for name, component in self.components.items()},
            host_len=0,
            best_node=node,
            full_len=full_len,
            hits=hits,
            branching_len=self._branching_len(device_len, full_len),
            stop=stop,
        )

    def _branching_len(self, device_len: int, full_len: int) -> int:
        interval = self.components[MAMBA].checkpoint_interval if MAMBA in self.components else 1
        unit = math.lcm(self.page_size, interval)
        last = full_len // unit * unit
        return last if last > device_len else 0

    def probe(self, tokens, namespace=None) -> r.Match:
        return self._answer(*self._segments(tokens, namespace))

    def match_prefix(self, tokens, namespace=None) -> r.Match:
        segments, inside, stop = self._segments(tokens, namespace)
        stuck = inside and self.free_nodes() < 1
        if inside and not stuck:
            node, n = segments[-1]
            segments[-1] = self._split(node, n), n
        answer = self._answer(segments, inside, stop, stuck=stuck)
        if answer.device_len > 0:
            path = [node for node, _ in segments if node.end <= answer.device_len]
            self._touch(path, answer.device_len)
        return answer

    def probes(self, keys, namespaces=None) -> list[r.Match]:
        spaces = namespaces or [None] * len(keys)
        return [self.probe(key, space) for key, space in zip(keys, spaces, strict=True)]

    def match_prefixes(self, keys, namespaces=None) -> list[r.Match]:
        spaces = namespaces or [None] * len(keys)
        return [self.match_prefix(key, space) for key, space in zip(keys, spaces, strict=True)]

    # Inserting

    def insert(
        self, tokens, slots, namespace=None, prev_prefix_len=0, inserted_len=0, evicted_len=None, priority=0
    ) -> r.Insert:
        tokens = self._tokens(tokens)
        key = self._pages(tokens)
        key_len = len(key)
        path, part, _ = self._walk(namespace, key)
        present = sum(len(node.key) for node in path) + (part[1] if part else 0)
        given = {name: [int(s) for s in slots.get(name, ())] for name in self.components}
        evicted_len = evicted_len or {}
        counts = {FULL: {len(tokens), key_len}, SWA: {len(tokens), key_len, 0}, MAMBA: {0, 1}}
        if set(slots) - set(given) or any(len(of) not in counts[name] for name, of in given.items()):
            raise r.OracleRefused("not as many slots as there must be")
        if set(evicted_len) - set(given) or any(n for name, n in evicted_len.items() if name != SWA):
            raise r.OracleRefused("only slots of SWA are given up")
        if not 0 <= prev_prefix_len <= present or inserted_len < 0 or evicted_len.get(SWA, 0) < 0:
            raise r.OracleRefused("a length out of range")
        # The caller's own begin here, per component.
        lowest = {FULL: prev_prefix_len, SWA: max(prev_prefix_len, evicted_len.get(SWA, 0)), MAMBA: 0}
        self._check_held({name: of[lowest[name] :] for name, of in given.items()})

        cuts = self._cuts(path, part, present, key_len, lowest[SWA]) if given.get(SWA) else []
        if bool(part) + (present < key_len) + len(cuts) > self.free_nodes():
            raise r.OracleFull("no free node")
        if self.arena_tokens is not None and self.live_tokens() + key_len - present > self.arena_tokens:
            raise r.OracleFull("no room for the key")

        if part:
            path.append(self._split(*part))
        existed = dict.fromkeys(given, False)
        if key_len == present > 0:
            existed = {name: value is not None for name, value in path[-1].values.items()}
        if present < key_len:
            path.append(self._new_leaf(path[-1] if path else self.root, namespace, key[present:], priority))
        for cut in cuts:
            at = next(i for i, node in enumerate(path) if node.start < cut < node.end)
            path.insert(at, self._split(path[at], cut - path[at].start))
        for node in path:
            node.hit_count += node.end > inserted_len
            node.priority = max(node.priority, priority)
            node.longest = max(node.longest, key_len)

        adopted, recovered = {}, []
        for name, of in given.items():
            adopted[name] = []
            for node in path:
                takes = node.values[name] is None and self._gives(name, of, node, key_len, lowest[name])
                if takes:
                    node.values[name] = takes
                    adopted[name] += takes
                    recovered += [node] if name == SWA else []
        taken = {name: set(slots) for name, slots in adopted.items()}
        freed = {name: [s for s in of[lowest[name] :] if s not in taken[name]] for name, of in given.items()}
        if path:
            self._touch(path, key_len, also=recovered)
        if adopted.get(MAMBA):
            freed[MAMBA] += self._limit_states(path)
        for name, out in freed.items():
            self._give(name, out)
        return r.Insert(present, path[-1].number if path else 0, adopted, freed, existed)

    def _cuts(self, path: list[Node], part, present: int, key_len: int, lo: int) -> list[int]:
        """Where nodes without SWA are cut: where the caller's slots begin, and so that the tail is one window."""
        ceil = lambda n: -(-n // self.page_size) * self.page_size
        first, window = ceil(lo), key_len - ceil(self.components[SWA].window)
        gaps = [(node.start, node.end) for node in path if node.values[SWA] is None]
        if part and part[0].values[SWA] is None:
            gaps.append((part[0].start, present))
        gaps.append((present, key_len))
        wanted = [first, window] if window > first else [first]
        return [cut for cut in wanted if any(start < cut < end for start, end in gaps)]

    def _new_leaf(self, parent: Node, namespace, key: tuple, priority: int) -> Node:
        self.numbers += 1
        leaf = Node(
            number=self.numbers,
            parent=parent,
            namespace=namespace,
            key=key,
            priority=priority,
            created=self.clock + 1,
            values=dict.fromkeys(self.components),
            locks=self.none(),
            sessions=self.none(),
        )
        parent.children.append(leaf)
        return leaf

    def _gives(self, name: str, given: list[int], node: Node, key_len: int, lowest: int) -> list[int]:
        """The caller's slots for a node of the path that has none; nothing if he has not all of them."""
        if name == MAMBA:
            return list(given) if node.end == key_len else []
        return given[node.start : node.end] if node.start >= lowest else []

    def _limit_states(self, path: list[Node]) -> list[int]:
        """Frees the states of a path beyond the number that it may keep; forks, ends and what is in use are spared."""
        most = self.components[MAMBA].max_states_per_path
        if most is None:
            return []
        states = [node for node in path if node.values[MAMBA] is not None]
        spared = [n for n in states if n is path[-1] or len(n.children) != 1 or n.locks[MAMBA] > 0]
        others = [node for node in states if node not in spared]
        freed = []
        for node in others[: max(len(others) - max(most - len(spared), 0), 0)]:
            freed += node.values[MAMBA]
            node.values[MAMBA] = None
        return freed

    # Evicting

    def evict(self, wanted: dict) -> r.Evict:
        if set(wanted) - set(self.components) or any(n < 0 for n in wanted.values()):
            raise r.OracleRefused("cannot evict that")
        freed = {name: [] for name in self.components}
        for driver in self.components:
            while len(freed[driver]) < wanted.get(driver, 0):
                candidates = [n for n in self.nodes() if self._may_go(driver, n)]
                if not candidates:
                    break
                victim = min(candidates, key=lambda n: self._value_of(driver, n))
                for name, out in self._evict_node(driver, victim).items():
                    freed[name] += out
        for name, out in freed.items():
            self._give(name, out)
        return r.Evict({name: len(out) for name, out in freed.items()}, freed)

    @staticmethod
    def _is_device_leaf(node: Node) -> bool:
        return not node.children and not any(node.locks.values())

    def _may_go(self, driver: str, node: Node) -> bool:
        if driver == FULL:
            return self._is_device_leaf(node)
        return node.values[driver] is not None and node.locks[driver] == 0

    def _value_of(self, driver: str, node: Node) -> tuple:
        """The least goes first."""
        worth = score(self.policy, node, **self.policy_args) if driver == FULL else (node.access[driver], node.start)
        return node.sessions[driver] > 0, worth

    def _evict_node(self, driver: str, node: Node) -> dict[str, list[int]]:
        """Takes a leaf whole; of another node what the driver may take with it."""
        if self._is_device_leaf(node):
            self._delete(node)
            return {name: node.values[name] or [] for name in node.values}
        freed = {}
        for name in RANKED[RANKED.index(driver) :]:
            if name in node.values and node.values[name] is not None and node.locks[name] == 0:
                freed[name], node.values[name] = node.values[name], None
        return freed

    def _delete(self, leaf: Node) -> None:
        """Sessions that end here now end at the parent; what else they count stays as it is."""
        leaf.parent.children.remove(leaf)
        for session in self.sessions.values():
            if session and session.node is leaf:
                session.node = leaf.parent
                session.parts = session.parts - {MAMBA}

    # Locking

    def _claim(self, node: Node) -> Claim:
        """What a request that resumes at `node` reads, values or not."""
        window = self.components.get(SWA)
        starts = [n.start for n in node.path if window and window.reads(n, node.end)]
        return Claim(node, min(starts, default=node.end), set(self.components))

    @staticmethod
    def _count(claim: Claim, field: str, parts, by: int) -> None:
        for name in parts:
            for node in claim.nodes(name):
                getattr(node, field)[name] += by

    def lock(self, number: int) -> r.Receipt:
        claim = self._claim(self.find(number))
        self._count(claim, "locks", claim.parts, 1)
        self.receipts_made += 1
        self.receipts[self.receipts_made] = claim
        return r.Receipt(self.receipts_made, number)

    def _live(self, receipt: r.Receipt) -> Claim:
        claim = self.receipts.get(receipt.number)
        if claim is None or claim.node.number != receipt.node:
            raise r.OracleRefused("no such receipt is out")
        return claim

    def unlock(self, receipt: r.Receipt) -> None:
        claim = self._live(receipt)
        self._count(claim, "locks", claim.parts, -1)
        del self.receipts[receipt.number]

    def release_early(self, receipt: r.Receipt, name: str) -> None:
        claim = self._live(receipt)
        if name == FULL or name not in claim.parts:
            raise r.OracleRefused("not there to be released")
        parts = claim.parts & set(RANKED[RANKED.index(name) :])
        self._count(claim, "locks", parts, -1)
        claim.parts = claim.parts - parts

    # Sessions

    def _session(self, number: int) -> Claim | None:
        if number not in self.sessions:
            raise r.OracleRefused(f"no session {number}")
        return self.sessions[number]

    def open_session(self) -> int:
        if self.max_sessions is not None and sum(c is not None for c in self.sessions.values()) >= self.max_sessions:
            raise r.OracleFull("no session is free")
        number = len(self.sessions) + 1
        self.sessions[number] = self._claim(self.root)
        return number

    def advance_session(self, number: int, node: int) -> bool:
        session, node = self._session(number), self.find(node)
        if session:
            self._move(number, node)
        return session is not None

    def recede_session(self, number: int, length: int) -> bool:
        session = self._session(number)
        if length < 0:
            raise r.OracleRefused("a length out of range")
        if session:
            at = [node for node in [self.root, *session.node.path] if node.end <= length]
            self._move(number, at[-1])
        return session is not None

    def close_session(self, number: int) -> bool:
        session = self._session(number)
        if session:
            self._count(session, "sessions", session.parts, -1)
            self.sessions[number] = None
        return session is not None

    def _move(self, number: int, node: Node) -> None:
        session = self.sessions[number]
        self._count(session, "sessions", session.parts, -1)
        self.sessions[number] = claim = self._claim(node)
        self._count(claim, "sessions", claim.parts, 1)
