"""The kinds of state, by the questions that the cache asks of each; their order of rank is `RANKED`."""

from dataclasses import dataclass

from tests.oracle import results as r

FULL, SWA, MAMBA = "full", "swa", "mamba"
RANKED = (FULL, SWA, MAMBA)  # the highest first


@dataclass(frozen=True)
class Full:
    name = FULL
    per_token = True
    missing = None  # it is on every node

    def agrees(self, segments: list) -> list[bool]:
        """Could a request resume at the end of each segment? These are (node, tokens of it), from the root down."""
        return [True] * len(segments)

    def reads(self, node, length: int) -> bool:
        """Does a request that resumes at `length` read this node of its path?"""
        return True

    def touches(self, node, length: int, page_size: int) -> bool:
        """Is the node, of its path, used by it?"""
        return True

    def share(self, value: list | None, n: int) -> tuple:
        """What the first `n` tokens of a node keep of its value, and the others."""
        return (None, None) if value is None else (value[:n], value[n:])

    def matched(self, segments: list) -> list[int]:
        """The slots of a match of just these segments."""
        return [slot for node, n in segments for slot in node.values[FULL][:n]]


@dataclass(frozen=True)
class Swa(Full):
    window: int = 1
    name = SWA
    missing = r.WINDOW_BROKEN

    def agrees(self, segments: list) -> list[bool]:
        run, agreed = float("inf"), []  # tokens since the last tombstone
        for node, n in segments:
            run = 0 if node.values[SWA] is None else run + n
            agreed.append(run >= self.window)
        return agreed

    def reads(self, node, length: int) -> bool:
        return node.end > length - self.window

    def touches(self, node, length: int, page_size: int) -> bool:
        return node.end > length - (self.window + page_size)

    def matched(self, segments: list) -> list[int]:
        """Below the window nothing is locked, so nothing may be used."""
        slots = [slot for node, n in segments for slot in (node.values[SWA] or [-1] * n)[:n]]
        return [-1 if at < len(slots) - self.window else slot for at, slot in enumerate(slots)]


@dataclass(frozen=True)
class Mamba(Full):
    checkpoint_interval: int = 1
    max_states_per_path: int | None = None
    name = MAMBA
    per_token = False
    missing = r.NO_STATE

    def agrees(self, segments: list) -> list[bool]:
        return [n == len(node.key) and node.values[MAMBA] is not None for node, n in segments]

    def reads(self, node, length: int) -> bool:
        return node.end == length

    def touches(self, node, length: int, page_size: int) -> bool:
        return node.end == length

    def share(self, value: list | None, n: int) -> tuple:
        """The state is that after the last token."""
        return None, value

    def matched(self, segments: list) -> list[int]:
        return list(segments[-1][0].values[MAMBA]) if segments else []
