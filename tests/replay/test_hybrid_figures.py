"""What branching points are worth on real traces, as docs/guide/traces.md tells it."""

import pytest

from tests.replay.hybrid_stand_in import HybridTree
from tests.replay.test_figures import load
from urc.replay import hybrid
from urc.replay.hybrid import COMPONENTS, Hybrid

SLOTS = {"full": 50_000, "swa": 20_000, "mamba": 6_250}  # in the pools of all caches here: they share compiled code
FIGURES = {  # trace, capacity, states: token hit rate and tokens lost for want of a state, with and without
    ("chat_sessions_pages16", 2_000, 8): ((0.0259, 0.0571), (0.0431, 0.0468)),
    ("chat_sessions_pages16", 20_000, 79): ((0.1550, 0.2369), (0.2093, 0.2123)),
    ("chat_sessions_pages16", 20_000, 316): ((0.9277, 0.0002), (0.9277, 0.0002)),
    ("mooncake_synthetic", 5_860, 733): ((0.3150, 0.0059), (0.3143, 0.0066)),
    ("mooncake_synthetic", 20_000, 2_500): ((0.5867, 0.0059), (0.5830, 0.0096)),
    ("mooncake_conversation", 5_860, 733): ((0.1183, 0.0245), (0.1200, 0.0228)),
    ("mooncake_conversation", 20_000, 2_500): ((0.2761, 0.0225), (0.2787, 0.0201)),
    ("mooncake_conversation", 50_000, 6_250): ((0.3544, 0.0098), (0.3526, 0.0114)),
}
CASES = [
    pytest.param(*setup, branching, figures, kind, marks=[] if kind == "stand-in" else pytest.mark.slow)
    for setup, both in FIGURES.items()
    for branching, figures in zip((True, False), both, strict=True)
    for kind in (["stand-in", "urc"] if setup[0] == "chat_sessions_pages16" else ["urc"])
]


@pytest.mark.parametrize(("name", "capacity", "states", "branching", "figures", "kind"), CASES)
def test_figure(name, capacity, states, branching, figures, kind):
    trace, _ = load(name)
    model = Hybrid(components=COMPONENTS, window=1024, interval=4096, block_size=trace.block_size, branching=branching)
    pools = model.pools(capacity, states=states)
    if kind == "urc":
        cache = hybrid.open_cache(slots=SLOTS, pools=pools, policy="lru", model=model)
    else:
        cache = HybridTree(pools, window=model.window_blocks)
    run = hybrid.replay(trace, cache, model, pools=pools, policy="lru")
    assert run.refused == 0
    assert (run.rate.tokens, run.lost["mamba"].tokens) == pytest.approx(figures, abs=1e-4)
    assert run.lost["swa"].tokens == 0
    assert run.held == states - cache.sizes()["mamba"].free == run.peak == states
