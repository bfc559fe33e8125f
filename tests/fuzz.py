"""The long run: random moves on the handle and on the oracle, over all setups, without a difference.

python -m tests.fuzz --ops 1000000 --seed 0 [--setup NAME] [--every 50]
"""

import argparse
import sys
import time

import numpy as np

from tests import moves
from tests.pair import Difference, Pair, errors
from tests.room import make_room
from tests.setups import SETUPS, Setup

OFTEN = {
    "request": 12,
    "insert_own": 8,
    "match": 8,
    "again": 4,
    "branch": 2,
    "lock": 3,
    "unlock": 5,
    "release_early": 2,
    "advance_session": 2,
    "turn": 2,
    "chunked": 3,
    "free": 5,
}
RARELY = {"close_session": 0.3, "reset": 0.1, "save": 0.2, "roll_back": 0.2, "twice": 0.2, "malformed": 0.2}
WEIGHTS = OFTEN | RARELY

Step = tuple[str, dict]


class Draw:
    """Random steps for one setup; keys often begin as an earlier key did."""

    def __init__(self, setup: Setup, rng: np.random.Generator):
        self.setup, self.rng, self.recent = setup, rng, [()]
        self.signatures = moves.Moves.signatures()
        self.names = sorted(self.signatures)
        weights = np.array([WEIGHTS.get(name, 1.0) for name in self.names])
        self.edges = np.cumsum(weights / weights.sum())

    def below(self, n: int) -> int:
        return int(self.rng.random() * n)

    def key(self) -> tuple:
        setup, size = self.setup, self.setup.page_size
        old = self.recent[self.below(len(self.recent))]
        pages = len(old) // size
        key = old[: (self.below(pages + 1) if self.below(2) else pages) * size]
        most = setup.max_pages if self.below(8) == 0 else (setup.max_pages + 1) // 2
        for _ in range(self.below(max(min(most - len(key) // size, 4), 0) + 1)):
            key += setup.pages[self.below(len(setup.pages))]
        self.recent = [*self.recent[-5:], key]
        return key + tuple(self.below(2) for _ in range(self.below(min(size, 5)))) if setup.tails else key

    def step(self) -> Step:
        name = self.names[min(int(np.searchsorted(self.edges, self.rng.random())), len(self.names) - 1)]
        return name, {argument: self.argument(kind) for argument, kind in self.signatures[name].items()}

    def argument(self, kind: type):
        match kind:
            case moves.Key:
                return self.key()
            case moves.Space:
                return max(self.below(2 * len(self.setup.namespaces)) - len(self.setup.namespaces), 0)
            case moves.Amount:
                small = self.below(3) < 2
                return self.below(4 if small else min(self.setup.slots + 3, 30 * self.setup.page_size))
            case moves.Pick:
                return self.below(3) * self.below(20)
            case moves.Flag:
                return bool(self.below(2))
            case moves.Priority:
                return self.below(4) - 1
        raise TypeError(kind)


def play(pair: Pair, steps, every: int) -> list[Step]:
    """Plays steps from an empty cache; returns those played. On a difference they are its `steps`."""
    pair.reset()
    driver, played = moves.Moves(pair), []
    try:
        for i, (name, arguments) in enumerate(steps):
            played.append((name, arguments))
            getattr(driver, name)(**arguments)
            if i % every == every - 1:
                pair.compare()
        pair.compare()
    except Exception as e:
        e.steps = played
        raise
    return played


def thin_out(pair: Pair, steps: list[Step], seconds: float = 60.0) -> list[Step]:
    """Fewer steps that still fail, for as long as time allows: stretches go, then single steps."""
    end, size = time.monotonic() + seconds, max(len(steps) // 2, 1)
    while time.monotonic() < end:
        at = 0
        while at < len(steps) and time.monotonic() < end:
            fewer = steps[:at] + steps[at + size :]
            try:
                play(pair, fewer, every=1)
                at += size
            except Exception as e:
                steps = e.steps if hasattr(e, "steps") else fewer
        if size == 1:
            break
        size //= 2
    return steps


def fuzz(setups: list[Setup], pair_of, *, ops: int, seed: int, every: int, log=print) -> int:
    """Runs until `ops` calls were compared or one differs; returns the number of differences."""
    pairs = [pair_of(setup) for setup in setups]
    start, last, episode = time.monotonic(), 0.0, 0
    while (done := sum(pair.calls for pair in pairs)) < ops:
        pair = pairs[episode % len(pairs)]
        draw = Draw(pair.setup, np.random.default_rng([seed, episode]))
        try:
            play(pair, (draw.step() for _ in range(pair.setup.episode)), every)
        except Exception as e:
            kind = "difference" if isinstance(e, Difference) else type(e).__name__
            log(f"{kind} in {pair.setup.name}, seed {seed}, episode {episode}, step {len(e.steps)}: {e}")
            fewest = thin_out(pair, e.steps)
            log("steps that lead to it:\n" + "\n".join(f"    {step!r}," for step in fewest))
            return 1
        episode += 1
        make_room()
        if (now := time.monotonic() - start) - last > 10:
            last = now
            log(f"{done:,} of {ops:,} operations, {episode} episodes, {done / now:,.0f} a second", flush=True)
    log(f"{done:,} operations, 0 differences")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=100_000, help="calls of the handle to compare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setup", "--config", choices=[*SETUPS], help="default: all, in turn")
    parser.add_argument("--every", type=int, default=50, help="steps between comparisons of everything")
    args = parser.parse_args()
    setups = [SETUPS[args.setup]] if args.setup else list(SETUPS.values())
    refused, no_room = errors()

    def pair_of(setup: Setup) -> Pair:
        return Pair(setup, setup.cache(), refused=refused, no_room=no_room)

    return fuzz(setups, pair_of, ops=args.ops, seed=args.seed, every=args.every)


if __name__ == "__main__":
    sys.exit(main())
