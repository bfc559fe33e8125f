"""A generated chat workload: numbers only, the same for the same seed."""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate, count

import numpy as np

from urc.replay.trace import Request, Trace

BLOCK_SIZE = 64  # tokens
CONTEXT = 8192  # tokens: a conversation ends before it outgrows them
SYSTEM_PROMPTS = 12  # shared by sessions, popularity ~ 1 / rank
ACTIVE_SESSIONS = 48  # open at a time
SKEW = 0.5  # of whose turn is next: the chance ~ rank ** -SKEW
MEAN_TURNS = 8  # of a conversation, geometric
ONE_SHOT = 0.4  # share of sessions that ask once and never return
LENGTHS = {"system": (256, 2048), "user": (16, 400), "output": (32, 600), "document": (1000, 4000)}  # tokens


@dataclass(slots=True)
class _Session:
    """One conversation: its tokens so far, and an id for each block that they fill."""

    ids: list[int]
    tokens: int
    turns_left: int
    message: str  # which of LENGTHS its user messages have


def chat_workload(*, requests: int, seed: int = 0, block_size: int = BLOCK_SIZE) -> Trace:
    """Generates interleaved multi-turn chat sessions that share a few system prompts.

    Each turn's input is the session's history and a new message; its output joins the history and
    the cache. Some sessions come once with a long document: they sweep a cache that only
    remembers what came last.

    Args:
      requests: how many; a shorter workload is the beginning of a longer one of the same seed.
      seed: of the generator.
      block_size: tokens that one id stands for.

    """
    rng = random.Random(seed)
    fresh = count()
    prompts = []
    for _ in range(SYSTEM_PROMPTS):
        tokens = _length(rng, "system")
        prompts.append((tokens, [next(fresh) for _ in range(tokens // block_size)]))
    sessions: list[_Session] = []
    served = []
    while len(served) < requests:
        while len(sessions) < ACTIVE_SESSIONS:
            sessions.insert(int(rng.random() * (len(sessions) + 1)), _open(rng, prompts))
        at = _zipf(rng, len(sessions), SKEW)
        session = sessions[at]
        input_length = session.tokens + _length(rng, session.message)
        output_length = _length(rng, "output")
        session.tokens = input_length + output_length
        session.ids.extend(next(fresh) for _ in range(session.tokens // block_size - len(session.ids)))
        ids = np.array(session.ids, np.int32)
        ids.flags.writeable = False
        served.append(Request(ids, input_length // block_size, input_length, output_length))
        session.turns_left -= 1
        longest_turn = LENGTHS[session.message][1] + LENGTHS["output"][1]
        if not session.turns_left or session.tokens + longest_turn > CONTEXT:
            del sessions[at]
    return Trace(name=f"generated chat, seed {seed}", block_size=block_size, requests=tuple(served))


def _open(rng: random.Random, prompts: list[tuple[int, list[int]]]) -> _Session:
    tokens, ids = prompts[_zipf(rng, len(prompts))]
    if rng.random() < ONE_SHOT:
        return _Session(list(ids), tokens, turns_left=1, message="document")
    turns = 2
    while rng.random() > 1 / (MEAN_TURNS - 1):
        turns += 1
    return _Session(list(ids), tokens, turns_left=turns, message="user")


def _length(rng: random.Random, kind: str) -> int:
    """Draws a length with a long tail: log-uniform between the two bounds."""
    low, high = LENGTHS[kind]
    return int(low * (high / low) ** rng.random())


def _zipf(rng: random.Random, n: int, exponent: float = 1.0) -> int:
    """Draws a rank below `n`, the chance of rank r being ~ (r + 1) ** -exponent."""
    weights = list(accumulate((rank + 1) ** -exponent for rank in range(n)))
    return bisect(weights, rng.random() * weights[-1])
