"""A request's life: whatever a scheduler does, what a request reads is what it would have computed itself."""

import jax
import numpy as np
import pytest

import urc
from tests.components.compressed import Compressed
from tests.engine import Engine

KINDS = {
    "full": (urc.Full(),),
    "full, swa": (urc.Full(), urc.SWA(window=3)),
    "full, mamba": (urc.Full(), urc.Mamba()),
    "full, swa, mamba": (urc.Full(), urc.SWA(window=4), urc.Mamba(max_states_per_path=2)),
    "with a fourth": (urc.Full(), Compressed(ratio=3), urc.SWA(window=1), urc.Mamba()),
}
PAGE = {"full": 1, "full, swa": 4, "full, mamba": 1, "full, swa, mamba": 2, "with a fourth": 2}
SLOTS = {"full": 48, "swa": 36, "mamba": 7, "compressed": 13}


def make(kind: str) -> tuple[urc.UnifiedRadixCache, int | None]:
    components = KINDS[kind]
    config = urc.CacheConfig(
        components=components,
        page_size=PAGE[kind],
        pools={c.name: SLOTS[c.name] for c in components},
        max_nodes=40,
        max_key_len=64,
        max_sessions=3,
    )
    window = next((c.window for c in components if isinstance(c, urc.SWA)), None)
    return urc.UnifiedRadixCache(config), window


_made: dict = {}


@pytest.fixture(params=KINDS)
def engine(request):
    if request.param not in _made:
        _made[request.param] = make(request.param)
    cache, window = _made[request.param]
    cache.reset()
    return Engine(cache, window)


@pytest.fixture
def hybrid():
    if "full, swa, mamba" not in _made:
        _made["full, swa, mamba"] = make("full, swa, mamba")
    cache, window = _made["full, swa, mamba"]
    cache.reset()
    return Engine(cache, window)


def serve(engine, tokens, chunk=64, **options):
    run = engine.begin(tokens, **options)
    while run.computed < len(tokens):
        assert engine.compute(run, min(run.computed + chunk, len(tokens)))
        if run.computed < len(tokens):
            assert engine.commit(run)
    assert engine.commit(run, finished=True)
    engine.ledger_closes()
    return run


class Scheduler:
    """Requests begin, run, wait, are aborted, at random; prompts share prefixes."""

    def __init__(self, engine: Engine, seed: int):
        self.engine, self.random = engine, np.random.default_rng(seed)
        self.sessions: list[int] = []
        self.waiting: dict = {}

    def below(self, n: int) -> int:
        return int(self.random.integers(n))

    def prompt(self) -> tuple:
        shared = [self.below(2) if i % 5 == 4 else 7 for i in range(self.below(20))]
        return (*shared, *(self.below(3) for _ in range(self.below(6))))

    def pick(self):
        running = self.engine.running
        return running[self.below(len(running))] if running else None

    def step(self) -> None:
        engine, cache = self.engine, self.engine.cache
        move = self.below(10)
        if move < 3 or not engine.running:
            session = self.sessions[self.below(len(self.sessions))] if self.sessions and self.below(3) == 0 else None
            if cache._streaming.get(session):
                session = None
            engine.begin(self.prompt(), session=session)
        elif move < 6:
            run = self.pick()
            cut = run.computed + 1 + self.below(6)
            branch = run.request.match.branching_len
            if run.computed < branch and self.below(2):
                cut = branch
            if cut > len(run.tokens):
                run.tokens += tuple(self.below(3) for _ in range(cut - len(run.tokens)))
            if cut <= 40 and engine.compute(run, cut) and self.below(2):
                engine.commit(run, leave_state=bool(self.below(4)))
            elif self.below(3) == 0:
                engine.abort(run)
        elif move == 6:
            run = self.pick()
            session = run.request.session
            streams = session in cache._streaming
            if engine.commit(run, finished=True) and streams:
                self.waiting[session] = run
        elif move == 7:
            engine.slide(self.pick())
        elif move == 8:
            if self.below(3) == 0:
                engine.abort(self.pick())
            else:
                names = list(engine.memory)
                cache.evict({names[self.below(len(names))]: 1 + self.below(4)})
        else:
            self.with_sessions()

    def with_sessions(self) -> None:
        engine, cache = self.engine, self.engine.cache
        move = self.below(4)
        if move == 0 and len(self.sessions) < 3:
            self.sessions.append(cache.open_session(streaming=bool(self.below(2))))
        elif move == 1 and self.sessions:
            session = self.sessions.pop(self.below(len(self.sessions)))
            assert cache.close_session(session)
            self.waiting.pop(session, None)
            assert not cache.close_session(session)
        elif move == 2 and self.waiting:
            session = sorted(self.waiting)[0]
            run = self.waiting.pop(session)
            assert cache.resume(session) is run.request
            engine.running.append(run)
            engine.read(run)
        elif move == 3 and self.sessions:
            cache.recede_session(self.sessions[0], self.below(20))


@pytest.mark.parametrize("seed", range(2))
def test_what_a_request_reads_is_what_it_would_have_computed(engine, seed):
    scheduler = Scheduler(engine, seed)
    for _ in range(250):
        scheduler.step()
        engine.ledger_closes([run.request for run in scheduler.waiting.values()])
    for session in scheduler.sessions:
        engine.cache.close_session(session)
    for run in list(engine.running):
        engine.abort(run)
    engine.ledger_closes()
    sizes = engine.cache.sizes()
    assert all(size.protected == 0 for size in sizes.values())
    engine.cache.evict({"full": 64})
    assert engine.cache.sizes() == {name: urc.Sizes(SLOTS[name], 0, 0) for name in sizes}
    assert engine.cache.tree() == []


# -- by hand: pages of 2, a window of 4, 7 states ------------------------------------------------------------------


def bits(cache) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(cache.state)]


def test_a_chunk_leaves_its_state_in_a_slot_of_its_own(hybrid):
    run = hybrid.begin(range(9))
    assert run.request.slots["mamba"].tolist() == [0]  # pools hand out their slots in order
    assert hybrid.compute(run, 6)
    done = hybrid.cache.commit_unfinished(run.request, range(6))
    assert done.copies == {"mamba": (0, 1)}
    assert (done.prefix_len, done.existed) == (0, {"full": False, "swa": False, "mamba": False})
    assert done.slots["full"].tolist() == [0, 1, 2, 3, 4, 5]
    assert done.slots["swa"].tolist() == [-1, -1, 2, 3, 4, 5]  # what lies before the window is not locked
    assert hybrid.cache.sizes() == {
        "full": urc.Sizes(42, 0, 6),
        "swa": urc.Sizes(30, 2, 4),
        "mamba": urc.Sizes(5, 0, 1),
    }


def test_a_state_of_no_whole_pages_stays_out_of_the_tree(hybrid):
    run = hybrid.begin(range(9))
    assert hybrid.compute(run, 5)
    done = hybrid.cache.commit_unfinished(run.request, range(5))
    assert done.copies == {}
    assert done.adopted["mamba"].tolist() == []
    assert hybrid.compute(run, 9)
    done = hybrid.cache.commit_finished(run.request, range(9))
    assert done.adopted["mamba"].tolist() == []
    assert done.freed["mamba"].tolist() == [0]
    assert done.freed["full"].tolist() == [8]
    assert hybrid.cache.sizes()["mamba"] == urc.Sizes(7, 0, 0)


def test_a_state_that_is_there_already_is_not_taken_twice(hybrid):
    serve(hybrid, range(6))
    run = hybrid.begin([*range(5), 9])  # resumes nowhere: the only state is at 6
    assert (run.computed, run.request.match.full_len) == (0, 4)
    run.tokens = tuple(range(6))
    assert hybrid.compute(run, 6)
    done = hybrid.cache.commit_unfinished(run.request, range(6))
    assert done.existed == {"full": True, "swa": True, "mamba": True}
    assert done.copies == {}
    assert done.freed["full"].tolist() == [6, 7, 8, 9, 10, 11]
    assert run.request.slots["full"].tolist() == [0, 1, 2, 3, 4, 5]
    hybrid.ledger_closes()
    hybrid.abort(run)


def test_a_request_counts_once_however_often_it_commits(hybrid):
    serve(hybrid, range(12), chunk=4)
    assert {view.hit_count for view in hybrid.cache.tree()} == {1}
    serve(hybrid, range(14), chunk=2)
    assert [view.hit_count for view in hybrid.cache.tree() if view.prefix[-1] < 12] == [2] * 3


def test_where_requests_branch_a_state_is_left_so_that_the_third_hits(hybrid):
    """Row 15: ten shared tokens, six of one's own, three times; pages of 2, so the branching point is 10."""
    hits = []
    for own in (100, 200, 300):
        tokens = (*range(10), *range(own, own + 6))
        run = hybrid.begin(tokens)
        hits.append((run.request.match.device_len, run.request.match.full_len, run.request.match.branching_len))
        for upto in (run.request.match.branching_len, 16):
            if upto > run.computed:
                assert hybrid.compute(run, upto)
                assert hybrid.commit(run, finished=upto == 16)
        hybrid.ledger_closes()
    assert hits == [(0, 0, 0), (0, 10, 10), (10, 10, 0)]


def test_a_dropped_request_gives_its_state_back(hybrid):
    """Row 20."""
    serve(hybrid, range(6))
    before = hybrid.cache.sizes()
    run = hybrid.begin(range(8))
    assert run.request.copies == {"mamba": (0, 1)}
    assert hybrid.compute(run, 8)
    hybrid.abort(run)
    assert hybrid.cache.sizes() == before
    with pytest.raises(urc.InvalidInput, match="is over"):
        hybrid.cache.abort(run.request)


def test_without_a_slot_to_write_into_nothing_begins_and_nothing_changes(hybrid):
    cache = hybrid.cache
    serve(hybrid, range(6))
    cache.alloc("mamba", 6)  # one is left, and it is in the tree
    before = bits(cache)
    with pytest.raises(urc.CacheFull, match="mamba"):
        cache.begin(range(8))  # would lock the only state that could go
    assert bits(cache) == before
    first, second = cache.begin_all([[9, 9], range(8)])
    assert second is None
    assert first.slots["mamba"].tolist() == [0]  # a request that shares nothing may evict it
    cache.check()
    assert cache.match_prefix(range(6)).device_len == 0


def test_what_does_not_fit_is_not_extended(hybrid):
    run = hybrid.begin(range(60))
    assert not hybrid.cache.extend(run.request, 37)  # 36 slots of the window's kind
    assert run.request.length == 0
    assert hybrid.cache.sizes()["full"].free == 48
    assert hybrid.cache.extend(run.request, 36)
    assert not hybrid.cache.extend(run.request, 1)
    hybrid.abort(run)
    assert hybrid.cache.sizes()["swa"].free == 36


def test_decoding_gives_the_window_back(hybrid):
    run = hybrid.begin(range(30))
    assert hybrid.compute(run, 8)
    assert hybrid.commit(run)
    assert hybrid.compute(run, 11)
    # From 11 on nothing before 7 is read: whole pages of it end at 6, which the tree holds.
    assert hybrid.cache.slide(run.request, 11)["swa"].tolist() == []
    assert hybrid.cache.sizes()["swa"].protected == 4
    assert hybrid.compute(run, 16)
    freed = hybrid.cache.slide(run.request, 16)
    # Positions 8..11 are its own; the lock on 4..7 goes too.
    assert freed["swa"].tolist() == [8, 9, 10, 11]
    assert hybrid.cache.sizes()["swa"] == urc.Sizes(36 - 8 - 4, 8, 0)
    assert hybrid.cache.sizes()["mamba"].protected == 0
    assert hybrid.commit(run, finished=True)
    hybrid.ledger_closes()
    assert [view.values["swa"] is None for view in hybrid.cache.tree()] == [False, False, True, False]


def test_a_finish_after_the_session_was_closed_refers_to_nothing(hybrid):
    cache = hybrid.cache
    session = cache.open_session()
    run = hybrid.begin(range(6), session=session)
    assert hybrid.compute(run, 6)
    assert hybrid.commit(run)
    assert [view.sessions for view in cache.tree()] == [
        {"full": 1, "swa": 0, "mamba": 0},
        {"full": 1, "swa": 1, "mamba": 1},
    ]
    assert cache.close_session(session)
    assert hybrid.compute(run, 6)
    assert hybrid.commit(run, finished=True)
    assert {count for view in cache.tree() for count in view.sessions.values()} == {0}
    assert not cache.advance_session(session, cache.match_prefix(range(6)).node)


def test_a_streaming_session_resumes_without_a_walk(hybrid, monkeypatch):
    cache = hybrid.cache
    session = cache.open_session(streaming=True)
    run = hybrid.begin(range(7), session=session)
    assert hybrid.compute(run, 7)
    assert hybrid.commit(run, finished=True)
    assert not run.request.over
    assert cache.evict({"full": 48}).evicted["full"] == 0  # what waits stays locked
    with monkeypatch.context() as patched:
        for name in ("match_prefix", "begin", "begins", "probe", "lock", "insert", "commit"):
            patched.setattr(urc.compiled, name, None)
        assert cache.resume(session) is run.request
    hybrid.running.append(run)
    run.tokens = tuple(range(12))
    assert run.request.length == 7  # the last, partial page too
    assert hybrid.compute(run, 12)
    with pytest.raises(urc.InvalidInput, match="no request waits"):
        cache.resume(session)
    assert hybrid.commit(run, finished=True)
    assert cache.close_session(session)
    assert run.request.over
    hybrid.ledger_closes()
    assert cache.sizes()["full"].protected == 0


def test_requests_are_refused_where_they_make_no_sense(hybrid):
    cache = hybrid.cache
    run = hybrid.begin(range(8))
    assert hybrid.compute(run, 4)
    before = bits(cache)
    for call, match in (
        (lambda: cache.commit_unfinished(run.request, range(5)), "5 tokens: .* slots for 4"),
        (lambda: cache.commit_unfinished("request", range(4)), "Request that begin returned"),
        (lambda: cache.extend(run.request, -1), "must lie in"),
        (lambda: cache.extend(run.request, 61), "must lie in"),
        (lambda: cache.begin(range(4), session=5), "not a session"),
        (lambda: cache.begin(range(4), session="a"), "must be an integer"),
        (lambda: cache.begin_all([range(4)], sessions=[None, None]), "1 keys need as many sessions"),
        (lambda: cache.resume(4), "not a session"),
    ):
        with pytest.raises(urc.InvalidInput, match=match):
            call()
    assert bits(cache) == before
    hybrid.abort(run)
    theirs = urc.UnifiedRadixCache(urc.CacheConfig())
    with pytest.raises(urc.InvalidInput, match="caller's own"):
        theirs.begin(range(4))


def test_a_batch_begins_as_one_after_the_other_would(hybrid):
    cache = hybrid.cache
    keys = [range(12), [*range(8), 50], [60, 61], range(3)]
    serve(hybrid, range(12), chunk=4)
    start = cache.state
    batch = cache.begin_all(keys)
    after = bits(cache)
    cache.state = start
    loop = [cache.begin(key) for key in keys]
    assert bits(cache) == after
    for one, other in zip(batch, loop, strict=True):
        assert one.match.device_len == other.match.device_len
        assert one.copies == other.copies
    assert [one.match.device_len for one in batch] == [12, 8, 0, 0]


# -- faults that an outside reviewer found ------------------------------------------------------------------------


def unchanged(cache, call, match):
    before = bits(cache)
    with pytest.raises(urc.InvalidInput, match=match):
        call()
    assert bits(cache) == before
    cache.check()


def test_a_roll_back_takes_running_requests_back_with_it(hybrid):
    cache = hybrid.cache
    run = hybrid.begin(range(20))
    assert hybrid.compute(run, 4)
    start, computed = cache.state, run.computed
    later = hybrid.begin([50, 51])
    assert hybrid.compute(run, 12)
    hybrid.slide(run)
    assert hybrid.commit(run)
    for _ in range(2):  # a snapshot can be gone back to again
        cache.state = start
        assert run.request.length == 4
        assert run.request.slots["full"].tolist() == [0, 1, 2, 3]
        assert (run.request.committed, run.request.given_up) == (0, {})
        unchanged(cache, lambda: cache.abort(later.request), "is over")
        other = cache.begin([7, 7])
        assert cache.extend(other, 4)
        assert set(other.slots["full"].tolist()).isdisjoint(run.request.slots["full"].tolist())
        cache.check()
    hybrid.running, run.computed = [run], computed
    assert hybrid.commit(run, finished=True)
    cache.check()


def test_a_finished_request_runs_again_after_a_roll_back(hybrid):
    cache = hybrid.cache
    run = hybrid.begin(range(8))
    assert hybrid.compute(run, 8)
    start = cache.state
    assert hybrid.commit(run, finished=True)
    cache.state = start
    cache.abort(run.request)
    cache.check()
    assert cache.sizes() == {name: urc.Sizes(SLOTS[name], 0, 0) for name in cache.sizes()}


def test_the_slots_and_the_lock_of_a_request_are_its_own(hybrid):
    cache = hybrid.cache
    serve(hybrid, range(6))
    run = hybrid.begin(range(8))
    assert hybrid.compute(run, 8)
    request = run.request
    unchanged(cache, lambda: cache.free("full", request.slots["full"][6:]), "a running request's")
    unchanged(cache, lambda: cache.insert([1, 2], {"full": request.slots["full"][6:]}), "a running request's")
    unchanged(cache, lambda: cache.unlock(request.receipt), "a running request's")
    unchanged(cache, lambda: cache.release_early(request.receipt, "swa"), "a running request's")
    hybrid.abort(run)
    hybrid.ledger_closes()


def test_a_commit_goes_on_from_what_was_committed(hybrid):
    cache = hybrid.cache
    for token in (50, 51, 52, 53):
        serve(hybrid, [token] * 4)
    run = hybrid.begin(range(16))
    assert hybrid.compute(run, 8)
    assert hybrid.commit(run)
    assert hybrid.compute(run, 16)
    assert cache.sizes()["mamba"].free == 1
    cache.alloc("mamba", 1)  # so that a state could be left only by evicting one
    unchanged(cache, lambda: cache.commit_unfinished(run.request, [99] * 16), "do not begin with those")
    unchanged(cache, lambda: cache.commit_finished(run.request, [50] * 4 + [0] * 12), "do not begin with those")
    assert hybrid.commit(run)


def test_arguments_of_a_batch_may_be_generators_but_not_numbers(hybrid):
    cache = hybrid.cache
    two = cache.begin_all(([1], [2]), namespaces=(None for _ in range(2)), sessions=(None for _ in range(2)))
    for request in two:
        cache.abort(request)
    cache.check()
    unchanged(cache, lambda: cache.begin_all([[1]], sessions=5), "sessions must be a sequence")
    unchanged(cache, lambda: cache.close_session([1]), "must be an integer")


def test_a_streaming_session_has_one_request(hybrid):
    cache = hybrid.cache
    session = cache.open_session(streaming=True)
    run = hybrid.begin(range(4), session=session)
    unchanged(cache, lambda: cache.begin([9], session=session), "has a request already")
    assert hybrid.compute(run, 4)
    assert hybrid.commit(run, finished=True)
    unchanged(cache, lambda: cache.begin([9], session=session), "has a request already")
    unchanged(cache, lambda: cache.extend(run.request, 1), "waits in session")
    unchanged(cache, lambda: cache.commit_finished(run.request, range(4)), "waits in session")
    before = cache.state
    cache.abort(run.request)  # a waiting request can be dropped, and the session goes on
    unchanged(cache, lambda: cache.resume(session), "no request waits")
    cache.abort(cache.begin([9], session=session))
    cache.state = before
    assert cache.resume(session) is run.request
    cache.abort(run.request)
    assert cache.close_session(session)
    cache.check()
    assert cache.sizes()["full"].protected == 0


def test_sliding_gives_the_lock_of_a_new_commit_back_too(hybrid):
    cache = hybrid.cache
    run = hybrid.begin(range(40))
    assert hybrid.compute(run, 20)
    hybrid.slide(run)  # 16 given up
    assert hybrid.commit(run)
    assert hybrid.compute(run, 24)
    hybrid.slide(run)
    assert cache.sizes()["swa"].protected == 0
    hybrid.ledger_closes()


def test_what_a_commit_returned_does_not_change(hybrid):
    run = hybrid.begin(range(12))
    assert hybrid.compute(run, 8)
    done = hybrid.cache.commit_unfinished(run.request, range(8))
    kept = {name: slots.tolist() for name, slots in done.slots.items()}
    assert hybrid.compute(run, 12)
    hybrid.slide(run)
    assert {name: slots.tolist() for name, slots in done.slots.items()} == kept
