import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.replay.conftest import mooncake
from urc.cli import app
from urc.replay import scan

TRACE = [mooncake([0, 1, 2]), mooncake([0, 1, 3]), mooncake([0, 1, 2]), mooncake([5, 6]), mooncake([0, 1, 2])]


@pytest.fixture
def cli(stand_in, tmp_path, monkeypatch):
    """Runs `urc ARGS` in an empty folder, the cache being the plain-Python tree."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


def runs_of(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["runs"]


def test_json_is_one_document_on_stdout(cli, write_trace):
    result = cli("replay", write_trace(*TRACE), "--capacity", 4, "--policy", "lru", "--json")
    (run,) = runs_of(result)
    assert (run["capacity"], run["policy"], run["hit_rate"], run["page_size"]) == (4, "lru", 0.5, 1)
    assert "50.00%" in result.stderr
    assert not cli("replay", write_trace(*TRACE), "--json", "--quiet").stderr


def test_table_without_json(cli, write_trace):
    result = cli("replay", write_trace(*TRACE), "--capacity", 4, "--policy", "lru")
    assert result.exit_code == 0
    assert "50.00%" in result.stdout
    assert not result.stderr


def test_lists_are_repeatable_and_comma_separated(cli, write_trace):
    options = ("--capacity", "8,4", "--capacity", "4, 6", "--policy", "slru,lru", "--policy", "lfu")
    runs = runs_of(cli("replay", write_trace(*TRACE), *options, "--json"))
    expected = [(c, p) for c in (8, 4, 6) for p in ("slru", "lru", "lfu")]
    assert [(run["capacity"], run["policy"]) for run in runs] == expected


def test_defaults_come_from_the_trace(cli, write_trace):
    path = write_trace(*[mooncake(range(i * 100, i * 100 + 32)) for i in range(10)])
    runs = runs_of(cli("replay", path, "--json"))
    assert [(run["capacity"], run["policy"]) for run in runs] == [
        (c, p) for c in (10, 40, 320) for p in ("lru", "slru")
    ]
    runs = runs_of(cli("replay", path, "--page-size", 4, "--json"))
    assert {run["capacity"] for run in runs} == {8, 40, 320}


def test_generated_workload(cli):
    document = json.loads(cli("replay", "--limit", 50, "--seed", 3, "--json").stdout)
    assert document["trace"]["name"] == "generated chat, seed 3"
    assert document["trace"]["requests"] == 50
    assert document["trace"]["block_size"] == 64


def test_limit_and_block_size(cli, write_trace):
    document = json.loads(cli("replay", write_trace(*TRACE), "--limit", 2, "--block-size", 100, "--json").stdout)
    assert document["trace"]["requests"] == 2
    assert document["trace"]["block_size"] == 100


def test_plot_is_a_png(cli, write_trace, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_trace(*TRACE)
    assert cli("replay", path, "--plot", "out.png").exit_code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(os.listdir(tmp_path)) == ["out.png", "trace.jsonl"]


HYBRID = [mooncake(range(16)), mooncake([*range(10), 50, 51]), mooncake([*range(10), 60])]


def test_hybrid_runs_with_and_without_the_branching_point(cli, write_trace):
    options = ("--components", "full,swa,mamba", "--window", 1024, "--state-interval", 4096)
    result = cli("replay", write_trace(*HYBRID), *options, "--capacity", 40, "--policy", "lru", "--json")
    taken, left = runs_of(result)
    assert [run["branching_point"] for run in (taken, left)] == [True, False]
    # The second request resumes at 8 of 10 blocks, the third at 10 if the branching point is taken.
    assert [run["matched_blocks"] for run in (taken, left)] == [18, 16]
    assert [run["lost_tokens"] for run in (taken, left)] == [{"swa": 0, "mamba": 2 * 512}, {"swa": 0, "mamba": 4 * 512}]
    assert taken["states"] == {"held": 5, "peak": 5, "taken": 5, "without_a_slot": 0}
    assert taken["pools"] == {"full": 40, "swa": 10, "mamba": 5}
    assert json.loads(result.stdout)["hybrid"] == {
        "components": ["full", "swa", "mamba"],
        "window": 1024,
        "state_interval": 4096,
    }
    assert "checkpoint every 4,096 tokens" in result.stderr


def test_hybrid_pools(cli, write_trace):
    options = ("--components", "mamba,full,swa", "--states", 1, "--swa-capacity", 7, "--policy", "lru")
    for run in runs_of(cli("replay", write_trace(*HYBRID), *options, "--capacity", "20,4000", "--json")):
        assert run["pools"] == {"full": run["capacity"], "swa": 7, "mamba": 1}
        assert run["states"]["peak"] == 1
        assert run["states"]["without_a_slot"] > 0


@pytest.mark.parametrize("name", ["swa", "mamba"])
def test_two_components(cli, write_trace, tmp_path, name):
    pytest.importorskip("matplotlib")
    options = ("--components", "full", "--components", name, "--plot", "out.svg", "--json")
    runs = runs_of(cli("replay", write_trace(*HYBRID), *options))
    assert len(runs) == 3 * 2 * 2
    assert all(run["lost_tokens"].keys() == {name} for run in runs)
    assert all(("states" in run) == (name == "mamba") for run in runs)
    assert b"lost" in (tmp_path / "out.svg").read_bytes()


def test_full_alone_is_as_without_components(cli, write_trace):
    path = write_trace(*TRACE)
    one, other = (json.loads(cli("replay", path, *more, "--json").stdout) for more in ([], ["--components", "full"]))
    for run in one["runs"] + other["runs"]:
        del run["seconds"], run["requests_per_second"]
    assert one == other
    assert "hybrid" not in one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--capacity", "0"], "--capacity: '0' is not an integer"),
        (["--capacity", "4,x"], "--capacity: 'x' is not"),
        (["--capacity", "4,"], "--capacity: '' is not"),
        (["--capacity", "-4"], "--capacity: '-4' is not"),
        (["--capacity", "9" * 5000], "is not an integer from 1 to 999999999"),
        (["--capacity", "9", "--page-size", "2"], "9 is not a multiple of --page-size 2"),
        (["--page-size", "1000000000"], "--page-size: no request fills a page"),
        (["--policy", "lru,best"], "--policy: 'best' is none of lru, "),
        (["--policy", ""], "--policy: '' is none of"),
        (["--components", "full,ssm"], "--components: 'ssm' is none of full, swa, mamba"),
        (["--components", "swa,mamba"], "--components: full must be among them"),
        (["--window", "9"], "--window is for --components with swa"),
        (["--components", "full,mamba", "--swa-capacity", "9"], "--swa-capacity is for --components with swa"),
        (["--components", "full,swa", "--states", "9"], "--states is for --components with mamba"),
        (["--state-interval", "9"], "--state-interval is for --components with swa or mamba"),
        (["--components", "full,swa", "--swa-capacity", "9", "--page-size", "2"], "9 is not a multiple of --page-size"),
        (["--components", "full,mamba", "--states", "0"], "--states"),
        (["--components", "full,mamba", "--capacity", "9", "--page-size", "2"], "9 is not a multiple of --page-size 2"),
        (["--page-size", "0"], "--page-size"),
        (["--limit", "0"], "--limit"),
        (["--limit", "ten"], "--limit"),
        (["--block-size", "0"], "--block-size"),
        (["--seed", "1"], "--seed is for the generated workload"),
        (["--plot", "out.txt"], "must end in one of .png"),
        (["--plot", "missing/out.png"], "--plot: missing/out.png: No such file"),
        (["--plot", "folder.png"], "--plot: folder.png: not a regular file"),
        (["--what"], "--what"),
    ],
)
def test_bad_options_exit_2_before_the_replay(cli, write_trace, tmp_path, monkeypatch, options, message):
    path = write_trace(*TRACE)
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr(scan, "replay_all", None)
    result = cli("replay", path, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert sorted(os.listdir(tmp_path)) == ["folder.png", "trace.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no requests"),
        (b"{}\n", "line 1: neither"),
        (json.dumps(TRACE[0]).encode() + b"\n{\n", "line 2: not JSON"),
        (b"\xff\n", "line 1: not UTF-8"),
        (None, "No such file"),
    ],
)
def test_bad_trace_exits_2_and_leaves_nothing(cli, tmp_path, content, message):
    if content is not None:
        (tmp_path / "trace.jsonl").write_bytes(content)
    before = os.listdir(tmp_path)
    result = cli("replay", "trace.jsonl", "--json", "--plot", "out.png")
    assert result.exit_code == 2
    assert f"urc: error: trace.jsonl{':' if 'line' not in message else ', '}" in result.stderr
    assert message in result.stderr
    assert not result.stdout
    assert os.listdir(tmp_path) == before


def test_missing_matplotlib_is_told_before_the_replay(cli, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "urc.replay.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.setattr(scan, "replay_all", None)
    result = cli("replay", "--plot", "out.png")
    assert result.exit_code == 2
    assert "pip install 'urc[plot]'" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", ["scan.replay_all", "plot.Figure.savefig", "output.Path.replace"])
def test_interrupt_exits_130_and_leaves_nothing(cli, tmp_path, monkeypatch, where):
    pytest.importorskip("matplotlib")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "out.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(f"urc.replay.{where}", interrupt)
    result = cli("replay", "--limit", 5, "--json", "--plot", path)
    assert result.exit_code == 130
    assert not result.stdout
    assert os.listdir(tmp_path) == ["out.png"]
    assert path.read_bytes() == b"old"


def test_help_and_version(cli):
    assert "replay" in cli("--help").stdout
    for option in ("--capacity", "--policy", "--page-size", "--limit", "--json", "--plot", "--quiet", "--components"):
        assert option in cli("replay", "--help").stdout
    assert cli("--version").stdout.startswith("urc ")


def urc(*args, cwd):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "urc.cli", *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_as_a_process(tmp_path, write_trace):
    result = urc("replay", str(write_trace(*TRACE)), "--capacity", "4", "--policy", "lru", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (run,) = json.loads(result.stdout)["runs"]
    assert run["hit_rate"] == 0.5
    assert run["seconds"] > run["compile_seconds"] > 0
    assert urc("replay", "missing", cwd=tmp_path).returncode == 2


def test_command_line_itself_is_light(tmp_path):
    heavy = (
        "urc.replay.engine",
        "urc.replay.scan",
        "urc.replay.hybrid",
        "urc.replay.plot",
        "matplotlib",
        "rich.progress",
    )
    code = f"import sys, urc.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=60).returncode == 0
