"""Short ways to work out a case of the oracle by hand.

Tokens are numbers from 0 on where nothing else is said, and nodes are named by the tokens that they cover, from where
to where.
"""

from tests.oracle import OracleCache
from tests.oracle.components import FULL, MAMBA, SWA


def make(*names, window=4, n=128, states=8, **options):
    pools = {name: states if name == MAMBA else n for name in (FULL, *names)}
    return OracleCache(pools=pools, window=window, **options)


def put(cache, tokens, *, state=False, given_up=0, prev=0, **options):
    """Inserts with fresh slots for all that the caller may have."""
    tokens = list(range(tokens)) if isinstance(tokens, int) else tokens
    own = {FULL: prev, SWA: max(prev, given_up)}
    slots = {
        name: [-1] * own[name] + cache.alloc(name, max(len(tokens) - own[name], 0))
        for name in cache.components
        if name != MAMBA
    }
    if MAMBA in cache.components:
        slots[MAMBA] = cache.alloc(MAMBA, int(state))
    evicted_len = {SWA: given_up} if given_up else None
    result = cache.insert(tokens, slots, prev_prefix_len=prev, evicted_len=evicted_len, **options)
    cache.check()
    return result


def spans(cache, name):
    """Per node what it has of a component."""
    return {(len(v.prefix) - len(v.key), len(v.prefix)): v.values[name] for v in cache.tree()}


def held(cache, name):
    return [span for span, value in spans(cache, name).items() if value is not None]


def counts(cache, name, field="locks"):
    return {(len(v.prefix) - len(v.key), len(v.prefix)): getattr(v, field)[name] for v in cache.tree()}


def order(cache, name):
    ends = {v.node: len(v.prefix) for v in cache.tree()}
    return [ends[number] for number in cache.access_order(name)]
