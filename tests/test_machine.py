"""State machines: the handle and the oracle take the same moves, and all is compared after each one."""

import itertools
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests import fuzz, moves
from tests.broken import BROKEN, StandIn, standin_pair
from tests.broken_kinds import BROKEN_KINDS
from tests.pair import Difference, Pair, errors
from tests.setups import SETUPS, Setup

EXAMPLES, STEPS = 25, 40
STANDIN_EXAMPLES = 300  # the oracle against itself is quick
LONG = "p100_lru_long_runs"
BATCHED = ("p2_tlru_tight_arena", "p1_all_few_nodes", "p2_swa1_caller")  # the batched calls compile longest


def keys(setup: Setup) -> st.SearchStrategy:
    """Most begin as one trunk does, then go their own way for a few pages, and end within a page or not."""
    trunk = [setup.pages[i % len(setup.pages)] for i in range(setup.max_pages)]
    branches = st.lists(st.sampled_from(setup.pages), max_size=3)
    tails = st.lists(st.integers(0, 1), max_size=min(setup.page_size - 1, 3) if setup.tails else 0)

    def key(shared: int, branch: list, tail: list) -> tuple:
        pages = [*trunk[:shared], *branch][: setup.max_pages]
        return tuple(token for page in pages for token in page) + tuple(tail)

    return st.builds(key, st.integers(0, setup.max_pages), branches, tails)


def strategies(setup: Setup) -> dict[type, st.SearchStrategy]:
    return {
        moves.Key: keys(setup),
        moves.Space: st.integers(0, len(setup.namespaces) - 1),
        moves.Amount: st.integers(0, setup.slots + 2),
        moves.Pick: st.integers(0, 60),
        moves.Flag: st.booleans(),
        moves.Priority: st.integers(-1, 2),
    }


class Machine(RuleBasedStateMachine):
    def __init__(self, pair: Pair):
        super().__init__()
        pair.reset()
        self.moves = moves.Moves(pair)
        self.steps = 0

    @invariant()
    def agree(self):
        self.moves.pair.compare(check=self.steps % 10 == 0)
        self.steps += 1

    def teardown(self):
        self.moves.pair.compare()


def with_rules(setup: Setup, *, leave_out: Collection[str] = ()) -> type[Machine]:
    """A machine whose rules are the moves, with arguments as this setup needs them."""
    draw = strategies(setup)

    def as_rule(name: str, kinds: dict[str, type]):
        def step(self, **arguments):
            getattr(self.moves, name)(**arguments)

        step.__name__ = name
        return rule(**{argument: draw[kind] for argument, kind in kinds.items()})(step)

    rules = {name: as_rule(name, kinds) for name, kinds in moves.Moves.signatures().items() if name not in leave_out}
    return type(f"Machine_{setup.name}", (Machine,), rules)


def run(machine: type[Machine], pair: Pair, *, examples: int = EXAMPLES, **options) -> None:
    run_state_machine_as_test(
        lambda: machine(pair), settings=settings(max_examples=examples, stateful_step_count=STEPS, **options)
    )


@pytest.mark.parametrize("name", [name for name in SETUPS if name != LONG])
def test_the_handle_is_the_oracle(name):
    setup = SETUPS[name]
    refused, no_room = errors()
    leave_out = () if name in BATCHED else ("match_many", "probe_many")
    run(with_rules(setup, leave_out=leave_out), Pair(setup, setup.cache(), refused=refused, no_room=no_room))


def test_runs_longer_than_a_chunk():
    """Each length of keys compiles anew, so this takes one random walk of some of the moves."""
    refused, no_room = errors()
    pair = Pair(SETUPS[LONG], SETUPS[LONG].cache(), refused=refused, no_room=no_room)
    draw = fuzz.Draw(SETUPS[LONG], np.random.default_rng(0))
    names = ("match", "alloc", "free", "request", "insert_own", "evict", "lock", "unlock")
    steps = (step for step in iter(draw.step, None) if step[0] in names)
    fuzz.play(pair, itertools.islice(steps, 500), every=10)


@pytest.mark.parametrize("kind", [StandIn, *BROKEN, *BROKEN_KINDS], ids=lambda kind: kind.__name__)
def test_a_broken_cache_is_found(kind):
    """The machine can fail."""
    names = ("p1_mru_few_nodes", "p2_tlru_tight_arena", "p1_all_few_nodes", "p2_all_page_window", "p2_swa1_caller")
    if kind in BROKEN_KINDS:
        names = [name for name in names if len(SETUPS[name].names) > 1]
    found = False
    for name in names:
        machine = with_rules(SETUPS[name], leave_out=["malformed"])
        pair = standin_pair(SETUPS[name], kind)
        quick = {"phases": [Phase.generate], "derandomize": True, "database": None, "report_multiple_bugs": False}
        try:
            run(machine, pair, examples=EXAMPLES if kind is StandIn else STANDIN_EXAMPLES, **quick)
        except Difference:
            found = True
            break
    assert found == (kind is not StandIn)
