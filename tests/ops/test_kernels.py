"""What XLA runs for one call on a CPU whose program is in pieces: loops of one kernel each, in the compiled text."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import urc
from urc import compiled, ops
from urc import state as states
from urc.program import Program, StateArrays, program
from urc.state import NodeRef

KINDS = {
    "full": (urc.Full(),),
    "full, swa, mamba": (urc.Full(), urc.SWA(window=128), urc.Mamba()),
}
KEY = jax.ShapeDtypeStruct((2050,), np.int32)
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"(?:body|condition|to_apply|branch_computations|true_computation|false_computation)=\{?([^,}]+)")


@pytest.fixture(autouse=True)
def _in_pieces(monkeypatch):
    monkeypatch.setenv("URC_ONE_KERNEL", "0")


def loops(text: str) -> list[str]:
    """Loops of a compiled text that run kernels in every iteration, each as its line."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            name = head.group(2)
            bodies[name] = []
            entry = name if head.group(1) else entry
        elif name and " = " in line:
            bodies[name].append(line.split(", metadata=")[0])
    found, todo, seen = [], [entry], {entry}
    while todo:
        for line in bodies[todo.pop()]:
            if "xla_cpu_small_call" in line or " fusion(" in line:
                continue
            if " while(" in line:
                found.append(line.strip())
            if " while(" in line or " call(" in line or " conditional(" in line:
                names = re.findall(r"%([\w.\-]+)", line.split("(", 1)[1])
                todo += [name for name in names if name in bodies and name not in seen]
                seen |= set(names)
    return found


def compiled_text(kinds: tuple, page_size: int, made: Program, *given: jax.ShapeDtypeStruct) -> str:
    config = urc.CacheConfig(
        components=kinds, page_size=page_size, pools={kind.name: 4096 for kind in kinds}, max_nodes=60_000
    )
    arrays = StateArrays(states.init(config))
    program = Program(made.transition, made.writes, made.reads)  # the module's own may be one kernel
    return program.lower(arrays, *given).compile().as_text()


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS.keys())
def test_a_match_is_loops_of_one_kernel(kinds, page_size):
    text = compiled_text(kinds, page_size, compiled.match_prefix, KEY)
    if "xla_cpu_small_call" not in text:
        pytest.skip("this XLA makes no kernels of loops")
    cut = loops(text)  # runs at most once
    assert len(cut) <= 1, cut
    assert loops(compiled_text(kinds, page_size, compiled.probe, KEY)) == []


@program(*compiled.HOLDS, reads=())
def lock(state, numbers):
    state, receipt, status = ops.lock(state, NodeRef(index=numbers[0], generation=numbers[1]))
    return state, (jnp.stack([status, receipt.end, *receipt.since.values()]),)


@program(*compiled.HOLDS, reads=())
def unlock(state, numbers):
    since = {name: numbers[3 + i] for i, name in enumerate(c.name for c in state.config.components)}
    node = NodeRef(index=numbers[0], generation=numbers[1])
    state, status = ops.unlock(state, ops.Receipt(node=node, end=numbers[2], since=since))
    return state, (status,)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS.keys())
def test_a_lock_is_loops_of_one_kernel(kinds):
    """Of themselves: the program of the handle's lock has both, in a loop."""
    numbers = jax.ShapeDtypeStruct((3 + len(kinds),), np.int32)
    text = compiled_text(kinds, 1, lock, numbers)
    if "xla_cpu_small_call" not in text:
        pytest.skip("this XLA makes no kernels of loops")
    assert loops(text) == []
    text = compiled_text(kinds, 1, unlock, numbers)
    assert len(loops(text)) <= (len(kinds) > 1)  # the counts of several kinds on the way up are too much
