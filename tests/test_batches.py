"""Many at once: what batched calls and a scheduling step do is what single calls do, one after the other."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
import pytest

import urc
from urc.handle import batches, tree

KINDS = {
    "full": (1, (urc.Full(),)),
    "full, swa": (4, (urc.Full(), urc.SWA(window=3))),
    "full, mamba": (1, (urc.Full(), urc.Mamba())),
    "full, swa, mamba": (4, (urc.Full(), urc.SWA(window=4), urc.Mamba(max_states_per_path=2))),
}
SLOTS = {"full": 40, "swa": 32, "mamba": 6}
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


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind):
    """Two caches of one configuration, both empty: one for batches, one for single calls."""
    both = _made.setdefault(kind, (make(kind), make(kind)))
    for cache in both:
        cache.reset()
    return both


@pytest.fixture
def cache(pair):
    return pair[0]


@pytest.fixture
def windowed():
    cache = _made.setdefault("full, swa", (make("full, swa"), make("full, swa")))[0]
    cache.reset()
    return cache


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
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def books(cache) -> list:
    """All that a handle knows beside its state."""
    requests = [(id(request), plain(request)) for request in cache._requests]
    holders = [ledger._holder.tobytes() for ledger in cache._ledgers.values()]
    streaming = {session: id(request) for session, request in cache._streaming.items()}
    return [dict(cache._holds), requests, holders, streaming]


def holds(cache) -> list:
    """What all locks that are out hold."""
    return sorted((*plain(hold.receipt), hold.since, sorted(hold.early)) for hold in cache._holds.values())


def same(one, other) -> None:
    """Two caches are equal to the last bit."""
    assert bits(one) == bits(other)
    assert holds(one) == holds(other)
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
        start = self.below(3)
        return [start if i % 4 else start + self.below(2) for i in range(self.below(most + 1))]


# -- insert_all, lock_all, unlock_all ------------------------------------------------------------------------------


def entries(random: Random, cache, n: int):
    """`n` inserts with slots that the caller holds; some of them wrong about what the tree holds."""
    keys, slots, options = [], [], {"namespaces": [], "prev_prefix_lens": [], "evicted_lens": []}
    for _ in range(n):
        key, space = random.key(), (None, "other")[random.below(4) == 0]
        whole = len(key) // cache.config.page_size * cache.config.page_size
        known = cache.probe(key, space).full_len
        prev = (0, known, min(known, 4), whole)[random.below(4)]
        given_up, row = random.below(len(key) + 1) * random.below(2), {}
        for component in cache.config.components:
            name = component.name
            first = {"full": prev, "swa": max(prev, given_up), "mamba": 0}[name]
            count = random.below(2) if name == "mamba" else max(len(key) - first, 0)
            new = cache.alloc(name, count)
            if new is None:
                return None
            row[name] = new if name == "mamba" else np.concatenate([np.full(len(key) - count, -1), new])
        keys.append(key)
        slots.append(row)
        options["namespaces"].append(space)
        options["prev_prefix_lens"].append(prev)
        options["evicted_lens"].append({"swa": given_up} if "swa" in row else {})
    options["inserted_lens"] = [random.below(5) for _ in range(n)]
    options["priorities"] = [random.below(3) - 1 for _ in range(n)]
    return keys, slots, options


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
            keys, slots, options = batch
            done = many.insert_all(keys, slots, **options)
            columns = zip(*options.values(), strict=True)
            loop = []
            for key, row, column in zip(keys, slots, columns, strict=True):
                space, prev, evicted, inserted, priority = column
                loop.append(tried(lambda: single.insert(key, row, space, prev, inserted, evicted, priority)))  # noqa: B023
            assert plain(done) == plain(loop)
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
    assert {"+++", "---"} < outcomes
    assert outcomes & {"-++", "+-+", "--+", "-+-"}  # goes on after a refusal
    many.unlock_all(held[0])
    assert all(size.protected == 0 for size in many.sizes().values())


def test_a_batch_of_inserts_goes_on_after_a_refusal(pair):
    cache, other = pair
    page, nodes = cache.config.page_size, cache.config.max_nodes - 1
    pages = lambda cache, n: [{"full": cache.alloc("full", page)} for _ in range(n)]
    for each in pair:
        for token, slots in enumerate(pages(each, nodes - 1)):
            each.insert([token] * page, slots)
    keys, prevs = [[token] * page for token in (90, 91, 0, 92)], [0, 0, 0, page]
    slots = pages(cache, 4)
    new, no_node, old, no_prefix = cache.insert_all(keys, slots, prev_prefix_lens=prevs)
    assert (no_node, no_prefix) == (None, None)
    assert (new.prefix_len, plain(new.adopted["full"])) == (0, plain(slots[0]["full"]))
    assert (old.prefix_len, plain(old.freed["full"])) == (page, plain(slots[2]["full"]))
    cache.check()
    for i in (1, 3):  # still the caller's
        cache.free("full", slots[i]["full"])
    assert cache.sizes()["full"] == urc.Sizes(SLOTS["full"] - nodes * page, nodes * page, 0)
    again = pages(other, 4)
    with pytest.raises(urc.CacheFull, match="NO_FREE_NODE"):
        other.insert(keys[0], again[0])
        other.insert(keys[1], again[1])
    other.insert(keys[2], again[2])
    with pytest.raises(urc.InvalidInput, match="holds only 0 tokens"):
        other.insert(keys[3], again[3], prev_prefix_len=page)
    for i in (1, 3):
        other.free("full", again[i]["full"])
    same(cache, other)


def test_batches_are_filled_up_with_nothing(monkeypatch):
    """Five in a batch of eight, of which one key is longer than the least width; and none at all."""
    monkeypatch.undo()
    config = urc.CacheConfig(pools={"full": 256}, max_key_len=200)
    cache, other = urc.UnifiedRadixCache(config), urc.UnifiedRadixCache(config)
    keys = [[1, 2, 3], [1, 2, 4], list(range(5, 155)), [], [1, 2]]
    slots = [[{"full": each.alloc("full", len(key))} for key in keys] for each in (cache, other)]
    done = cache.insert_all(keys, slots[0])
    assert plain(done) == plain([other.insert(*each) for each in zip(keys, slots[1], strict=True)])
    assert [each.prefix_len for each in done] == [0, 2, 0, 0, 2]
    nodes = [each.node for each in done]
    receipts = cache.lock_all(iter(nodes))
    loop = [other.lock(node) for node in nodes]
    same(cache, other)
    assert cache.sizes()["full"].protected == 154
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


def in_tree(cache, name: str) -> set[int]:
    return {slot for view in cache.tree() for slot in view.values[name] or ()}


def settled(cache, results, where) -> list:
    """Commits as plain values, and which of what was adopted is still in the tree of the cache `where`."""
    out = []
    for result in results:
        if result is not None:
            fields = plain(result)
            for name in cache._names:
                adopted, freed = fields["adopted"][name], fields["freed"][name]
                stays = [slot for slot in adopted if slot in where[name]]
                fields["adopted"][name], fields["freed"][name] = stays, sorted({*adopted, *freed} - {*stays})
            result = fields
        out.append(result)
    return out


def test_a_step_equals_single_calls(pair):
    random, running, seen = Random(2), ([], []), set()
    sessions = [[each.open_session() for each in pair] for _ in range(2)]
    assert sessions[0][0] == sessions[0][1]
    for _ in range(30):
        finish = [(i, random.below(each.length - each.committed + 1)) for i, each in enumerate(running[0])]
        finish = [each for each in finish if random.below(4)][:4]
        prompts, more = [random.key() for _ in range(2 + random.below(3))], random.below(4)
        spaces = [(None, "other")[random.below(4) == 0] for _ in prompts]
        chosen = [(None, *(one[0] for one in sessions))[random.below(3)] for _ in prompts]
        results = []
        for cache, mine in zip(pair, running, strict=True):
            ending = [(mine[i], tokens_of(mine[i])[: mine[i].committed + n]) for i, n in finish]
            call = cache.step if cache is pair[0] else None
            if call:
                done, begun = call(finish=ending, begin=prompts, extend=more, namespaces=spaces, sessions=chosen)
            else:
                done, begun = in_turn(cache, ending, prompts, more, spaces, chosen)
            for request, prompt in zip(begun, prompts, strict=True):
                if request is not None:
                    PROMPTS[id(request)] = [*prompt, *[8] * more]
            for (request, _), result in zip(ending, done, strict=True):
                assert request.over == (result is not None)
            mine[:] = [request for request in mine if not request.over] + [each for each in begun if each]
            results.append((done, begun))
        same(*pair)
        where = {name: in_tree(pair[1], name) for name in SLOTS if name in pair[1]._names}
        assert settled(pair[0], results[0][0], where) == settled(pair[1], results[1][0], where)
        assert plain(results[0][1]) == plain(results[1][1])
        assert plain(running[0]) == plain(running[1])
        seen |= {("finished", each is not None) for each in results[0][0]}
        seen |= {("begun", each is not None) for each in results[0][1]}
        if len(running[0]) > 4:
            for cache, mine in zip(pair, running, strict=True):
                cache.abort(mine.pop(0))
    assert seen == {(what, went) for what in ("finished", "begun") for went in (True, False)}


PROMPTS: dict[int, list[int]] = {}


def tokens_of(request) -> list[int]:
    return PROMPTS[id(request)]
