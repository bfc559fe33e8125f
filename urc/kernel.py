"""One kernel for a whole computation on a CPU, where XLA would start one for each operation of it.

To start a kernel takes XLA some fifty nanoseconds, and most of ours do less than that: a row read, a comparison. XLA
makes one kernel of a small loop by itself: it puts it into a call and marks that. A call that comes with the mark is
treated the same, however large it is, and so is all that is in it, loops and conditionals too.
"""

import functools
import os
from collections.abc import Callable, Collection
from contextvars import ContextVar
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

MARK = {"xla_cpu_small_call": "true", "inlineable": "false"}
"""The attributes of a call that XLA makes one kernel of, and does not take apart before."""


def supported() -> bool:
    """Whether programs are for a CPU, and this version of XLA understands the mark.

    URC_ONE_KERNEL=0 in the environment turns it off.
    """
    if jax.default_backend() != "cpu":
        return False
    version = tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2])
    return version >= (0, 7) and os.environ.get("URC_ONE_KERNEL", "1") != "0"


_inside = ContextVar("_inside", default=False)


def inside() -> bool:
    """Whether what is traced here will be part of one kernel."""
    return _inside.get()


def one_kernel(
    f: Callable[..., list[jax.Array]], *operands: jax.Array, updated: Collection[int] = (), hides_numbers: bool = False
) -> list[Any]:
    """`f(*operands)` as one kernel of a program for CPUs, see `supported`.

    XLA does not cope with an operand for which the kernel has no use. So none is handed in that `f` does not use; and
    as XLA may find out more, each gets another use, but those that come back (`updated`, by number): as what a result
    would begin with if that was the least integer, which it never is.
    `hides_numbers`: a lone call takes a tenth less, and to compile it up to a quarter more: see `urc.numbers`.
    Where `f` sorts, scatters or calls out of the program, to compile it is a JaxRuntimeError.
    """
    from jax.experimental.xla_metadata import set_xla_metadata  # what is not `supported` may not have these
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
    from jax.interpreters.partial_eval import dce_jaxpr

    from urc.numbers import numbers_in, with_numbers

    was = _inside.set(True)
    try:
        traced = jax.make_jaxpr(f)(*operands)
    finally:
        _inside.reset(was)
    jaxpr, used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    needed = [i for i, use in enumerate(used) if use]
    others = [k for k, i in enumerate(needed) if i not in updated and operands[i].size]
    alone = numbers_in(jaxpr) if hides_numbers else None

    def using_all(*operands: jax.Array) -> list[jax.Array]:
        if alone and others:
            numbers = _unknown(sorted(alone), operands[others[0]])
            results = with_numbers(jaxpr, traced.consts, operands, numbers)
        else:
            results = list(jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))(*operands))
        at = max(i for i, result in enumerate(results) if result.size)
        results[at] = _using(results[at], [operands[k] for k in others])
        return results

    *results, last = jax.jit(using_all)(*(operands[i] for i in needed))
    return [*results, set_xla_metadata(last, **MARK)]  # it marks what has made this result, which is the call


def _unknown(numbers: list[int], array: jax.Array) -> dict[int, jax.Array]:
    """Numbers as i32[] each, in a way that looks at the first entry of an array, for all that XLA knows."""
    seen = array.reshape(-1)[0]
    listed = jnp.asarray(np.array(numbers, np.int32)) + (seen == seen + 1).astype(jnp.int32)
    return {number: listed[i] for i, number in enumerate(numbers)}


def _using(result: jax.Array, arrays: list[jax.Array]) -> jax.Array:
    """`result`, whatever its shape, in a way that looks at the first entry of each array, for all that XLA knows."""
    first = lambda array: lax.slice(array, (0,) * array.ndim, (1,) * array.ndim)
    seen = functools.reduce(
        lax.bitwise_or, (first(array).astype(jnp.int32).reshape(()) for array in arrays), jnp.int32(0)
    )
    value = first(result)
    value = jnp.where(value == jnp.iinfo(jnp.int32).min, seen, value)
    return lax.dynamic_update_slice(result, value, (0,) * result.ndim)
