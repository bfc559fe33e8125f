"""The cache beside one that others wrote: the tree of SGLang 0.5.23, driven by the same random requests.

python -m tests.peer --ops N --seed S --peer DIR [--driver DIR] [--setup NAME] [--core python|rust]

DIR holds that release, unpacked, in `wheel`, and what it imports in `venv`, for this version of Python; --driver (or
DIR) holds `cache.py`, whose `make_cache` builds the tree on a CPU. After each step all that can be seen is compared:
hits, branching points, what an insert finds and adopts, what an eviction frees, free, evictable and protected slots;
with the Python core also all nodes (values, locks, hits, priority) and orders of access. A difference is thinned out.

Where the two differ on purpose, and what is done about it:

- A split is no access; the peer counts it as one in Full's order: the cache gets `Full(split_refreshes=True)`. Of that
  order only the leaves are compared: within one insert the interior, which cannot be evicted, is stamped otherwise.
- A recovered node is cut where the last window begins, as a new leaf is; the peer cuts new leaves only. Both caches are
  made to match up to there first, which cuts in both.
- Both pieces of a cut new leaf get the insert's hit; the peer gives it to the rear one: with SWA hits are not compared,
  and no policy that counts them is used.
- An insert need not bring a state of Mamba; the peer's must: all do.
- Full slots never change; the peer swaps them to revive SWA: slots are counted, and what Full adopts is not compared.
- Slots of SWA stand on their own; the peer's belong to a Full slot each: those given up are taken there and freed at
  once, and its pools are larger by as much, which is subtracted.
- SWA may be given up at any token, `prev_prefix_len` may lie inside a node; the peer takes whole pages, the ends of
  nodes: so does the driver.
- `max_states_per_path` is not set. `release_early` of Mamba alone, sessions and the reason of a match's end have no
  counterpart.
"""

import argparse
import importlib
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

from tests.oracle.components import FULL, MAMBA, SWA
from tests.pair import ints, same

PAGES = {1: {FULL: 24, SWA: 16, MAMBA: 5}, 4: {FULL: 96, SWA: 64, MAMBA: 5}}  # their size -> slots per component
WINDOWS = [(1, 1, "fifo"), (1, 3, "lru"), (1, 100, "lru"), (4, 2, "lru"), (4, 4, "priority"), (4, 6, "mru")]


def _setups() -> dict[str, tuple]:
    """Page size, slots per component, window, policy, checkpoint interval."""
    some = lambda page, *names: {name: PAGES[page][name] for name in names}
    found = {"full_p1": (1, some(1, FULL), None, "lfu", 1), "full_p4": (4, some(4, FULL), None, "lru", 1)}
    for page, policy, interval in (1, "slru", 1), (4, "lru", 3):
        found[f"mamba_p{page}"] = page, some(page, FULL, MAMBA), None, policy, interval
    for page, window, policy in WINDOWS:
        found[f"swa_p{page}_w{window}"] = page, some(page, FULL, SWA), window, policy, 1
        found[f"all_p{page}_w{window}"] = page, PAGES[page], window, "lru", page
    return found | {"all_p1_large": (1, {FULL: 150, SWA: 80, MAMBA: 20}, 5, "lru", 1)}


SETUPS = _setups()


class Peer:
    """The other cache; it answers in plain numbers and lists."""

    def __init__(self, driver, core: str, setup: tuple):
        page, pools, window, policy, interval = setup
        room = [4 * pools.get(name, 0) + 64 * page for name in (FULL, SWA)] + [pools.get(MAMBA, 0) + 2]
        names = [name.upper() for name in pools]
        at = driver.make_cache(names, page, *room, window, core, policy, mamba_chunk=interval)
        self.at, self.core, self.zeros = at, core == "python" and at.core, driver.torch.zeros
        self.kinds = {kind.name.lower(): kind for kind in at.comps}
        self.surplus = {name: at.available()[name.upper()] - n for name, n in pools.items()}

    def match(self, tokens, space) -> list:
        length, node = self.at.match(tokens, space)
        found, of = self.at.last, "mamba" if self.at.has_mamba else "swa"
        return [length, found.full_kv_hit_length, getattr(found, f"{of}_branching_seqlen") or 0, node]

    def insert(self, tokens, space, prev, given_up, inserted, priority) -> list:
        at, slots = self.at, self.zeros(len(tokens)).long()
        if len(tokens) > prev:
            slots[prev:] = at.alloc(len(tokens) - prev)
        if given_up > prev:
            at.allocator.free_swa_segment(slots[prev:given_up], start_pos=0)
        state = at.alloc_mamba() if at.has_mamba else None
        prefix = at.insert(tokens, slots, state, given_up, prev, space, priority, inserted, track=True)
        if at.has_mamba and at.last.mamba_exist:  # its caller's to free
            at.rtp.mamba_allocator.free(state)
        ranges = (at.last.adopted_ranges or {}).get(self.kinds.get(SWA), ())
        existed = at.has_mamba and bool(tokens) and at.last.mamba_exist
        return [prefix, sum(end - start for start, end in ranges), existed, at.last.last_device_node]

    def sizes(self) -> dict:
        """Per component: free, evictable, protected."""
        self.at.check()
        free, sizes = self.at.available(), self.at.sizes()
        return {name: [free[name.upper()] - n, *sizes[name.upper()].values()] for name, n in self.surplus.items()}

    def tree(self) -> tuple[dict, dict]:
        """Of each place in the tree what is there, and each component's order of access, newest first."""
        nodes, times, orders = {}, {}, {}
        rest = [(child, ()) for child in self.core.root_node.children.values()]
        while rest:
            node, above = rest.pop()
            prefix = above + tuple(node.key.raw_token_ids())
            data = [node.component_data[kind] for kind in self.kinds.values()]
            rest += [(child, prefix) for child in node.children.values()]
            values, locks = [of.value is not None for of in data], [of.lock_ref for of in data]
            nodes[node.id] = (node.key.extra_key, *prefix), [values, locks, node.priority, node.hit_count]
            if not node.children:
                times[node.id] = node.last_access_time
        orders[FULL] = [nodes[i][0] for i in sorted(times, key=times.get, reverse=True)]
        for name, kind in list(self.kinds.items())[1:]:
            lru = self.core.lru_lists[kind]
            orders[name], node = [], lru.head
            while (node := node.lru_next[lru._pt]) is not lru.tail:
                orders[name].append(nodes[node.id][0])
        return dict(nodes.values()), orders


def handle(setup: tuple):
    import urc

    page, pools, window, policy, interval = setup
    parts = [urc.Full(split_refreshes=True), urc.SWA(window=window or 1), urc.Mamba(checkpoint_interval=interval)]
    options = {"components": tuple(part for part in parts if part.name in pools), "pools": pools, "policy": policy}
    return urc.UnifiedRadixCache(urc.CacheConfig(page_size=page, max_key_len=128, **options))


class Both:
    """Both caches. The moves take any numbers, so that a list of them can be thinned out."""

    def __init__(self, setup: tuple, cache, make_peer):
        self.setup, self.cache, self.make_peer, self.calls = setup, cache, make_peer, 0
        self.page, self.pools, self.window, *_ = setup
        self._whole = lambda n: n // self.page * self.page

    def reset(self) -> None:
        self.cache.reset()
        self.peer = self.make_peer(self.setup)
        self.running = []  # requests: [key in the tree, space, their lock, tokens of SWA given up]

    def match(self, key, space) -> tuple:
        """The hit, and the node: the cache's and the peer's."""
        self.calls += 1
        got, want = self.cache.match_prefix(key, namespace=space), self.peer.match(key, space)
        branch = int(got.branching_len) if len(self.pools) > 1 else 0
        same("hit, full hit, branching point", [int(got.device_len), int(got.full_len), branch], want[:3])
        return want[0], (int(got.node), want[3])

    def evict(self, which, full=0, swa=0, mamba=0) -> None:
        """Of one component, or (3) of all."""
        self.calls += 1
        wanted = {name: n for name, n in ((FULL, full), (SWA, swa), (MAMBA, mamba)) if name in self.pools}
        wanted = {name: n for i, (name, n) in enumerate(wanted.items()) if which % 4 in (i, 3)}
        got = {name: int(n) for name, n in self.cache.evict(wanted).evicted.items()}
        want = dict(zip((FULL, SWA, MAMBA), self.peer.at.evict(**wanted), strict=True))
        same("evicted", got, {name: want[name] for name in got})

    def _lock(self, node: tuple) -> list:
        """The receipt, whether SWA was released, and the peer's node and receipt."""
        self.calls += 1
        return [self.cache.lock(node[0]), False, node[1], self.peer.at.lock(node[1])]

    def _unlock(self, lock: list) -> None:
        self.calls += 1
        self.cache.unlock(lock[0])
        self.peer.at.unlock(*lock[2:], skip_swa=lock[1])

    def _insert(self, key, space, prev, given_up, inserted=0, priority=0) -> tuple | None:
        """By a caller who holds all from `prev` on but for what he gave up. Returns the end node; None: no room."""
        key, pools = key[: self._whole(len(key))], self.pools
        given_up = min(self._whole(given_up), len(key)) if SWA in pools else 0
        first = {FULL: prev, SWA: max(prev, given_up), MAMBA: 0}
        wanted = {name: max((1 if name == MAMBA else len(key)) - first[name], 0) for name in pools}
        short = lambda: {name: max(n - self.cache.sizes()[name].free, 0) for name, n in wanted.items()}
        if any(short().values()):
            self.evict(3, **short())
        if any(short().values()):
            return None
        if SWA in pools:
            self._cut(key, space, first[SWA])
        slots = {name: [-1] * first[name] + ints(self.cache.alloc(name, n)) for name, n in wanted.items()}
        gone, options = {SWA: given_up} if SWA in pools else {}, {"inserted_len": inserted, "priority": priority}
        self.calls += 1
        got = self.cache.insert(key, slots, space, prev_prefix_len=prev, evicted_len=gone, **options)
        want = self.peer.insert(key, space, prev, given_up, inserted, priority)
        found = [int(got.prefix_len), len(got.adopted.get(SWA, ())), bool(got.existed.get(MAMBA, False))]
        same("prefix_len, adopted of SWA, existing state", found, want[:3])
        return int(got.node), want[3]

    def _cut(self, key, space, lo: int) -> None:
        """Cuts a node that is about to recover where the last window begins."""
        at = len(key) - -(-self.window // self.page) * self.page
        for view in self.cache.tree() if at > lo else ():
            inside = len(view.prefix) - len(view.key) < at < len(view.prefix) and view.values[SWA] is None
            if inside and view.namespace == space and list(view.prefix[:at]) == key[:at]:
                self.match(key[:at], space)
                return

    # Moves, as `match` and `evict` are

    def request(self, key, space, hold, given_up, inserted, priority):
        """From start to finish; if it locks nothing, it brings slots for all of its tokens."""
        hit, node = self.match(key, space)
        lock = self._lock(node) if hold % 4 else None
        self._insert(key, space, hit if lock else 0, given_up, inserted % (len(key) + 1), priority)
        if lock:
            self._unlock(lock)

    def again(self, at, less, given_up):
        """The prefix of a node, or most of it, by a caller who did not match."""
        if views := [view for view in self.cache.tree() if view.node]:
            view = views[at % len(views)]
            length = len(view.prefix) - self._whole(less % (len(view.key) + 1))
            self._insert([int(t) for t in view.prefix[:length]], view.namespace, 0, given_up)

    def start(self, key, space):
        if len(self.running) < 4:
            hit, node = self.match(key, space)
            self.running.append([key[:hit], space, self._lock(node), 0])

    def go_on(self, at, key, given_up):
        """The next chunk of a running request, which may have given up SWA by then; its lock moves on."""
        if self.running:
            request = self.running[at % len(self.running)]
            old, space, lock, gone = request
            gone = max(gone, self._whole(min(given_up, len(old))))
            new = (old + key)[: len(old) + 3 * self.page]
            if node := self._insert(new, space, len(old), gone, len(old)):
                request[:] = new[: self._whole(len(new))], space, self._lock(node), gone
                self._unlock(lock)

    def release(self, at):
        if self.running and SWA in self.pools and not (lock := self.running[at % len(self.running)][2])[1]:
            self.calls, lock[1] = self.calls + 1, True
            self.cache.release_early(lock[0], SWA)
            self.peer.at.release_swa(*lock[2:])

    def finish(self, at):
        if self.running:
            self._unlock(self.running.pop(at % len(self.running))[2])

    # What can be seen

    def compare(self) -> None:
        sizes, shown = self.cache.sizes(), 3 if SWA in self.pools else 4
        got = {name: [sizes[name].free, sizes[name].evictable, sizes[name].protected] for name in self.pools}
        same("free, evictable, protected", got, self.peer.sizes())
        if not self.peer.core:
            return
        views, got = {int(view.node): view for view in self.cache.tree() if view.node}, {}
        place = lambda view: (view.namespace, *map(int, view.prefix))
        nodes, orders = self.peer.tree()
        for view in views.values():
            values = [value is not None for value in view.values.values()]
            got[place(view)] = [values, list(view.locks.values()), view.priority, view.hit_count]
        both = [(at, got.get(at, [])[:shown], nodes.get(at, [])[:shown]) for at in {**got, **nodes}]
        same("nodes: (place, [values, locks, ..], the peer's)", [x for x in both if x[1] != x[2]], [])
        for name in self.pools:
            order = [views[int(node)] for node in self.cache.access_order(name)]
            same(f"order of {name}", [place(v) for v in order if name != FULL or v.is_leaf], orders[name])


MOVES = ["match", "start", "release", "finish"] + 2 * ["request", "evict", "go_on"] + ["again"]  # drawn evenly


def draw(setup: tuple, rng: random.Random, recent: list) -> tuple[str, list]:
    """A move; keys often begin as one of the last few did."""
    page, pools, *_ = setup

    def key() -> list[int]:
        old = rng.choice(recent)
        found = old[: rng.randrange(len(old) // page + 1) * page] if rng.random() < 0.5 else old
        for _ in range(rng.randrange(5)):
            found = [*found, *[0] * (page - 1), rng.randrange(3)]
        recent[:] = [*recent[-5:], found[: pools[FULL] // 3 * 2]]
        return recent[-1] + [0] * rng.randrange(page)

    kinds = {"key": key, "space": lambda: rng.choice([None, None, None, "a"]), "priority": lambda: rng.randrange(3)}
    number = lambda: rng.randrange(3) * rng.randrange(6 * page)
    name = rng.choice(MOVES)
    code = getattr(Both, name).__code__
    return name, [kinds.get(argument, number)() for argument in code.co_varnames[1 : code.co_argcount]]


def play(both: Both, steps) -> None:
    """Plays steps from empty caches; on a difference those played are its `steps`."""
    both.reset()
    played = []
    try:
        for name, arguments in steps:
            played.append((name, arguments))
            getattr(both, name)(*arguments)
            both.compare()
    except Exception as e:
        e.steps = played
        raise


def thin_out(both: Both, error: Exception) -> Exception:
    """The difference to which fewer steps lead."""
    size = len(error.steps)
    while size := size // 2:
        at = 0
        while at < len(error.steps):
            try:
                play(both, error.steps[:at] + error.steps[at + size :])
                at += size
            except Exception as e:
                error = e
    return error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=5_000, help="calls to compare, over all setups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--driver", type=Path)
    parser.add_argument("--setup", choices=SETUPS, action="append")
    parser.add_argument("--core", choices=["python", "rust"], default="python")
    args = parser.parse_args()
    packages = [str(path) for path in (args.peer or Path()).glob("venv/lib/python3.*/site-packages")]
    folder = args.driver or args.peer
    if not args.peer or not packages or not (args.peer / "wheel").exists() or not (folder / "cache.py").exists():
        print("needs --peer DIR: SGLang 0.5.23 in DIR/wheel, what it imports in DIR/venv, DIR/cache.py (or --driver)")
        return 2
    names, done = args.setup or list(SETUPS), 0
    caches = {name: handle(SETUPS[name]) for name in names}  # ours is imported before the peer
    os.environ["PEER_DIR"] = str(args.peer.resolve())
    sys.path[:] = [str(folder), *sys.path, *packages]
    make_peer = partial(Peer, importlib.import_module("cache"), args.core)
    for name in names:
        both, episode, start = Both(SETUPS[name], caches[name], make_peer), 0, time.monotonic()
        while both.calls < args.ops / len(names):
            rng, recent = random.Random(f"{args.seed} {name} {episode}"), [[]]
            try:
                play(both, (draw(both.setup, rng, recent) for _ in range(120)))
            except Exception as e:
                print(f"{type(e).__name__} in {name}, seed {args.seed}, episode {episode}, step {len(e.steps)}: {e}")
                fewest = thin_out(both, e)
                print(f"fewest steps: {fewest}\n" + "\n".join(f"    {step!r}," for step in fewest.steps))
                return 1
            episode += 1
        done += both.calls
        print(f"{name}: {both.calls:,} operations, {episode} episodes, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{done:,} operations, 0 differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
