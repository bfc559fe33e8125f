# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One tree, three kinds of state
#
# A hybrid model mixes layers that remember in different ways. *Full attention* reads the keys and values of all tokens
# so far. *Sliding-window attention* (SWA) reads those of the last `window` tokens. A *Mamba* layer reads one recurrent
# state, which stands for everything up to one position and is overwritten with every token.
#
# `urc` keeps all three on one radix tree. Here is that tree after each step, and with it the arrays that it is made
# of. *First steps* (`00_first_steps.py`) explains insert, match, lock and evict for full attention alone.

# %%
import numpy as np

import urc

cache = urc.UnifiedRadixCache(
    urc.CacheConfig(
        components=(urc.Full(), urc.SWA(window=4), urc.Mamba()),
        page_size=2,
        pools={"full": 32, "swa": 32, "mamba": 8},  # in slots
        arena_tokens=32,
        max_nodes=16,
        max_sessions=4,
    )
)

# %% [markdown]
# The next cell only draws. Skip it.

# %%
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from urc import view

KINDS = ("full", "swa", "mamba")
COLUMNS = ["parent", "start", "length", "end", "full.lock", "swa.value", "swa.lock", "mamba.value", "mamba.lock"]
COLOURS = {"tokens": "#e2e2e2", "full": "#9cc4e8", "swa": "#f5c98a", "mamba": "#a9d8a0", "held": "#dccbee"}
LOCKS = Line2D([], [], color="black", marker="o", ls="", markersize=8, label="locks")
SESSIONS = Line2D([], [], color="purple", marker="D", ls="", markersize=7, label="sessions")
TOMBSTONE = Patch(facecolor="white", edgecolor="dimgray", ls="--", label="tombstone")
HELD = Patch(color=COLOURS["held"], label="held by a request")
LEGEND = [*(Patch(color=COLOURS[kind], label=kind) for kind in KINDS), TOMBSTONE, HELD, LOCKS, SESSIONS]


def write(axes, x, y, text, **style):
    axes.text(x, y, text, **({"ha": "center", "va": "center_baseline", "fontsize": 8} | style))


def box(axes, x, y, width, height, fill="white", edge="dimgray", line="-"):
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, ls=line))


def draw_node(axes, node, top):
    end, start = len(node.prefix), len(node.prefix) - len(node.key)
    box(axes, start + 0.1, top, end - start - 0.2, 4.1)
    write(axes, start + 0.1, top - 0.45, f"#{node.index}", ha="left", weight="bold")
    for i, token in enumerate(node.key):
        write(axes, start + i + 0.5, top + 0.5, token, fontsize=9)
    for y, (kind, slots) in zip(top + np.array([1.45, 2.45, 3.45]), node.values.items(), strict=True):
        left, look = (end - 1 if kind == "mamba" else start), (COLOURS[kind], "-") if slots else ("white", "--")
        box(axes, left + 0.2, y - 0.4, end - left - 0.4, 0.8, fill=look[0], line=look[1])
        for i, slot in enumerate(slots or ()):
            write(axes, left + i + 0.5, y, slot)
        for x, count, mark in (left + 0.04, node.locks[kind], LOCKS), (end - 0.04, node.sessions[kind], SESSIONS):
            if count:
                axes.plot(x, y, marker=mark.get_marker(), color=mark.get_color(), markersize=8.5)
                write(axes, x, y, count, color="white", fontsize=7)


def draw_tree(axes, nodes):
    """Nodes at their positions. A first child goes on in its parent's lane, every other one opens a lane."""
    tops, parents = {0: 0}, set()
    for node in nodes:
        tops[node.index] = max(tops.values()) + 5.4 if node.parent in parents else tops[node.parent]
        parents.add(node.parent)
        start, heights = len(node.prefix) - len(node.key), (tops[node.parent] + 0.5, tops[node.index] + 0.5)
        axes.plot([start - 0.2, start, start, start + 0.2], np.repeat(heights, 2), "dimgray", zorder=0)
        draw_node(axes, node, tops[node.index])
    axes.set(xlim=(-0.4, 16.2), ylim=(max(tops.values()) + 4.4, -1), xticks=range(0, 17, 2))


def draw_table(axes, table, nodes):
    for x, name in enumerate(["row", *COLUMNS]):
        write(axes, x, 0.3, name.replace(".", "\n"), fontsize=7, va="bottom")
        for y, row in enumerate(sorted(node.index for node in nodes), start=1):
            write(axes, x, y, f"#{row}" if name == "row" else table[name][row])
    axes.set_xlim(-0.6, len(COLUMNS) + 0.5)


def draw_arrays(axes, state, table, nodes):
    strips = {"tokens": {}, "full slots": {}, "swa slots": {}}
    for node in nodes:
        start, length = table["start"][node.index], len(node.key)
        write(axes, start + length / 2, -0.45, f"#{node.index}", weight="bold")
        axes.plot([start + 0.1, start + length - 0.1], [-0.1, -0.1], "dimgray")
        for label, run in zip(strips, (node.key, node.values["full"], node.values["swa"]), strict=True):
            strips[label] |= {start + i: (value, COLOURS[label.split()[0]]) for i, value in enumerate(run or ())}
    for kind, size in state.config.pools:
        free = np.asarray(state.stores[kind].pool)[size - cache.sizes()[kind].free : size].tolist()
        held = dict.fromkeys(set(range(size)) - set(free), ("", COLOURS["held"]))
        strips[f"{kind} pool"] = held | {s: (f"#{n.index}", COLOURS[kind]) for n in nodes for s in n.values[kind] or ()}
    for y, (label, cells) in zip([0, 1, 2, 3.6, 4.6, 5.6], strips.items(), strict=True):
        write(axes, -0.3, y + 0.5, label, ha="right")
        for i in range(8 if label == "mamba pool" else 32):
            text, fill = cells.get(i, ("", "white"))
            box(axes, i, y, 1, 1, fill, edge="lightgray")
            write(axes, i + 0.5, y + 0.5, text, fontsize=7.5)
    axes.set(xlim=(-3, 32.1), ylim=(6.7, -1), xticks=np.arange(0, 32, 4) + 0.5, xticklabels=range(0, 32, 4))


def show():
    state, nodes = cache.state, view.nodes(cache.state)
    table = dict(zip(state.nodes.columns, np.asarray(state.nodes.data).T, strict=True))
    height = 1.15 * max(1, sum(node.is_leaf for node in nodes))
    ratios = {"width_ratios": [7, 4.5], "height_ratios": [height, 1.9]}
    figure, grid = plt.subplot_mosaic("tn;aa", figsize=(11.5, height + 3), layout="constrained", gridspec_kw=ratios)
    draw_tree(grid["t"], nodes)
    draw_table(grid["n"], table, nodes)
    draw_arrays(grid["a"], state, table, nodes)
    grid["n"].set(xticks=[], ylim=grid["t"].get_ylim())
    for name, title in {"t": "tree, by position", "n": "node table", "a": "arrays, by place; pools, by slot"}.items():
        grid[name].set_title(title, fontsize=9, loc="left")
        grid[name].tick_params(length=0, labelsize=7, labelleft=False)
        grid[name].spines[:].set_visible(False)
    figure.legend(handles=LEGEND, ncols=7, fontsize=8, frameon=False, loc="outside upper center")
    plt.show()


show()

# %% [markdown]
# Nothing yet: 32 free slots of full attention, 32 of SWA, 8 of Mamba, and no row of the node table in use.
#
# ## A first request
#
# Ten tokens, none of them cached. The engine takes a slot per token for full attention, as many for SWA, and one for
# the Mamba state after the last token. It computes into them, and hands them all over. `serve` does so for any
# request: what is cached need not be computed, and `prev_prefix_len` says that its slots are the tree's own already.


# %%
def serve(tokens):
    hit = cache.match_prefix(tokens)
    missing = len(tokens) - hit.device_len
    slots = {kind: np.concatenate([hit.slots[kind], cache.alloc(kind, missing)]) for kind in ("full", "swa")}
    return cache.insert(tokens, slots | {"mamba": cache.alloc("mamba", 1)}, prev_prefix_len=hit.device_len)


first = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
serve(first)
show()

# %% [markdown]
# Each box is a node: its tokens, and below them a bar per kind with the slots in it. The new leaf was cut in two, so
# that its rear is one window long: whoever goes on from its end reads SWA there and nowhere else.
#
# The state stands at the end of `#1`. `#2` has none: a node without the value of some kind is that kind's *tombstone*.
# In the node table a value of -1 says so; of Mamba, any other value is the slot.
#
# ## A second request, which diverges
#
# It shares eight tokens with the first. The match ends within `#1`, and splits it there.

# %%
second = [*first[:8], 21, 22, 23, 24]
hit = cache.match_prefix(second)
assert hit.hits == {"full": 8, "swa": 8, "mamba": 0}
print(f"usable {hit.device_len}, alone {hit.hits}, stop {hit.stop.name}, branching_len {hit.branching_len}")
show()

# %% [markdown]
# Slots of full attention and SWA are shared out with the tokens. A state cannot be: it is the one after ten tokens, so
# it stays with the rear, `#1`. No array but the node table has changed: `#3` is a new row.
#
# A request can resume only where *all* kinds agree, and the hit is the deepest such place. Full attention and SWA could
# go on at 8, but Mamba has no state there, so nothing is usable: `NO_STATE`. And `branching_len` says what to do about
# it: leave a state at 8, so that the next request like this one hits. So we serve the second in two parts.

# %%
serve(second[:8])
serve(second)
show()

# %% [markdown]
# The first part computed all eight tokens once more. Its slots of full attention and SWA were duplicates and went back
# to the pools; its state was new to `#3`. The second part resumed there and made `#4`.
#
# ## The conversation goes on
#
# A third request is the next turn of the second, and hits all of that. Afterwards we probe: that is a match which
# changes nothing.


# %%
def probe(*keys):
    for key in keys:
        hit = cache.probe(key)
        print(f"{' '.join(map(str, key)):39} usable {hit.device_len:2}, alone {hit.hits}, {hit.stop.name}")


third = [*second, 25, 26, 27, 28]
assert cache.probe(third).device_len == 12
serve(third)
probe(third, second, first, [*first[:8], 77, 78], [*first[:6], 77, 78])
show()

# %% [markdown]
# ## Tombstones
#
# Room runs short. Each kind has an order of its own by last use, because each counts other nodes as used: full
# attention the whole path, SWA the trailing window and a page, Mamba the one state that the request went on from. So
# interiors grow old, and go before the ends to which conversations return. Let the first request return too, and then
# ask for one slot of Mamba and one of SWA.

# %%
cache.match_prefix(first)
print("mamba, newest first:", *(f"#{node}" for node in cache.access_order("mamba")))
print("swa,   newest first:", *(f"#{node}" for node in cache.access_order("swa")))
print(cache.evict({"mamba": 1}).evicted)
print(cache.evict({"swa": 1}).evicted)
show()

# %% [markdown]
# Mamba ranks lowest, so its eviction took the oldest state, that of `#3`, and nothing else. SWA took the oldest node of
# its order, `#4`, and with it what ranks below on the same node: the state, which is of no use where the window before
# it is broken. Full attention ranks above and stays. It goes from the leaves only.
#
# The third request can still resume at 16, as a whole window lies before that. The second has no place any more:

# %%
probe(third, second)

# %% [markdown]
# ## Recovery
#
# When the second request comes again, it has to compute everything. What it hands over fills the tombstones.

# %%
done = serve(second)
assert len(done.adopted["swa"]) == 4
print({kind: f"{len(done.adopted[kind])} adopted, {len(done.freed[kind])} freed" for kind in KINDS})
show()

# %% [markdown]
# `#4` has SWA again, in other slots than before, and a state. Everything else was a duplicate, and is free again.
#
# ## Locks
#
# A running request locks what it reads: full attention on the whole path, SWA in the trailing window, Mamba at the end.
# The black marks count the locks.

# %%
before = cache.state
receipt = cache.lock(cache.match_prefix(third).node)
show()

# %% [markdown]
# Now everything is to be evicted. What stays is what the request reads: gone are the other branch, and SWA and the
# states of the interior.

# %%
print(cache.evict({"full": 32, "swa": 32, "mamba": 8}).evicted)
show()

# %% [markdown]
# When decoding has moved on by a window, the request does not read this SWA any more and can give it back before it
# ends. What ranks below goes with it. Full attention stays locked until `unlock`, which takes a receipt once.

# %%
cache.release_early(receipt, "swa")
print(cache.evict({"swa": 32}).evicted)
show()

# %%
cache.unlock(receipt)
assert cache.sizes()["full"].protected == 0
cache.state = before  # back to where all was there: a snapshot is an assignment

# %% [markdown]
# ## A request's life
#
# `begin`, `extend` and `commit_…` do all of this for a scheduler: match, lock, evict, alloc, insert, unlock.
#
# They also see to the states. A state in the tree is shared by all that match it, and a request overwrites its state
# with every token. So a request has a slot of its own to write into, and `copies` says what to copy where before it
# does: *copy-on-write*. The states of our toy engine are numbers.

# %%
states = np.zeros(8, int)


def compute(request, tokens):
    own = request.slots["mamba"][0]
    for token in tokens:
        states[own] = (31 * states[own] + token) % 997


def copy(copies):
    for source, target in copies.values():
        states[target] = states[source]


fourth = [*first[:8], 31, 32, 33, 34, 35, 36]
request = cache.begin(fourth)
print(f"usable {request.match.device_len}, branching_len {request.match.branching_len}, copies {request.copies}")
states[request.slots["mamba"]] = 0  # nothing to go on from
assert cache.extend(request, 8)
compute(request, fourth[:8])
show()

# %% [markdown]
# The fourth request diverges at 8 too, where a state was evicted. So it has computed a first chunk, up to
# `branching_len`. That is in no node yet: the request holds the slots itself.
#
# Now it commits the chunk. Duplicates are freed, the new end is locked, and a slot is taken for a copy of the state,
# which stays behind in the tree. The request goes on writing into its own.

# %%
done = cache.commit_unfinished(request, fourth[:8])
print("copies", done.copies, "and the request writes into", request.slots["mamba"])
copy(done.copies)
show()

# %% [markdown]
# The rest, and the end. The key ends with a whole page, so the tree takes the request's own state. The lock goes.

# %%
assert cache.extend(request, 6)
compute(request, fourth[8:])
cache.commit_finished(request, fourth)
show()

# %% [markdown]
# A fifth request hits where the fourth has left a state: it copies that into its own slot, and computes two tokens
# only. It gets the state that computing all ten would have given.

# %%
fifth = [*first[:8], 41, 42]
request = cache.begin(fifth)
print(f"usable {request.match.device_len}, copies {request.copies}")
copy(request.copies)
assert cache.extend(request, 2)
compute(request, fifth[8:])
show()

# %%
expected = 0
for token in fifth:
    expected = (31 * expected + token) % 997
assert states[request.slots["mamba"][0]] == expected

# %% [markdown]
# If a request is dropped, its slots come back, and nothing else is left of it.

# %%
cache.abort(request)
assert all(size.protected == 0 for size in cache.sizes().values())

# %% [markdown]
# ## Sessions
#
# A session is a conversation whose next turn will come. It locks nothing, but what that turn will read goes last: here
# both other branches go before it, although they were used after it.

# %%
session = cache.open_session()
cache.advance_session(session, cache.match_prefix(third).node)
cache.match_prefix(first)
cache.match_prefix(fourth)
print(cache.evict({"full": 8}).evicted)
assert cache.probe(third).device_len == 16
show()

# %% [markdown]
# Last, the check that every slot has exactly one owner, and that all other invariants hold. *Serving a hybrid model* in
# the docs goes on from here: windows that slide while decoding, streaming sessions, how many states to keep.

# %%
cache.check()
