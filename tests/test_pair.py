"""The comparison sees what it must: broken caches differ from the oracle, an unbroken one does not."""

import pytest

from tests import fuzz
from tests.broken import BROKEN, StandIn, standin_pair
from tests.broken_kinds import BROKEN_KINDS
from tests.setups import SETUPS


class Draw(fuzz.Draw):
    """Without the malformed calls, which the oracle does not claim to see."""

    def step(self):
        while (step := super().step())[0] == "malformed":
            pass
        return step


@pytest.fixture(autouse=True)
def _no_malformed(monkeypatch):
    monkeypatch.setattr(fuzz, "Draw", Draw)


def run(kind, ops):
    lines = []
    kinds = kind not in BROKEN  # these need no more than Full, where they are found faster
    found = fuzz.fuzz(
        [setup for setup in SETUPS.values() if setup.slots < 100 and (len(setup.names) > 1 or not kinds)],
        lambda setup: standin_pair(setup, kind),
        ops=ops,
        seed=0,
        every=5,
        log=lambda line, **_: lines.append(line),
    )
    return found, lines


def test_an_unbroken_cache_does_not_differ():
    found, lines = run(StandIn, 6_000)
    assert found == 0, lines
    assert lines[-1].endswith("operations, 0 differences")


@pytest.mark.parametrize("kind", [*BROKEN, *BROKEN_KINDS], ids=lambda kind: kind.__name__)
def test_a_broken_cache_differs(kind, monkeypatch):
    monkeypatch.setattr(fuzz, "thin_out", lambda pair, steps: steps[-1:])
    found, lines = run(kind, 60_000)
    assert found == 1
    assert "difference" in lines[0], lines[0]


def test_a_failing_run_is_thinned_out():
    """A probe that touches needs one insert, and any probe of it, to be seen."""
    from tests.broken import TouchingProbe

    pair = standin_pair(SETUPS["p1_priority_nodes"], TouchingProbe)
    own = {"space": 0, "prev": 0, "inserted": 0, "priority": 0, "given_up": 0, "state": False}
    steps = [("insert_own", {"key": (0,) * n, **own}) for n in range(1, 9)]
    steps += [("evict", {"n": 0, "swa": 0, "mamba": 0})] * 3 + [("probe", {"key": (0, 0), "space": 0})]
    fewest = fuzz.thin_out(pair, steps)
    assert [name for name, _ in fewest] == ["insert_own", "probe"]
