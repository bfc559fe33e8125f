"""Calls that no state of the cache can make right."""

import numpy as np

from tests.oracle.components import FULL, SWA


def malformed_calls(c, setup) -> dict:
    bad_tokens = {
        "negative": [0, -1],
        "float": [1.5],
        "float array": np.zeros(4),
        "two dimensions": [[1, 2]],
        "beyond int32": [2**31],
        "text": "abc",
        "list of text": ["a"],
        "none": None,
        "too long": [0] * (setup.max_key_len + 1),
    }
    calls = {}
    for what, tokens in bad_tokens.items():
        calls[f"match, tokens: {what}"] = lambda t=tokens: c.match_prefix(t)
        calls[f"probe, tokens: {what}"] = lambda t=tokens: c.probe(t)
        calls[f"insert, tokens: {what}"] = lambda t=tokens: c.insert(t, {FULL: [0]})
        calls[f"match many, tokens: {what}"] = lambda t=tokens: c.match_prefixes([[0, 0, 0, 0], t])
    for what, space in {"float": 1.5, "list": ["a"], "object": object()}.items():
        calls[f"match, namespace: {what}"] = lambda s=space: c.match_prefix([0], namespace=s)
        calls[f"insert, namespace: {what}"] = lambda s=space: c.insert([], {FULL: []}, namespace=s)
    calls |= {
        "probes, namespaces of another number": lambda: c.probes([[0]], namespaces=[None, None]),
        "insert, no slots": lambda: c.insert([0] * setup.page_size, {}),
        "insert, slots of no component": lambda: c.insert([], {FULL: [], "none": []}),
        "insert, float slots": lambda: c.insert([0], {FULL: [0.5]}),
        "insert, priority beyond int32": lambda: c.insert([], {FULL: []}, priority=2**31),
        "insert, float evicted_len": lambda: c.insert([], {FULL: []}, evicted_len={FULL: 0.5}),
        "evict, negative": lambda: c.evict({FULL: -1}),
        "evict, no component": lambda: c.evict({"none": 1}),
        "evict, float": lambda: c.evict({FULL: 1.5}),
        "alloc, negative": lambda: c.alloc(FULL, -1),
        "alloc, no component": lambda: c.alloc("none", 1),
        "free, no component": lambda: c.free("none", []),
        "lock, negative": lambda: c.lock(-1),
        "lock, never given": lambda: c.lock(2**62),
        "lock, text": lambda: c.lock("0"),
        "unlock, none": lambda: c.unlock(None),
        "unlock, a node": lambda: c.unlock(0),
        "release early, no receipt": lambda: c.release_early(None, SWA),
        "advance, text": lambda: c.advance_session("0", 0),
        "advance, never given": lambda: c.advance_session(2**62, 0),
        "recede, never given": lambda: c.recede_session(2**62, 0),
        "recede, negative": lambda: c.recede_session(-1, 0),
        "close, never given": lambda: c.close_session(2**62),
        "close, none": lambda: c.close_session(None),
    }
    for name in setup.names[1:]:
        calls[f"evict, negative {name}"] = lambda name=name: c.evict({FULL: 1, name: -1})
        calls[f"insert, float slots of {name}"] = lambda name=name: c.insert([], {FULL: [], name: [0.5]})
    for name in setup.callers:
        calls[f"alloc, the caller's pool of {name}"] = lambda name=name: c.alloc(name, 1)
        calls[f"free, the caller's pool of {name}"] = lambda name=name: c.free(name, [0])
    return calls
