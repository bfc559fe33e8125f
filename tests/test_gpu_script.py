"""The script for a GPU: its comparison finds what is wrong, its tree is what it says, its figures are what it timed."""

import json
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
import pytest

import urc
from benchmarks import gpu
from tests.oracle.components import FULL
from tests.pair import Difference

SMALL = gpu.QUICK_PLAN._replace(levels=((32, 1), (16, 3), (16, 2)), batches=(4,), evictions=(1, 3), seconds=0.1)


@pytest.fixture(scope="module")
def first_round():
    """What the first round asks for, and what comes out."""
    batches = gpu.Batches("full")
    asked = batches.ask()
    _, got = jax.jit(gpu.batch_round)(urc.init(batches.config), asked)
    return asked, jax.tree.map(np.array, got)


def answered(asked, got):
    """The oracle's answer to a first round."""
    gpu.Batches("full").answer(asked, got)


def test_the_batches_agree_with_the_oracle(first_round):
    answered(*first_round)


@pytest.mark.parametrize("what", ["status", "prefix_len", "device_len", "slots", "evicted", "locks"])
def test_a_wrong_result_is_a_difference(first_round, what):
    asked, got = first_round
    got = jax.tree.map(np.array, got)  # a copy
    hit = int(np.argmax(got["matched"].device_len))
    assert got["matched"].device_len[hit] > 0
    spoilt = {
        "status": got["in"].status[:1],
        "prefix_len": got["in"].prefix_len[-1:],
        "device_len": got["probed"].device_len[:1],
        "slots": got["matched"].slots[FULL][hit, :1],
        "evicted": got["evicted"][0][0][FULL].reshape(1),
        "locks": got["statuses"].reshape(-1)[:1],
    }[what]
    spoilt += 1
    with pytest.raises(Difference):
        answered(asked, got)


def test_the_tree_shares_prefixes():
    tree = gpu.Tree(SMALL)
    assert tree.sequences.shape == (6, 64)
    assert tree.runs == 32 + 3 * 16 + 6 * 16
    assert len(np.unique(tree.sequences[:, :32], axis=0)) == 1
    assert len(np.unique(tree.sequences[:, :48], axis=0)) == 3
    assert len(np.unique(tree.sequences[:, 32])) == 3  # runs differ from their first token on
    requests = tree.requests(5)
    assert requests.shape == (5, 64 + gpu.NEW)
    assert len(np.unique(requests[:, 64])) == 5
    assert {row.tobytes() for row in requests[:, :64]} <= {row.tobytes() for row in tree.sequences}


def test_a_case_sums_up_its_times():
    case = gpu.Case("probes", 4, 1.0, [float(n) for n in range(11)])
    assert case.summary() == (5.0, 1.0, 9.0)


def test_no_case_begins_that_does_not_fit():
    clock = gpu.Clock(SMALL._replace(minutes=1.0))
    assert clock.fits("probes, 64", "probes", 64)  # nothing is known yet
    clock.add(gpu.Case("probes", 64, 1.0, [6.4]))
    assert clock.fits("probes, 100", "probes", 100)  # 4 calls of 100 x 0.1 s
    assert not clock.fits("probes, 256", "probes", 256)
    assert clock.notes == ["probes, 256: no time left"]


def test_every_operation_is_measured():
    plan, tree = SMALL, gpu.Tree(SMALL)
    clock = gpu.Clock(plan)

    class AtOnce(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            future = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    futures = gpu.compile_all(plan, tree, AtOnce())
    gpu.measure(plan, tree, futures, clock)  # raises where a length is not what it must be
    assert not clock.notes
    measured = {(case.op, case.size) for case in clock.cases}
    assert measured == {(op, batch) for op in gpu.PROGRAMS for batch in SMALL.batches} | {("evict", 1), ("evict", 3)}
    assert all(min(case.seconds) > 0 for case in clock.cases)

    found = json.loads(json.dumps(gpu.document(plan, {"batches": 82}, clock.cases, ["a, 1: no time left"])))
    assert found["tokens"] == 64 + gpu.NEW
    assert found["device"].startswith("cpu")
    assert len(found["cases"]) == len(clock.cases)
    assert gpu.table(clock.cases).row_count == len(clock.cases)
