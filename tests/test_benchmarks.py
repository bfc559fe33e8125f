"""The benchmarks, but for what they measure: that both sides are asked the same, and that the figures are right."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import sglang_process
import sglang_report
import sglang_standins
import sglang_urc
import workload
from sglang_report import REPLAY, ROWS, Case
from workload import BATCH, NEW, Tree

from urc import compiled

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str):
    """A benchmark that is run as a program: its name may be another package's, so it is not imported by that."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sglang = load("sglang")
MATCH = next(row for row in ROWS if row.op == "match")


def case(times: dict | None, row=MATCH, tokens: int = 2048, page: int = 1, kinds: str = "full") -> Case:
    return Case(row, kinds, page, tokens, times)


# -- the workload ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch) -> int:
    """The size of a tree of 2 * 3 sequences: 64 tokens that all have, then 32 and 64."""
    monkeypatch.setitem(workload.LEVELS, 224, ((64, 1), (32, 2), (64, 3)))
    return 224


def test_a_tree_is_the_same_for_the_same_seed_and_shares_what_its_levels_say(small):
    tree, same = Tree(small), Tree(small)
    keys, shared = zip(*tree.inserts(), strict=True)
    assert [len(key) for key in keys] == [160] * 6
    assert shared == (0, 96, 96, 64, 96, 96)
    assert tree.stored == 64 + 2 * 32 + 6 * 64
    for i, j in ((0, 1), (0, 3), (2, 5)):
        differ = np.flatnonzero(keys[i] != keys[j])
        assert differ[0] == (96 if (i < 3) == (j < 3) else 64)
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(tree.inserts(), same.inserts(), strict=True))


def test_a_round_depends_on_nothing_but_its_number(small):
    tree, other = Tree(small), Tree(small)
    other.round(3, 5)
    other.request()
    for leaves in (False, True):
        ours, theirs = tree.round(7, 5, leaves=leaves), other.round(7, 5, leaves=leaves)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(tree.round(7, 5), tree.round(8, 5), strict=True))


@pytest.mark.parametrize(("leaves", "length", "hit"), [(False, 224, 160), (True, 160, 96)])
def test_a_request_is_a_stored_prefix_and_tokens_that_no_other_has(small, leaves, length, hit):
    tree = Tree(small)
    stored = {key[:n].tobytes() for key, _ in tree.inserts() for n in range(len(key) + 1)}
    firsts = []
    for key in [*tree.round(0, 20, leaves=leaves), *tree.round(1, 20, leaves=leaves)]:
        assert len(key) == length
        assert key[:hit].tobytes() in stored
        assert key[: hit + 1].tobytes() not in stored
        firsts.append(int(key[hit]))
    assert len(set(firsts)) == 40


def test_the_workload_needs_numpy_alone():
    """The peer's process has no `urc` and no JAX."""
    code = "import sys, workload; print(any(name.split('.')[0] in ('jax', 'urc') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- rounds ----------------------------------------------------------------------------------------------------------


def cost(least: int, most: int, warm_up: int = 2):
    return sglang.Cost(0.0, least, most, warm_up)


def test_sides_take_turns_and_rounds_that_warm_up_do_not_count():
    order = []

    def side(name: str, seconds: float):
        def answer(number: int):
            order.append((number, name))
            return seconds + number, [number]

        return answer

    sides = {name: side(name, seconds) for name, seconds in (("urc", 0.5), ("rust", 10.0), ("python", 20.0))}
    times = sglang.measure(sides, cost(3, 3), lambda mine, theirs: mine == theirs)
    assert times == {"urc": [2.5, 3.5, 4.5], "rust": [12.0, 13.0, 14.0], "python": [22.0, 23.0, 24.0]}
    assert [name for number, name in order if number == 0] == ["urc", "rust", "python"]
    assert [name for number, name in order if number == 1] == ["rust", "python", "urc"]
    assert [name for number, name in order if number == 2] == ["python", "urc", "rust"]


def test_time_ends_the_rounds_once_there_are_enough():
    sides = {"urc": lambda number: (1.0, [])}
    assert len(sglang.measure(sides, cost(4, 9), lambda mine, theirs: True)["urc"]) == 4
    long = sglang.Cost(3600.0, 4, 9)
    assert len(sglang.measure(sides, long, lambda mine, theirs: True)["urc"]) == 9


def test_answers_that_differ_end_the_run():
    sides = {"urc": lambda number: (1.0, [7, 7]), "rust": lambda number: (1.0, [7, 7 + (number == 1)])}
    with pytest.raises(AssertionError, match="rust core do not agree"):
        sglang.measure(sides, cost(3, 3), sglang.agreement("match", 64))


def test_what_is_evicted_may_differ_by_less_than_a_leaf():
    evict = sglang.agreement("evict_many", 64)
    assert evict([640], [640 + 63])
    assert not evict([640], [640 + 64])
    assert not evict([640], [640, 0])
    assert not sglang.agreement("match", 64)([640], [641])


# -- figures ---------------------------------------------------------------------------------------------------------


def test_a_ratio_is_taken_round_by_round():
    found = case({"urc": [3.0, 1.0, 8.0], "rust": [1.0, 1.0, 4.0], "python": [6.0, 2.0, 16.0]})
    assert found.ratio("rust") == pytest.approx((2.0, 1.2, 2.8))  # of 1, 2, 3
    assert found.ratio("python") == pytest.approx((0.5, 0.5, 0.5))


def test_a_target_is_met_up_to_itself():
    target = MATCH.targets[2048]
    assert case({"urc": [target] * 2, "rust": [1.0] * 2}).met is True
    assert case({"urc": [target * 1.01] * 2, "rust": [1.0] * 2}).met is False
    assert case({"urc": [1.0] * 2}).met is None
    assert case(None).met is None


def test_alone_times_are_told_in_lone_matches():
    insert = next(row for row in ROWS if row.op == "insert")
    step = next(row for row in ROWS if row.op == "step")
    cases = [
        case({"urc": [64.0, 64.0]}),  # 1 second each
        case({"urc": [128.0, 128.0]}, page=64),
        case({"urc": [192.0, 192.0]}, insert, 8192),
        case({"urc": [5.0, 5.0]}, step, 8192),
        case(None, step, 8192, 16),
    ]
    assert BATCH == 64
    assert {index: times.median for index, times in sglang_report.relative(cases).items()} == {0: 1, 1: 2, 2: 3, 3: 5}
    assert sglang_report.relative(cases[1:]) == {}


def test_tables_show_each_case_where_it_belongs():
    times = {"urc": [2.0, 2.0], "rust": [1.0, 1.0], "python": [4.0, 4.0]}
    cases = [
        case(times, tokens=8192),
        case(times, page=64),
        case(None),
        case({"urc": [1.0, 1.0], "rust": [4.0, 4.0]}, REPLAY, 0),
    ]
    table = sglang_report.ratio_table(cases)
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["operation"] == ["match", "match", "replay"]
    assert columns["tokens"] == ["2,048", "8,192", ""]
    assert columns["page 1"] == ["-", "2 (2 - 2) [red]missed[/] | 0.5", "0.25 (0.25 - 0.25) [green]met[/]"]
    assert columns["page 64"] == ["2 (2 - 2) [green]met[/] | 0.5", "", ""]
    alone = sglang_report.alone_table([case({"urc": [64.0, 64.0]}), case({"urc": [32.0, 32.0]}, page=64)])
    assert [list(column.cells) for column in alone.columns][-2:] == [["1 (1 - 1)"], ["0.5 (0.5 - 0.5)"]]


def test_what_is_written_holds_what_was_measured():
    cases = [case({"urc": [2.0, 2.0], "rust": [1.0, 1.0]}), case(None, page=16)]
    written = sglang_report.document({"jax": "x"}, cases)
    assert written["jax"] == "x"
    first, second = written["cases"]
    assert (first["rounds"], first["met"], first["target"]) == (2, True, 2.5)
    assert first["ratio"] == {"rust": {"median": 2.0, "p10": 2.0, "p90": 2.0}}
    assert (second["rounds"], second["met"], second["ratio"], second["relative_time"]) == (0, None, {}, None)


@pytest.mark.parametrize("alone", [False, True])
def test_the_picture_shows_every_case_and_its_target(tmp_path, alone):
    cases = [case({"urc": [2.0, 2.0], "rust": [1.0, 1.0]}), case(None, page=16), case(None, tokens=8192)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        sglang_report.plot(cases, tmp_path / "figure.svg", alone=alone)
    drawn = (tmp_path / "figure.svg").read_text()
    for text in ("full: match, one, 2,048", "full: match, one, 8,192", "page size 1", "page size 16"):
        assert text in drawn
    assert (">target<" in drawn) != alone


def test_each_size_of_the_grids_has_a_tree_and_rows():
    for setup in [*sglang.FULL_GRID, *sglang.QUICK_GRID]:
        assert setup.tokens in workload.LEVELS
        assert any(row.measured(setup.tokens, setup.names) for row in ROWS)
    assert not any(row.measured(256, ("full",)) for row in ROWS)


# -- the caches ------------------------------------------------------------------------------------------------------

LEAF = 64


@pytest.mark.parametrize("names", [("full",), ("full", "swa", "mamba")])
def test_each_operation_of_urc_answers_as_it_should_and_is_undone(small, names, monkeypatch):
    monkeypatch.setattr(sglang_urc, "MAX_NODES", 1024)
    tree = Tree(small)
    subject = sglang_urc.Subject(tree, sglang_urc.pools_of(tree, list(names)), 16)
    expected = {
        "match": [small - NEW] * BATCH,
        "match_all": [small - NEW] * BATCH,
        "insert": [small - NEW] * BATCH,
        "insert_all": [small - NEW] * BATCH,
        "evict": [LEAF] * BATCH,
        "evict_many": [LEAF * workload.LEAVES],
        "lock": [small - NEW] * BATCH,
        "lock_all": [small - NEW] * BATCH,
    }
    before = subject.cache.sizes()
    for op, answers in expected.items():
        for number in (0, 1):
            if subject.has(op):
                seconds, found = getattr(subject, op)(number)
                assert found == answers, op
                assert seconds > 0
                assert subject.cache.sizes() == before, op
    if subject.has("step") and names == ("full",):
        known = [small - NEW] * workload.STEP
        subject.start_steps()
        assert subject.step(0)[1] == [*known, 0]
        assert subject.step(1)[1] == [*known, *known, 0]
        assert subject.step(2)[1] == [*known, *known, 0]
    subject.cache.check()


# -- the peer's process ----------------------------------------------------------------------------------------------


def test_without_a_peer_it_says_how_to_get_one(tmp_path):
    with pytest.raises(SystemExit, match="--install-peer"):
        sglang_process.Peer(tmp_path)


def make_peer(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> sglang_process.Peer:
    """A worker that runs `code`, in a folder that looks like a peer's."""
    (folder / "wheel" / "sglang").mkdir(parents=True)
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "worker.py").write_text(code)
    monkeypatch.setattr(sglang_process, "WORKER", folder / "worker.py")
    return sglang_process.Peer(folder)


def test_the_peer_is_asked_line_by_line(tmp_path, monkeypatch):
    code = (
        "import json, sys\nprint('{}', flush=True)\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    answers = [asked['do'], asked['core'], asked['number']]\n"
        "    print(json.dumps({'seconds': 2.0, 'answers': answers}), flush=True)\n"
    )
    peer = make_peer(tmp_path, monkeypatch, code)
    assert peer.round("match", "rust")(5) == (2.0, ["match", "rust", 5])
    assert peer.measured("lock", core="python", number=6) == (2.0, ["lock", "python", 6])
    peer.close()
    assert peer.process.returncode == 0


def test_a_peer_that_fails_says_why(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="no such tree"):
        make_peer(tmp_path, monkeypatch, "raise ValueError('no such tree')")


# -- stand-ins -------------------------------------------------------------------------------------------------------


@pytest.fixture
def finder(monkeypatch):
    """Stand-ins for two packages that nobody has."""
    monkeypatch.setattr(sglang_standins, "ABSENT", {"nobody_has_this", "nor_this"})
    found = sglang_standins._Finder()
    sys.meta_path.insert(0, found)
    yield
    sys.meta_path.remove(found)
    for name in [name for name in sys.modules if name.split(".")[0] in sglang_standins.ABSENT]:
        del sys.modules[name]


def test_a_stand_in_goes_for_whatever_a_module_does_at_import(finder):
    import nobody_has_this.language as language
    import nor_this
    from nobody_has_this import Config, jit, tune

    @jit
    def plain(x):
        return x + 1

    @tune(configs=[Config(size=2)], key=["n"])
    @nor_this.compile
    def tuned(x):
        return x + 2

    class Mine(nor_this.models.Base, registered=True):
        size: language.constexpr | None = 3

        def __init__(self, n):
            super().__init__(n, more=n)
            self.n = n

    assert (plain(1), tuned(1), Mine(4).n, Mine.size) == (2, 3, 4, 3)
    assert not nor_this.available()
    assert list(nor_this.names) == []
    assert nor_this.Table[int] is nor_this.Table
    assert not isinstance(5, nor_this.Table)


def test_other_packages_are_not_stood_in_for(finder):
    with pytest.raises(ModuleNotFoundError):
        import not_even_this  # noqa: F401
    import nor_this

    assert not hasattr(nor_this, "__all__")


# -- where the time goes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["insert", "match, 64 at once"])
def test_the_parts_of_a_call_are_all_of_it(small, op, monkeypatch):
    shares = load("shares")
    watches = []

    class Watched(shares.Clocks):
        def __init__(self, cache):
            super().__init__(cache)
            watches.append(self)

    monkeypatch.setattr(shares, "Clocks", Watched)
    tree = Tree(small)
    subject = sglang_urc.Subject(tree, sglang_urc.pools_of(tree, ["full", "mamba"]), 16)
    found = shares.measure(subject, op, seconds=0.0, least=2)  # of two, medians add up
    assert list(found) == list(shares.PARTS)
    assert sum(share.median for share in found.values()) == pytest.approx(1.0)
    assert found["JAX"].median > 0
    assert (found["keys"].median > 0) == (op != "insert")
    (clocks,) = watches
    program = compiled.insert if op == "insert" else compiled.match_prefixes
    nothing = clocks.nothing[program]
    updated = {"nodes", "heads", "scalars", "victims"} | ({"tokens", "full", "mamba"} if op == "insert" else set())
    assert len(nothing.updated) == len(updated) + (op == "insert")  # the store of Full is two arrays
    assert len(nothing.given) == (2 if op == "insert" else 1)
    subject.cache.check()
