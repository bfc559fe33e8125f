"""Many at once: what batched calls and a scheduling step do is what single calls do, one after the other."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import pytest

import urc
from tests.engine import Engine
from urc import compiled
from urc.handle import batches, tree
from urc.program import Program
from urc.results import Batch

KINDS = {
    "full": (1, (urc.Full(),)),
    "full, swa": (4, (urc.Full(), urc.SWA(window=3))),
    "full, mamba": (1, (urc.Full(), urc.Mamba())),
    "full, swa, mamba": (4, (urc.Full(), urc.SWA(window=4), urc.Mamba(max_states_per_path=2))),
}
SOME = [kind if kind in ("full", "full, swa, mamba") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
SLOTS = {"full": 40, "swa": 32, "mamba": 6}
WINDOW = {"full, swa": 3, "full, swa, mamba": 4}
NODES = {1: 7, 4: 4}  # by page size; the root comes on top


def make(kind: str) -> urc.UnifiedRadixCache:
    page, components = KINDS[kind]
    return urc.UnifiedRadixCache(
        urc.CacheConfig(
            components=components,
            page_size=page,
            pools={c.name: SLOTS[c.name] for c in components},
            max_nodes=NODES[page] + 1,
            max_key_len=64,
            max_sessions=3,
        )
    )


_made: dict = {}


def both(kind: str) -> tuple[urc.UnifiedRadixCache, urc.UnifiedRadixCache]:
    """Two caches of one configuration, both empty: one for batches, one for single calls."""
    pair = _made.setdefault(kind, (make(kind), make(kind)))
    for cache in pair:
        cache.reset()
    return pair


@pytest.fixture(params=SOME)
def pair(request):
    return both(request.param)


@pytest.fixture
def hybrid():
    return both("full, swa, mamba")[0]


@pytest.fixture
def windowed():
    return both("full, swa")[0]


@pytest.fixture(autouse=True)
def _one_width(monkeypatch):
    """Batches are filled up to 4 at least, so that one program of each kind serves most of this file."""
    wide = tree.batch_width
    for module in (tree, batches):
        monkeypatch.setattr(module, "batch_width", lambda n: max(wide(n), 4))


def bits(cache) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(cache.state)]


def plain(value):
    """A result as plain values. A receipt's serial and handle tell caches apart, and nothing else."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, urc.Receipt):
        return value.node, value.end
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, Batch)):
        return [plain(each) for each in value]
    return value


def books(cache) -> list:
    """All that a handle knows beside its state."""
    requests = [(id(request), plain(request)) for request in cache._requests.values()]
    holders = [ledger._holder.tobytes() for ledger in cache._ledgers.values()]
    streaming = {session: id(request) for session, request in cache._streaming.items()}
    return [dict(cache._holds), requests, holders, streaming]


def same(one, other) -> None:
    """Two caches are equal to the last bit, and so is what all locks hold that are out."""
    assert bits(one) == bits(other)
    holds = [[(*plain(hold.receipt), hold.since, hold.early) for hold in each._holds.values()] for each in (one, other)]
    assert sorted(holds[0], key=str) == sorted(holds[1], key=str)
    one.check()
    other.check()


def tried(call):
    """What a single call returns; None where it is refused."""
    try:
        return call()
    except (urc.CacheFull, urc.InvalidInput):
        return None


class Random:
    """Keys that share prefixes."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self.random.integers(n))

    def key(self, most: int = 16) -> list[int]:
        start = 5 * self.below(2)
        return [start if i % 4 else start + (self.below(5) == 0) for i in range(self.below(most + 1))]


# -- insert_all, lock_all, unlock_all ------------------------------------------------------------------------------


def common(one, other) -> int:
    """Length of the longest common prefix."""
    least = min(len(one), len(other))
    return next((i for i in range(least) if one[i] != other[i]), least)


OPTIONS = ("namespaces", "prev_prefix_lens", "inserted_lens", "evicted_lens", "priorities")


def entries(random: Random, cache, n: int) -> list[tuple] | None:
    """Arguments of `n` inserts with slots that the caller holds; some of them wrong about what the tree holds."""
    out, page = [], cache.config.page_size
    for _ in range(n):
        key, space = random.key(), (None, "other")[random.below(4) == 0]
        prefixes = [view.prefix for view in cache.tree() if view.namespace == space]
        known = max([0, *(common(key, prefix) for prefix in prefixes)]) // page * page
        prev = (0, known, min(known, 4), len(key) // page * page)[random.below(4)]
        given_up, row = random.below(len(key) + 1) * random.below(2), {}
        for name in cache._names:
            first = {"full": prev, "swa": max(prev, given_up), "mamba": 0}[name]
            count = random.below(2) if name == "mamba" else max(len(key) - first, 0)
            new = cache.alloc(name, count)
            if new is None:
                return None
            row[name] = new if name == "mamba" else np.concatenate([np.full(len(key) - count, -1), new])
        evicted = {"swa": given_up} if "swa" in row else {}
        out.append((key, row, space, prev, random.below(5), evicted, random.below(3) - 1))
    return out


def give_back(cache) -> None:
    """All slots that nobody but the caller holds are free again."""
    for name, ledger in cache._ledgers.items():
        cache.free(name, np.flatnonzero(ledger._holder == 0))


def test_batches_of_inserts_and_locks_equal_single_calls(pair):
    many, single = pair
    random, outcomes, held = Random(1), set(), ([], [])
    for _ in range(24):
        batch = entries(random, many, 3)
        for name, ledger in many._ledgers.items():  # the same slots: a pool hands them out in order
            single.alloc(name, int((ledger._holder == 0).sum()))
        if batch is not None:
            keys, slots, *rest = zip(*batch, strict=True)
            done = many.insert_all(keys, slots, **dict(zip(OPTIONS, rest, strict=True)))
            assert plain(done) == plain([tried(lambda: single.insert(*each)) for each in batch])  # noqa: B023
            outcomes.add("".join("-+"[each is not None] for each in done))
            nodes = [each.node for each in done if each is not None] * 2
            held[0].extend(many.lock_all(nodes))
            held[1].extend(single.lock(node) for node in nodes)
            assert plain(held[0]) == plain(held[1])
        for cache in pair:
            give_back(cache)
        same(many, single)
        if len(held[0]) > 4 or batch is None:
            order = np.argsort([random.below(100) for _ in held[0]])[: 2 + random.below(6)].tolist()
            many.unlock_all(held[0][i] for i in order)
            for i in order:
                single.unlock(held[1][i])
            for each in held:
                each[:] = [receipt for i, receipt in enumerate(each) if i not in order]
            same(many, single)
        if random.below(2):
            for cache in pair:
                cache.evict({name: 8 for name in SLOTS if name in cache._names})
    assert "+++" in outcomes
    assert any("-+" in each for each in outcomes)  # goes on after a refusal
    many.unlock_all(held[0])
    assert all(size.protected == 0 for size in many.sizes().values())


def test_a_batch_of_inserts_goes_on_after_a_refusal(pair):
    cache = pair[0]
    page, nodes = cache.config.page_size, cache.config.max_nodes - 1
    pages = lambda cache, n: [{"full": cache.alloc("full", page)} for _ in range(n)]
    for token, slots in enumerate(pages(cache, nodes - 1)):
        cache.insert([token] * page, slots)
    keys, prevs, slots = [[token] * page for token in (90, 91, 0, 92)], [0, 0, 0, page], pages(cache, 4)
    new, no_node, old, no_prefix = cache.insert_all(keys, slots, prev_prefix_lens=prevs)
    assert (no_node, no_prefix) == (None, None)
    assert (new.prefix_len, plain(new.adopted["full"])) == (0, plain(slots[0]["full"]))
    assert (old.prefix_len, plain(old.freed["full"])) == (page, plain(slots[2]["full"]))
    cache.check()
    for i in (1, 3):  # still the caller's
        cache.free("full", slots[i]["full"])
    assert cache.sizes()["full"] == urc.Sizes(SLOTS["full"] - nodes * page, nodes * page, 0)


def test_a_batch_is_filled_up_with_nothing():
    """Five in a batch of eight; and none at all."""
    cache, other = both("full")
    keys = [[1, 2, 3], [1, 2, 4], [5] * 20, [], [1, 2]]
    slots = [[{"full": each.alloc("full", len(key))} for key in keys] for each in (cache, other)]
    done = cache.insert_all(keys, slots[0])
    assert plain(done) == plain([other.insert(*each) for each in zip(keys, slots[1], strict=True)])
    assert [each.prefix_len for each in done] == [0, 2, 0, 0, 2]
    nodes = [each.node for each in done]
    receipts = cache.lock_all(iter(nodes))
    loop = [other.lock(node) for node in nodes]
    same(cache, other)
    assert cache.sizes()["full"].protected == 24
    cache.unlock_all(iter(receipts))
    for receipt in loop:
        other.unlock(receipt)
    same(cache, other)
    before = bits(cache)
    assert (cache.insert_all([], []), cache.lock_all([]), cache.unlock_all([])) == ([], [], None)
    assert cache.step() == ([], [])
    assert bits(cache) == before


# -- step ----------------------------------------------------------------------------------------------------------


def in_turn(cache, finish, prompts, more, spaces, sessions):
    """What a step does, by single calls."""
    done = [tried(lambda: cache.commit_finished(*each)) for each in finish]  # noqa: B023
    begun = cache.begin_all(prompts, spaces, sessions)
    for i, request in enumerate(begun):
        if request is not None and not cache.extend(request, len(prompts[i]) + more - request.length):
            cache.abort(request)
            begun[i] = None
    return done, begun


def equal(one, other, in_tree) -> None:
    """Two commits are equal; the first knows besides what the rest of its step has evicted again."""
    if one is not None and other is not None:
        for name, slots in in_tree.items():
            stays = [slot for slot in plain(other.adopted[name]) if slot in slots]
            assert plain(one.adopted[name]) == stays
            both = [sorted([*each.adopted[name], *each.freed[name]]) for each in (one, other)]
            assert both[0] == both[1]
        one, other = (each._replace(adopted={}, freed={}) for each in (one, other))
    assert plain(one) == plain(other)


def test_a_step_equals_single_calls():
    pair = both("full, swa, mamba")
    random, running, prompts_of, seen = Random(2), ([], []), {}, set()
    sessions = [None, *(pair[0].open_session() for _ in range(2))]
    assert sessions[1:] == [pair[1].open_session() for _ in range(2)]
    for _ in range(30):
        ends = [
            (i, each.committed + random.below(each.length - each.committed + 1)) for i, each in enumerate(running[0])
        ]
        ends = [end for end in ends if random.below(4)][:4]
        prompts, more = [random.key() for _ in range(2 + random.below(3))], random.below(4)
        spaces = [(None, "other")[random.below(4) == 0] for _ in prompts]
        chosen = [sessions[random.below(3)] for _ in prompts]
        results = []
        for cache, mine in zip(pair, running, strict=True):
            finish = [(mine[i], prompts_of[id(mine[i])][:end]) for i, end in ends]
            if cache is pair[0]:
                done = cache.step(finish=finish, begin=prompts, extend=more, namespaces=spaces, sessions=chosen)
            else:
                done = in_turn(cache, finish, prompts, more, spaces, chosen)
            assert [request.over for request, _ in finish] == [each is not None for each in done[0]]
            prompts_of |= {id(each): [*prompt, 8, 8, 8] for each, prompt in zip(done[1], prompts, strict=True) if each}
            mine[:] = [request for request in mine if not request.over] + [each for each in done[1] if each]
            results.append(done)
        same(*pair)
        views = pair[1].tree()
        in_tree = {name: {slot for view in views for slot in view.values[name] or ()} for name in pair[1]._names}
        for one, other in zip(results[0][0], results[1][0], strict=True):
            equal(one, other, in_tree)
        assert plain(results[0][1]) == plain(results[1][1])
        assert plain(running[0]) == plain(running[1])
        seen |= {
            (what, each is not None) for what, some in zip(("end", "begin"), results[0], strict=True) for each in some
        }
        if len(running[0]) > 4:
            for cache, mine in zip(pair, running, strict=True):
                cache.abort(mine.pop(0))
    assert seen == {(what, went) for what in ("end", "begin") for went in (True, False)}


class Stepper(Engine):
    """Serves by steps."""

    def step(self, finish, prompts, more: int, sessions) -> None:
        pairs = [(run.request, run.tokens[: run.computed]) for run in finish]
        done = self.cache.step(finish=pairs, begin=prompts, extend=more, sessions=sessions)
        for run, result in zip(finish, done.finished, strict=True):
            assert run.request.over == (result is not None)
            if result is not None:
                self._poison(result.freed)
                self.running.remove(run)
        for prompt, request in zip(prompts, done.begun, strict=True):
            if request is not None:
                assert request.length == len(prompt) + more
                self.start(request, prompt)


@pytest.mark.parametrize("kind", SOME)
def test_what_a_request_reads_is_what_it_would_have_computed(kind):
    cache = both(kind)[0]
    engine, random, slides = Stepper(cache, WINDOW.get(kind)), Random(3), kind == "full, swa"
    sessions, hits, page = [None, cache.open_session()], 0, cache.config.page_size
    for _ in range(60):
        finish = [run for run in engine.running if random.below(3) == 0][:4]
        prompts = [random.key(14) for _ in range(random.below(5))]
        engine.step(finish, prompts, random.below(4), [sessions[random.below(2)] for _ in prompts])
        engine.ledger_closes()
        hits += sum(run.request.match.device_len > 0 for run in engine.running)
        for run in list(engine.running):
            run.tokens += (8,) * (run.request.length - len(run.tokens))
            upto = run.computed + random.below(run.request.length - run.computed + 1)
            assert engine.compute(run, max(run.computed, upto // page * page if random.below(3) else upto))
            if slides and random.below(2):
                engine.slide(run)
                engine.commit(run)
            if random.below(6) == 0 or len(engine.running) > 5:
                engine.abort(run)
        engine.ledger_closes()
    assert hits > 10
    while engine.running:
        engine.abort(engine.running[0])
    engine.ledger_closes()
    cache.evict(dict.fromkeys(engine.memory, 64))
    assert cache.tree() == []
    assert cache.sizes() == {name: urc.Sizes(SLOTS[name], 0, 0) for name in engine.memory}


# -- by hand: pages of 4, a window of 4, 6 states, 4 nodes ---------------------------------------------------------


def test_what_finds_no_room_has_not_begun_and_holds_nothing(hybrid):
    first, none, third = hybrid.step(begin=[[1] * 20, [2] * 20, [3] * 5], extend=2).begun
    assert none is None
    assert (first.length, third.length) == (22, 7)  # 22 more than these 29 are not among 32
    assert hybrid.sizes() == {
        name: urc.Sizes(SLOTS[name] - n, 0, 0) for name, n in {"full": 29, "swa": 29, "mamba": 2}.items()
    }
    hybrid.check()
    hybrid.step(finish=[(first, [1] * 20), (third, [3] * 4)])
    # It has matched [1] * 20, and would need 20 more where 16 are free, and [3] * 4 is locked: both are let go of.
    four, none = hybrid.step(begin=[[3] * 4, [1] * 20 + [4] * 20]).begun
    assert (four.match.device_len, none) == (4, None)
    assert hybrid.sizes() == {"full": urc.Sizes(16, 20, 4), "swa": urc.Sizes(8, 20, 4), "mamba": urc.Sizes(3, 1, 1)}
    hybrid.check()
    hybrid.abort(four)


def test_a_finish_that_does_not_fit_goes_on(hybrid):
    run, other = hybrid.step(begin=[range(8), [9] * 4]).begun
    for i in range(4):
        hybrid.insert([50 + i] * 4, {"full": hybrid.alloc("full", 4)})
    before = bits(hybrid)
    assert hybrid.step(finish=[(run, range(8)), (other, [9] * 4)]).finished == [None, None]
    assert not run.over
    assert bits(hybrid) == before
    hybrid.check()
    hybrid.evict({"full": 4})
    one, none = hybrid.step(finish=[(other, [9] * 4), (run, range(8))]).finished
    assert (plain(one.adopted["full"]), none) == ([8, 9, 10, 11], None)
    assert (other.over, run.over) == (True, False)
    hybrid.abort(run)
    hybrid.check()
    assert hybrid.sizes()["full"] == urc.Sizes(SLOTS["full"] - 16, 16, 0)


def test_a_session_moves_before_what_begins_evicts():
    cache = both("full")[0]
    session, closed = cache.open_session(), cache.open_session()
    runs = cache.step(begin=[[1] * 8, [2] * 8, [3] * 8], sessions=[session, closed, None]).begun
    assert cache.close_session(closed)
    finish = [(run, [token] * 8) for token, run in enumerate(runs, 1)]
    # 16 of 40 slots are free: one node goes, the oldest that no open session refers to.
    last = cache.step(finish=finish, begin=[[5] * 24]).begun
    cache.check()
    assert [(view.prefix[0], view.sessions["full"]) for view in cache.tree()] == [(1, 1), (3, 0)]
    # And where its node has to go as well, within the same step, the session ends at the root.
    done, (first,) = cache.step(finish=[(last[0], [5] * 24)], begin=[[6] * 40], sessions=[session])
    assert (done[0].adopted["full"].tolist(), first.length, cache.tree()) == ([], 40, [])
    cache.step(finish=[(first, [6] * 40)])
    assert cache.tree()[0].sessions == {"full": 1}
    cache.check()


def test_a_later_step_moves_the_session_on_and_a_stream_does_not_finish_here(hybrid):
    session, stream = hybrid.open_session(), hybrid.open_session(streaming=True)
    one, streams = hybrid.step(begin=[[1] * 8, [2] * 4], sessions=[session, stream]).begun
    assert (one.session, streams.session) == (session, stream)
    unchanged(hybrid, lambda: hybrid.step(finish=[(streams, [2] * 4)]), "commit_finished")
    unchanged(hybrid, lambda: hybrid.step(begin=[[3]], sessions=[stream]), "has a request already")
    assert hybrid.tree() == []
    hybrid.step(finish=[(one, [1] * 8)])
    # The last 4 tokens are a window; the state is at the end.
    assert [(view.prefix, view.sessions) for view in hybrid.tree()] == [
        ((1,) * 4, {"full": 1, "swa": 0, "mamba": 0}),
        ((1,) * 8, {"full": 1, "swa": 1, "mamba": 1}),
    ]
    (turn,) = hybrid.step(begin=[[1] * 12], sessions=[session]).begun
    assert turn.match.device_len == 8
    hybrid.step(finish=[(turn, [1] * 12)])
    assert hybrid.tree()[-1].sessions == {"full": 1, "swa": 1, "mamba": 1}
    assert [view.sessions["swa"] for view in hybrid.tree()] == [0, 0, 1]
    hybrid.abort(streams)
    hybrid.check()


def test_each_is_one_program_and_compiled_once(hybrid, monkeypatch):
    ran, call = [], Program.__call__

    def counted(self, *given, **static):
        ran.append(self)
        return call(self, *given, **static)

    monkeypatch.setattr(Program, "__call__", counted)
    session = hybrid.open_session()
    (first,) = hybrid.step(begin=[[1] * 8], sessions=[session]).begun
    for other in hybrid.step(begin=[[7], [8], [9]], extend=1).begun:  # the shapes of the steps to come
        hybrid.abort(other)
    slots = [{"full": hybrid.alloc("full", 4)} for _ in range(2)]
    made = [program.compilations() for program in (compiled.step, compiled.inserts, compiled.locks)]
    ran.clear()
    done = hybrid.step(finish=[(first, [1] * 8)], begin=[[1] * 12, [2] * 5, [3]], extend=1, sessions=[session] * 3)
    assert done.begun[0].match.device_len == 8
    nodes = [each.node for each in hybrid.insert_all([[5] * 4, [6] * 4], slots)]
    hybrid.unlock_all(hybrid.lock_all(nodes))
    assert ran == [compiled.step, compiled.inserts, compiled.locks]
    again = [program.compilations() for program in ran]
    assert again[0] == made[0]  # another step of these shapes
    hybrid.step(finish=[(done.begun[1], [2] * 5)], begin=[[7] * 3])
    hybrid.unlock_all(hybrid.lock_all(nodes[:1]))
    assert [program.compilations() for program in ran[:3]] == again


def test_slots_that_a_request_has_let_go_of_may_be_others(windowed):
    """A commit finds slots of a window that the request is past already; it lets them go, and another takes them."""
    cache = windowed
    run, first = cache.step(begin=[range(12), range(8)]).begun
    cache.slide(run, 12)  # from 12 on nothing before 9 is read: two whole pages
    cache.step(finish=[(first, range(8))])
    cache.commit_unfinished(run, range(8))  # has the slots of the other request now, and no longer its own
    cache.slide(run, 12)
    assert cache.evict({"swa": 8}).evicted["swa"] == 8
    (other,) = cache.step(begin=[[9] * 28]).begun  # all of 32 but the four of `run`
    assert cache.step(finish=[(run, range(12))]).finished[0] is not None
    cache.check()
    cache.abort(other)
    cache.check()


def unchanged(cache, call, match: str) -> None:
    before = bits(cache), books(cache)
    with pytest.raises(urc.InvalidInput, match=match):
        call()
    assert (bits(cache), books(cache)) == before
    cache.check()


def test_what_makes_no_sense_is_refused_and_changes_nothing(hybrid):
    cache, theirs = both("full, swa, mamba")
    session = cache.open_session()
    run, done, dropped = cache.step(begin=[[1] * 8, [2] * 4, [3] * 4], sessions=[session, None, None]).begun
    (foreign,) = theirs.step(begin=[[1] * 8]).begun
    node = cache.step(finish=[(done, [2] * 4)]).finished[0].node
    cache.abort(dropped)
    receipt, gone = cache.lock(node), cache.lock(node)
    cache.unlock(gone)
    slots = {"full": cache.alloc("full", 4)}
    good = (run, [1] * 8)
    for call, match in (
        (lambda: cache.step(finish=[run]), "pairs of a Request"),
        (lambda: cache.step(finish=[(run, [1], [1])]), "pairs of a Request"),
        (lambda: cache.step(finish=7), "must be a sequence"),
        (lambda: cache.step(finish=[good, good]), "finish twice"),
        (lambda: cache.step(finish=[good, (done, [2] * 4)]), "is over"),
        (lambda: cache.step(finish=[good, (dropped, [3] * 4)]), "is over"),
        (lambda: cache.step(finish=[good, (foreign, [1] * 8)]), "not live here"),
        (lambda: cache.step(finish=[good, ("request", [1] * 8)]), "Request that begin returned"),
        (lambda: cache.step(finish=[(run, [1] * 9)]), "has slots for 8"),
        (lambda: cache.step(finish=[good], begin=5), "must be a sequence"),
        (lambda: cache.step(finish=[good], begin=[1, 2]), "flat sequence"),
        (lambda: cache.step(finish=[good], begin=[[-1]]), "must be >= 0"),
        (lambda: cache.step(finish=[good], begin=[[1]], namespaces=[None, None]), "as many namespaces"),
        (lambda: cache.step(finish=[good], begin=[[1]], namespaces=[1.5]), "a namespace is"),
        (lambda: cache.step(finish=[good], begin=[[1]], sessions=[]), "as many sessions"),
        (lambda: cache.step(finish=[good], begin=[[1]], sessions=[5]), "not a session"),
        (lambda: cache.step(finish=[good], begin=[[1]], extend=-1), "must lie in"),
        (lambda: cache.step(finish=[good], begin=[[1]], extend=64), "must lie in"),
        (lambda: cache.step(finish=[good], begin=[[1] * 65]), "max_key_len"),
        (lambda: cache.insert_all([[5] * 4], []), "as many of everything"),
        (lambda: cache.insert_all([[5] * 4], [slots], namespaces=[None] * 2), "as many of everything"),
        (lambda: cache.insert_all([[5] * 4] * 2, [slots, slots]), "given twice"),
        (lambda: cache.insert_all([[5] * 4], [{"full": run.slots["full"][:4]}]), "a running request's"),
        (lambda: cache.insert_all([[5] * 4], [{"full": [99] * 4}]), "not of the pool"),
        (lambda: cache.insert_all([[5] * 4, [6]], [slots, {}]), "lacks 'full'"),
        (lambda: cache.insert_all([[5] * 4, [6] * 5], [slots, slots]), "has 4 entries|given twice"),
        (lambda: cache.insert_all([[5] * 4], slots), "maps names of components"),
        (lambda: cache.lock_all([node, -1]), "a node is what"),
        (lambda: cache.lock_all(node), "must be a sequence"),
        (lambda: cache.lock_all([node, node, node + 2**31]), "has left the tree"),
        (lambda: cache.unlock_all([receipt, receipt]), "given twice"),
        (lambda: cache.unlock_all([receipt, gone]), "not live here"),
        (lambda: cache.unlock_all([receipt, foreign.receipt]), "not live here"),
        (lambda: cache.unlock_all([receipt, run.receipt]), "a running request's"),
        (lambda: cache.unlock_all([receipt, node]), "Receipt that lock returned"),
        (lambda: cache.unlock_all(receipt), "must be a sequence"),
    ):
        unchanged(cache, call, match)
    assert cache.step(finish=[good]).finished[0] is not None
    cache.unlock_all([receipt])
    callers = urc.UnifiedRadixCache(urc.CacheConfig())
    unchanged(callers, lambda: callers.step(begin=[[1]]), "caller's own")
    unchanged(callers, lambda: callers.insert_all([[1]], [{"full": [0]}]), "caller's own")
