"""A component in a user's own file (`compressed.py`) works beside the others without a line changed in `urc`.

The contract of the transitions (tests/ops) and a request's life (tests/test_requests.py) run with it as well.
"""

from pathlib import Path

import numpy as np
import pytest

import urc
from tests.components.compressed import Compressed

POOLS = {"full": 64, "compressed": 16, "swa": 64, "mamba": 4}
COMPONENTS = (urc.Full(), Compressed(ratio=4), urc.SWA(window=4), urc.Mamba())
_cache = urc.UnifiedRadixCache(urc.CacheConfig(components=COMPONENTS, pools=POOLS, max_key_len=64))


@pytest.fixture
def cache():
    _cache.reset()
    return _cache


def insert(cache, tokens, *, state=False, prev=0):
    tokens = list(tokens)
    slots = {name: [-1] * prev + cache.alloc(name, len(tokens) - prev).tolist() for name in ("full", "swa")}
    blocks = [-1] * (prev // 4)
    slots["compressed"] = blocks + cache.alloc("compressed", len(tokens) // 4 - prev // 4).tolist()
    slots["mamba"] = cache.alloc("mamba", int(state))
    result = cache.insert(tokens, slots, prev_prefix_len=prev)
    cache.check()
    return result


def blocks(cache):
    return {view.prefix: view.values["compressed"] for view in cache.tree()}


def test_urc_does_not_know_it():
    source = "\n".join(path.read_text() for path in Path(urc.__file__).parent.rglob("*.py"))
    assert "compressed" not in source.lower()


def test_a_block_belongs_to_the_node_in_which_it_ends(cache):
    insert(cache, range(10), state=True)  # blocks end at 4 and 8; SWA cuts the leaf at 6
    assert blocks(cache) == {tuple(range(6)): (0,), tuple(range(10)): (1,)}
    assert cache.match_prefix(range(10)).slots["compressed"].tolist() == [0, 1]
    cache.match_prefix(range(3))
    assert blocks(cache) == {tuple(range(3)): (), tuple(range(6)): (0,), tuple(range(10)): (1,)}
    assert cache.sizes()["compressed"] == urc.Sizes(14, 2, 0)


def test_it_decides_where_a_request_resumes_and_says_so(cache):
    insert(cache, range(4), state=True)
    insert(cache, range(8), state=True, prev=4)
    cache.evict({"compressed": 1})
    # Ranks: Compressed above SWA and Mamba, which go with it on the inner node.
    assert [view.values for view in cache.tree()] == [
        {"full": (0, 1, 2, 3), "compressed": None, "swa": None, "mamba": None},
        {"full": (4, 5, 6, 7), "compressed": (1,), "swa": (4, 5, 6, 7), "mamba": (1,)},
    ]
    found = cache.match_prefix(range(8))
    assert (found.device_len, found.full_len, found.stop) == (0, 8, urc.Stop.NO_STATE)
    assert found.hits == {"full": 8, "compressed": 0, "swa": 8, "mamba": 8}
    again = insert(cache, range(4), state=True)
    assert [len(again.adopted[name]) for name in ("full", "compressed", "swa", "mamba")] == [0, 1, 4, 1]
    assert cache.match_prefix(range(8)).device_len == 8


def test_it_is_locked_and_sessions_refer_to_it_by_its_own_rule(cache):
    insert(cache, range(4))
    node = insert(cache, range(12), state=True, prev=4).node
    receipt, session = cache.lock(node), cache.open_session()
    assert cache.advance_session(session, node)
    per_node = [(view.locks, view.sessions) for view in cache.tree()]
    count = lambda swa: {"full": 1, "compressed": 1, "swa": swa, "mamba": swa}
    assert per_node == [(count(0), count(0)), (count(0), count(0)), (count(1), count(1))]
    cache.release_early(receipt, "compressed")  # and what ranks lower
    assert [view.locks for view in cache.tree()] == [{"full": 1, "compressed": 0, "swa": 0, "mamba": 0}] * 3
    cache.unlock(receipt)
    assert cache.close_session(session)
    cache.check()


def test_wrong_counts_are_refused(cache):
    slots = {"full": cache.alloc("full", 8), "compressed": cache.alloc("compressed", 3)}
    with pytest.raises(urc.InvalidInput, match="it takes 2"):
        cache.insert(range(8), slots)
    done = cache.insert(range(8), slots | {"compressed": slots["compressed"][:2]})
    assert np.array_equal(done.adopted["full"], slots["full"])


def test_it_imports_only_the_contract_and_the_tables_under_it():
    text = Path(__file__).with_name("compressed.py").read_text()
    used = {line.split()[1] for line in text.splitlines() if line.startswith("from urc")}
    assert used == {"urc.components.base", "urc.tables", "urc.tables.packed"}
