"""benchmarks/scale.py, but for how long it all takes: that the trees are what it says, and the figures right."""

import importlib.util
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import urc
from urc import state as states
from urc import view

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(FOLDER))


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scale = load("scale")
ALL = "Full+SWA+Mamba"
COST = scale.QUICK._replace(seconds=0.0, least=3)


def columns(state) -> dict[str, np.ndarray]:
    return dict(zip(state.nodes.columns, np.asarray(state.nodes.data).T, strict=True))


# -- the trees -------------------------------------------------------------------------------------------------------


def test_a_larger_forest_has_more_families_of_the_same_shape():
    forest = scale.Forest(300)
    assert (forest.family, forest.families, forest.nodes) == (100, 3, 300)
    assert np.bincount(forest.levels).tolist() == [0, 1, 3, 12, 84]
    children = np.bincount(
        [path[level - 2] for path, level in zip(forest.paths, forest.levels, strict=True) if level > 1]
    )
    assert children.tolist() == [3] + [4] * 3 + [7] * 12
    assert len(np.unique(forest.runs[:, 0])) == 300


def test_each_node_is_put_in_once_and_after_its_parent():
    forest = scale.Forest(300)
    keys, lengths = zip(*(forest.keys(nodes) for nodes in forest.order()), strict=True)
    keys, lengths = np.concatenate(keys), np.concatenate(lengths)
    known = {b""}
    for key, length in zip(keys, lengths, strict=True):
        assert key[: length - scale.RUN].tobytes() in known
        assert not key[length:].any()
        known.add(key[:length].tobytes())
    assert len(known) == 301
    counts = np.bincount(forest.visits(), minlength=300)
    assert counts.sum() == 3 * 84 + 25  # a tenth more
    assert np.flatnonzero(counts).tolist() == [i for i in range(300) if i % 100 >= 16]


@pytest.mark.parametrize(("among", "families"), [(0, 3), (2, 2)])
def test_a_request_is_a_path_and_a_run_that_no_node_begins_with(among, families):
    forest = scale.Forest(300)
    requests = np.concatenate([forest.requests(round_, among) for round_ in range(-2, 4)])
    assert np.array_equal(requests[-scale.BATCH :], scale.Forest(300).requests(3, among))
    leaves = np.concatenate([family * 100 + forest.leaves for family in range(families)])
    stored = {key[: scale.KNOWN].tobytes(): leaf for key, leaf in zip(forest.keys(leaves)[0], leaves, strict=True)}
    asked = {stored[key[: scale.KNOWN].tobytes()] // 100 for key in requests}
    assert asked == set(range(families))
    assert not np.isin(requests[:, scale.KNOWN], forest.runs[:, 0]).any()


@pytest.mark.parametrize("kinds", ["Full", pytest.param(ALL, marks=pytest.mark.slow)])
def test_the_state_is_the_forest_and_a_round_leaves_it_so(kinds):
    forest = scale.Forest(200)
    state = scale.build(forest, scale.config_of(200, kinds), chunk=64)
    view.check(state)
    rows = columns(state)
    used = rows["length"] > 0
    assert used.sum() == 200
    assert set(rows["length"][used]) == {scale.RUN}
    assert np.bincount(rows["end"][used] // scale.RUN).tolist() == [0, 2, 6, 24, 168]
    scalars = state.scalars.get(0)
    for component in state.config.components:
        assert scalars[f"{component.name}.evictable"] == (200 if component.name == "mamba" else 2000)
    subject = scale.Subject(forest, state)
    assert subject.match_all(0) > 0
    assert subject.insert_all(0) > 0
    view.check(subject.state)
    assert (columns(subject.state)["length"] > 0).sum() == 200


def test_victims_go_by_the_other_policy_and_the_state_stays():
    state = scale.build(scale.Forest(200), scale.config_of(200, "Full"), chunk=64)
    before = columns(state)
    kept = []
    evict = scale.EVICT
    scale.EVICT = lambda state, targets: kept.append(evict(state, targets)) or kept[-1]
    try:
        assert scale.victims_of(state, "fifo")(0) > 0
    finally:
        scale.EVICT = evict
    after = columns(kept[0][0])
    alive = set(np.flatnonzero(before["length"]).tolist())
    for _ in range(scale.BATCH):  # the oldest of those without children
        leaves = alive - {before["parent"][i] for i in alive}
        alive.remove(min(leaves, key=lambda i: (before["created_hi"][i], before["created_lo"][i])))
    assert set(np.flatnonzero(after["length"]).tolist()) == alive
    assert all(np.array_equal(before[name], column) for name, column in columns(state).items())


def test_paths_of_each_depth_hold_the_same_tokens(monkeypatch):
    monkeypatch.setattr(scale, "PATH_TOKENS", 64)
    monkeypatch.setattr(scale, "DEPTHS", (1, 2, 8))
    monkeypatch.setattr(scale, "BATCH", 3)
    state, keys = scale.chains("Full")
    view.check(state)
    assert {depth: key.shape for depth, key in keys.items()} == {1: (3, 64), 2: (3, 64), 8: (3, 64)}
    rows = columns(state)
    lengths = np.bincount(rows["length"])
    assert {length: lengths[length] for length in np.flatnonzero(lengths) if length} == {64: 3, 32: 2 * 3, 8: 8 * 3}


# -- the figures -----------------------------------------------------------------------------------------------------


def test_rounds_are_taken_in_turn_and_warm_ups_not_counted():
    asked = []
    calls = {name: lambda round_, name=name: asked.append((name, round_)) or 10.0 * round_ for name in "ab"}
    assert scale.measure(calls, COST) == {"a": [0.0, 10.0, 20.0], "b": [0.0, 10.0, 20.0]}
    assert [round_ for _, round_ in asked] == [-2, -2, -1, -1, 0, 0, 1, 1, 2, 2]
    assert [name for name, _ in asked] == list("baabbaabba")


def test_what_one_more_node_costs():
    times = {1: [64.0, 128.0], 64: [64.0 + 63 * 64 * 2.0, 128.0]}  # 2 s for each node of each of 64 requests; nothing
    assert scale.extra(times, 64) == [2.0, 0.0]


def test_a_figure_is_the_ratio_of_each_round():
    ratio = scale.over([2.0, 6.0, 4.0], [1.0, 2.0, 1.0])
    assert ratio.median == 3.0
    met = [scale.Ratio("nodes", "Full", "match", "", "", ratio, 3, goal).met for goal in (None, 2.9, 3.0)]
    assert met == [None, False, True]


def test_wrong_answers_stop_it():
    scale.demand([40, 40], 40)
    with pytest.raises(RuntimeError, match=r"expected 40 .*\[30, 40\]"):
        scale.demand([40, 30], 40)


def test_bytes_are_those_of_the_arrays():
    config = urc.CacheConfig(
        components=scale.KINDS[ALL], page_size=4, pools={"full": 640, "swa": 320, "mamba": 8}, max_nodes=100
    )
    state, sizes = states.init(config), scale.sizes_of(config)
    assert list(sizes) == list(scale.PARTS)
    assert sum(sizes.values()) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert sizes["tokens"] == 4 * (960 + 256)  # half as much again as the pool, and a chunk
    assert sizes["slots"] == 2 * sizes["tokens"]
    assert sizes["heads"] == 4 * 256  # the next power of two from twice the nodes on
    assert sizes["node table"] == 4 * (14 + 6 * 3) * config.node_rows


def test_bytes_per_token_are_of_a_full_pool():
    rows = scale.by_byte(tokens=3200, states=10)
    pages = [(kinds, page) for kinds in scale.KINDS for page in (1, 1, 16, 16, 64, 64)]
    assert [(row["kinds"], row["page"]) for row in rows] == pages
    assert [row["max_nodes"] for row in rows[:6]] == [3201, 50, 201, 50, 51, 50]
    for row, arena in zip(rows, [4800, 3520] * 6, strict=True):
        assert row["bytes"]["tokens"] == 4 * (arena + 256) / 3200
        assert row["all"] == pytest.approx(sum(row["bytes"].values()))


def calls() -> list:
    seconds = np.array([2.0] * 98 + [4.0, 20.0])
    return [scale.Calls("Full", 100, "insert", seconds, seconds > flag) for flag in (3, 30)]


def test_latencies_are_told_in_medians():
    one, none = calls()
    assert [float(one.quantile(q)) for q in (0.5, 1.0)] == [1.0, 10.0]
    assert one.compacting == 6.0
    assert none.compacting is None


def test_the_server_knows_when_the_arena_is_compacted(monkeypatch):
    monkeypatch.setattr(scale, "PROMPTS", 2)
    server, compactions = scale.Server("Full", 2048), 0
    for _ in range(30):
        before = int(server.cache.state.scalars.get(0)["arena_top"])
        insert, whole, compacted = server.step()
        assert 0 < insert < whole
        top = int(server.cache.state.scalars.get(0)["arena_top"])
        assert server.top == top
        if top < before:
            assert compacted
        compactions += compacted
    assert server.evicted
    # The arena has room for 12 runs of 256 tokens, the pool for 8, of which at least 4 are in the tree when a request
    # has its slots. So at most 8 inserts pass from one compaction to the next.
    assert compactions >= (30 - 12) // 9
    server.cache.check()


def test_it_can_be_shown_written_and_drawn(tmp_path):
    ratio = scale.Ratio("nodes", "Full", "match", "handle", "x", scale.spread([1.0, 2.0, 3.0]), 3, 1.3)
    rows, found = scale.by_byte(tokens=3200, states=10), calls()
    assert [table.row_count for table in scale.tables([ratio], rows, found)] == [1, 12, 2]
    written = json.loads(json.dumps(scale.document([ratio], rows, found)))
    assert written["ratios"][0]["value"]["median"] == 2.0
    assert written["ratios"][0]["met"] is False
    assert [one["compactions"] for one in written["calls"]] == [2, 0]
    assert written["calls"][0]["medians"]["1.0"] == 10.0
    scale.plot(found, tmp_path / "calls.png")
    assert (tmp_path / "calls.png").stat().st_size > 10_000
