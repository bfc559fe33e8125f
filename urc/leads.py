"""What the rows of results begin with (see `urc.ops.rows`): the numbers of a match, of a request that begins."""

import jax
import jax.numpy as jnp
import numpy as np

from urc import ops
from urc.config import CacheConfig
from urc.kernel import inside
from urc.ops.match import Match
from urc.ops.rows import Head, Layout, layout
from urc.state import CacheState


def names_of(state: CacheState) -> list[str]:
    """The components' names, in order."""
    return [component.name for component in state.config.components]


def row_form(config: CacheConfig, tokens: int) -> Layout:
    """Where in a row of results the numbers and the slots lie, for keys of at most `tokens` tokens."""
    return layout(config, tokens, lead=8 + 5 * len(config.components))


def _numbers(names: list[str], match: Match) -> list[jax.Array]:
    """node, generation, device_len, full_len, branching_len, stop, hits..: i32[..] each."""
    node = (match.node.index, match.node.generation)
    hits = [match.hits[name] for name in names]
    return [*node, match.device_len, match.full_len, match.branching_len, match.stop, *hits]


def _side_by_side(fields: list[jax.Array]) -> jax.Array:
    """Numbers (i32[..] each) on the last axis."""
    if inside():
        return jnp.stack(fields, axis=-1)
    lane, out = np.arange(len(fields)), jnp.zeros((), jnp.int32)
    for i, field in enumerate(fields):
        out = jnp.where(lane == i, field[..., None], out)  # and not stacked, which is a kernel for each
    return out


def of_match(state: CacheState) -> Head:
    """A row begins with a match's numbers."""
    return lambda match: _side_by_side(_numbers(names_of(state), match))


def of_begun(state: CacheState) -> Head:
    """A row begins with (status, a match's numbers.., end, since.., own slots..)."""

    def numbers(begun: ops.Begun) -> jax.Array:
        own = [begun.own[name] for name in names_of(state) if name in begun.own]
        matched = _numbers(names_of(state), begun.match)
        return _side_by_side([begun.status, *matched, *since_of(state, begun.receipt), *own])

    return numbers


def since_of(state: CacheState, receipt: ops.Receipt) -> list[jax.Array]:
    """end, since..: i32[..] each."""
    return [receipt.end, *(receipt.since[name] for name in names_of(state))]
