"""What the handle's programs say that they write is all that they write: what they do not name would be lost."""

import json
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import Literal

import urc
from urc import compiled
from urc import state as states
from urc.program import NOT_READ, Program, StateArrays, jit_options

KINDS = (urc.Full(), urc.SWA(window=8), urc.Mamba())
CONFIG = urc.CacheConfig(components=KINDS, page_size=2, pools={kind.name: 64 for kind in KINDS}, max_nodes=32)
PROGRAMS = {name: value for name, value in vars(compiled).items() if isinstance(value, Program)}


def shaped(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


N, ROWS, KEY = len(KINDS), 2, 1024
INSERT, RECEIPT = 6 + 2 * N, 3 + N
SLOTS = (shaped(KEY), shaped(KEY), shaped(1))
BATCH = tuple(shaped(ROWS, *each.shape) for each in SLOTS)
GIVEN: dict[str, tuple[tuple, dict[str, Any]]] = {
    "match_prefix": ((shaped(KEY + 2),), {}),
    "match_prefixes": ((shaped(ROWS, KEY + 3),), {}),
    "probe": ((shaped(KEY + 2),), {}),
    "probes": ((shaped(ROWS, KEY + 3),), {}),
    "insert": ((shaped(KEY + INSERT + 1), *SLOTS[:2]), {}),
    "inserts": ((shaped(ROWS, INSERT + N), shaped(ROWS, KEY), *BATCH), {}),
    "evict": ((shaped(N),), {}),
    "lock": ((shaped(3 + compiled.MOST_RELEASES * RECEIPT),), {}),
    "locks": ((shaped(ROWS, 2), shaped(1 + compiled.MOST_RELEASES * RECEIPT)), {}),
    "release_early": ((shaped(RECEIPT),), {"name": "swa"}),
    "open_session": ((), {}),
    "advance_session": ((shaped(4),), {}),
    "recede_session": ((shaped(3),), {}),
    "close_session": ((shaped(2),), {}),
    "alloc": ((shaped(),), {"name": "full", "width": 8}),
    "free": ((shaped(8), shaped()), {"name": "full"}),
    "begin": ((shaped(KEY + 3),), {}),
    "begins": ((shaped(ROWS, KEY + 3),), {}),
    "reserve": ((shaped(N),), {"widths": (8, 8, 0)}),
    "commit": ((shaped(KEY + INSERT + 1 + RECEIPT + 1), *SLOTS[:2]), {"finished": False}),
    "step": (
        (shaped(ROWS, INSERT + RECEIPT + 3 + N), shaped(ROWS, KEY), shaped(ROWS, KEY + 4), *BATCH),
        {"width": KEY},
    ),
    "abort": ((shaped(N + RECEIPT), *[shaped(8)] * N), {}),
}


@pytest.mark.parametrize(
    "get",
    [
        lambda state: state.heads,
        lambda state: state.stores["full"].pool,
        lambda state: state.stores["full"].pool[3:],
        lambda state: state.stores["full"].pool + state.heads[0],
    ],
)
def test_an_array_of_the_state_is_read_looked_up_or_computed(get):
    arrays = StateArrays(states.init(CONFIG))
    for _ in range(2):
        np.testing.assert_array_equal(arrays.read(get), np.asarray(get(arrays.state)))
        arrays.update((1,), [arrays.leaves[1] + 1])


def origin(jaxpr: Any, variable: Any) -> int | None:
    """Which input of a program (its jaxpr) an output is, handed through loops, branches and calls; None: another."""
    while True:
        if isinstance(variable, Literal):
            return None
        if variable in jaxpr.invars:
            return jaxpr.invars.index(variable)
        made_by = [equation for equation in jaxpr.eqns if variable in equation.outvars]
        if not made_by:
            return None  # a constant
        (equation,) = made_by
        place = handed_through(equation, equation.outvars.index(variable))
        if place is None:
            return None
        variable = equation.invars[place]


def handed_through(equation: Any, i: int) -> int | None:
    """Which operand the i-th result of an equation is; None if it is computed."""
    inner, params = equation.primitive.name, equation.params
    if inner == "scan":
        carried = params["num_consts"] + i
        body = params["jaxpr"].jaxpr
        return carried if i < params["num_carry"] and origin(body, body.outvars[i]) == carried else None
    if inner == "while":
        body, consts = params["body_jaxpr"].jaxpr, params["body_nconsts"]
        return params["cond_nconsts"] + consts + i if origin(body, body.outvars[i]) == consts + i else None
    if inner == "cond":
        found = {origin(branch.jaxpr, branch.jaxpr.outvars[i]) for branch in params["branches"]}
        return None if len(found) > 1 or None in found else 1 + found.pop()
    if "jaxpr" in params:
        body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
        return origin(body, body.outvars[i])
    return None


def undeclared(program: Program, given: tuple, static: dict[str, Any]) -> list[str]:
    """Arrays of the state that a program makes and does not say that it writes."""
    state = jax.eval_shape(lambda: states.init(CONFIG))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    run = lambda state, *given: program.transition(state, *given, **static)[0]
    jaxpr = jax.make_jaxpr(run)(state, *given).jaxpr
    same = [origin(jaxpr, variable) == i for i, variable in enumerate(jaxpr.outvars)]
    written = tuple("." + field for field in program.writes)
    return [path for path, kept in zip(paths, same, strict=True) if not kept and not path.startswith(written)]


def reads_of_nothing(jaxpr: Any) -> set[str]:
    """Primitives that look at what stands for an array that is not read, but for those that only hand it through."""
    found = set()
    for equation in jaxpr.eqns:
        nested = [each if isinstance(each, (tuple, list)) else (each,) for each in equation.params.values()]
        inner = [getattr(each, "jaxpr", each) for some in nested for each in some]
        inner = [each for each in inner if hasattr(each, "eqns")]
        if not inner and any(getattr(atom.aval, "shape", None) == NOT_READ for atom in equation.invars):
            found.add(equation.primitive.name)
        for each in inner:
            found |= reads_of_nothing(each)
    return found


def unnamed(program: Program, given: tuple, static: dict[str, Any]) -> set[str]:
    """How a program looks at arrays of the state that it does not say that it reads or writes."""
    arrays = StateArrays(states.init(CONFIG))
    call = Program(program.transition, program.writes, program.reads).compiled(arrays.tree, **static)
    return reads_of_nothing(call.run.trace(*call.takes(arrays.leaves), *given).jaxpr.jaxpr)


CALLS = """
import json
import resource

import jax

jax.config.update("jax_cpu_enable_async_dispatch", False)  # else a call is another thread's, whatever it does
import numpy as np

import urc

kinds = urc.Full(), urc.SWA(window=32), urc.Mamba()
pools = {"full": 4096, "swa": 4096, "mamba": 64}
cache = urc.UnifiedRadixCache(urc.CacheConfig(components=kinds, page_size=1, pools=pools))
key, numbers = np.arange(200, dtype=np.int32), iter(range(10**6))


def insert():
    fresh = {name: cache.alloc(name, 1 if name == "mamba" else 200) for name in pools}
    cache.insert(np.append(key[:-1], next(numbers)), fresh)


insert()
node = cache.match_prefix(key).node
ways = {
    "match": lambda: cache.match_prefix(np.append(key[:150], next(numbers))),
    "probe": lambda: cache.probe(key),
    "lock": lambda: cache.unlock(cache.lock(node)),
    "insert and evict": lambda: (insert(), cache.evict({"full": 1, "mamba": 1})),
}
switches = lambda: resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
for call in ways.values():
    call()
counts = {}
for name, call in ways.items():
    before = switches()
    for _ in range(50):
        call()
    counts[name] = switches() - before
print(json.dumps(counts if urc.jit_options() else None))
"""


def test_no_call_waits_for_another_thread():
    pytest.importorskip("resource")
    shown = subprocess.run([sys.executable, "-c", CALLS], check=True, capture_output=True, text=True).stdout
    counts = json.loads(shown)
    if counts is None:
        pytest.skip("this JAX cannot be told to run a program's kernels in the caller's thread")
    assert len(counts) == 4
    assert max(counts.values()) < 25, counts  # of 50 calls; a call that is handed over switches twice


@pytest.mark.parametrize("refusal", [TypeError("no such argument"), RuntimeError("No such compile option")])
def test_a_jax_that_cannot_be_told_is_not(refusal, monkeypatch):
    def jit(*_, **__):
        raise refusal

    monkeypatch.setattr(jax, "jit", jit)
    assert jit_options.__wrapped__() == {}


def test_an_accelerator_is_told_nothing(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert jit_options.__wrapped__() == {}


def test_every_program_is_here():
    assert set(GIVEN) == set(PROGRAMS)


@pytest.mark.parametrize("name", GIVEN)
def test_a_program_declares_all_that_it_writes(name):
    assert undeclared(PROGRAMS[name], *GIVEN[name]) == []


@pytest.mark.parametrize("name", GIVEN)
def test_a_program_declares_all_that_it_reads(name, monkeypatch):
    monkeypatch.setenv("URC_ONE_KERNEL", "0")
    assert unnamed(PROGRAMS[name], *GIVEN[name]) == set()


@pytest.mark.parametrize(
    ("name", "lacks"), [("match_prefix", "tokens"), ("probe", "heads"), ("evict", "stores"), ("lock", "victims")]
)
def test_what_it_does_not_say_that_it_reads_is_found(name, lacks, monkeypatch):
    monkeypatch.setenv("URC_ONE_KERNEL", "0")
    program, (given, static) = PROGRAMS[name], GIVEN[name]
    without = lambda fields: tuple(field for field in fields if field != lacks)
    blind = Program(program.transition, without(program.writes), without(program.reads))
    try:
        found = unnamed(blind, given, static)
    except (AssertionError, TypeError, ValueError) as refusal:  # mostly it has not the shape that they take
        found = {str(refusal)}
    assert found


def test_what_is_not_declared_is_found():
    nothing = Program(PROGRAMS["insert"].transition, ())
    found = {path.split(".")[1].split("[")[0] for path in undeclared(nothing, *GIVEN["insert"])}
    assert found == {"nodes", "heads", "tokens", "scalars", "victims", "stores"}  # and no sessions
