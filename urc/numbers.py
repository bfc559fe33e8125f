"""Numbers that XLA does not know, for what is to be one kernel (see `urc.kernel`).

To XLA's CPU runtime a constant that stands alone, as what a loop begins with or goes on by, is an array: one more to be
handed to the program in each call, at some fifty nanoseconds. As entries of one array they are free.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

_STANDS_ALONE = {"while", "scan", "add", "gt", "broadcast_in_dim"}
"""Primitives whose constants mostly do. Those of others XLA makes a part of what uses them."""

_FOLLOWED = {"while", "scan", "cond", "pjit", "jit"}


def _number(atom: Any) -> int | None:
    """The i32[] that an operand is, if it is one."""
    kind: Any = atom.aval
    known = isinstance(atom, Literal) and kind.shape == () and kind.dtype == jnp.int32
    return int(atom.val) if known else None


def _jaxprs(equation: Any) -> list[Any]:
    """What an equation runs."""
    nested = [each if isinstance(each, (tuple, list)) else (each,) for each in equation.params.values()]
    inner = [getattr(each, "jaxpr", each) for some in nested for each in some]
    return [jaxpr for jaxpr in inner if hasattr(jaxpr, "eqns")]


def numbers_in(jaxpr: Any) -> set[int] | None:
    """The numbers that stand alone; None if the program has a part that `with_numbers` cannot follow."""
    atoms = list(jaxpr.outvars)
    found: set[int] = set()
    for equation in jaxpr.eqns:
        inner = _jaxprs(equation)
        if inner and equation.primitive.name not in _FOLLOWED:
            return None
        if equation.primitive.name in _STANDS_ALONE:
            atoms += equation.invars
        for jaxpr in inner:
            below = numbers_in(jaxpr)
            if below is None:
                return None
            found |= below
    return found | {number for atom in atoms if (number := _number(atom)) is not None}


def with_numbers(
    jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any], numbers: Mapping[int, jax.Array]
) -> list[Any]:
    """What a program (its jaxpr) computes of its operands, with each of `numbers_in` it taken from `numbers`."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    def read(atom: Any, alone: bool) -> Any:
        if not isinstance(atom, Literal):
            return values[atom]
        number = _number(atom) if alone else None
        return atom.val if number is None else numbers[number]

    def run(closed: Any, operands: Sequence[Any]) -> list[Any]:
        return with_numbers(closed.jaxpr, closed.consts, operands, numbers)

    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        given = [read(atom, name in _STANDS_ALONE) for atom in equation.invars]
        if name == "while":
            out = _while(params, given, run)
        elif name == "scan":
            out = _scan(params, given, run)
        elif name == "cond":
            branches = [lambda *given, branch=branch: run(branch, given) for branch in params["branches"]]
            out = lax.switch(given[0], branches, *given[1:])
        elif name in _FOLLOWED:
            out = run(params["jaxpr"], given)
        else:
            out = equation.primitive.bind(*given, **params)
            out = out if equation.primitive.multiple_results else [out]
        values.update(zip(equation.outvars, out, strict=True))
    return [read(atom, True) for atom in jaxpr.outvars]


def _while(params: Mapping[str, Any], given: list[Any], run: Any) -> list[Any]:
    tests = params["cond_nconsts"]
    steps = tests + params["body_nconsts"]
    more = lambda carry: run(params["cond_jaxpr"], [*given[:tests], *carry])[0]
    return lax.while_loop(more, lambda carry: run(params["body_jaxpr"], [*given[tests:steps], *carry]), given[steps:])


def _scan(params: Mapping[str, Any], given: list[Any], run: Any) -> list[Any]:
    start, carried = params["num_consts"], params["num_carry"]
    end = start + carried

    def step(carry: list[Any], each: list[Any]) -> tuple[list[Any], list[Any]]:
        out = run(params["jaxpr"], [*given[:start], *carry, *each])
        return out[:carried], out[carried:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, stacked = lax.scan(step, given[start:end], given[end:], **options)
    return [*carry, *stacked]
