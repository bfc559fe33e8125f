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
# # First steps
#
# A language model computes keys and values for every token of a prompt. What one prompt shares with earlier ones need
# not be computed again, if it was kept. `urc` keeps the book: which prefixes are there, in which *slots* of the
# engine's buffer, who uses them, and what to give up first when room runs out.
#
# To run this as a notebook: `pip install -e '.[notebooks]'`, then open it in Jupyter with Jupytext, or
# `jupytext --to ipynb notebooks/00_first_steps.py`.

# %%
import numpy as np

import urc

cache = urc.UnifiedRadixCache(urc.CacheConfig(page_size=2, pools={"full": 16}, max_nodes=8))
cache.sizes()

# %% [markdown]
# A cache of 16 slots in pages of 2 tokens. `Full` is its one component: ordinary attention, one slot per token.
#
# ## Insert
#
# A first prompt of six tokens. Nothing is cached, so we take a slot for each, compute, and hand the slots over.

# %%
first = [7, 1, 4, 4, 2, 9]
cache.insert(first, {"full": cache.alloc("full", 6)})
print(cache.pretty())

# %% [markdown]
# ## Match, and a split
#
# The second prompt begins like the first and then goes its own way. The match finds four tokens, and says why it
# stopped. Since it ended inside a node, the node was split there: the front part, `#2`, can now be shared.

# %%
second = [7, 1, 4, 4, 8, 3, 5, 6]
hit = cache.match_prefix(second)
print(hit.device_len, "tokens cached, in slots", hit.slots["full"], "-", hit.stop.name)
print(cache.pretty())

# %% [markdown]
# We compute the other four tokens only. `prev_prefix_len` says that the first four slots are the tree's own already.

# %%
new = cache.alloc("full", 4)
cache.insert(second, {"full": np.concatenate([hit.slots["full"], new])}, prev_prefix_len=4)
print(cache.pretty())

# %% [markdown]
# ## The arrays
#
# This is the whole truth about that tree: a few arrays of fixed size. Each node is a row that points at its parent and
# at its run in the token arena. The split moved no token: `#1` was `[0, 6)` and is `[4, 6)` now.

# %%
state = cache.state
columns = ["parent", "start", "length", "hits", "full.lock"]
table = np.asarray(state.nodes.data)[:4, [state.nodes.columns.index(name) for name in columns]]
print("row", *columns)
for row, values in enumerate(table):
    print(f"{row:3}", *(f"{value:{len(name)}}" for name, value in zip(columns, values, strict=True)))
print("tokens    ", np.asarray(state.tokens)[:16])
print("full slots", np.asarray(state.stores["full"].slots)[:16])

# %% [markdown]
# The state is immutable, and every operation is a pure function that makes the next state from it. So a snapshot is an
# assignment. See *Composing the functions* in the docs for the functions themselves.
#
# ## Lock and evict
#
# While a request runs, what it reads is locked. We lock the second prompt and ask for everything to be evicted: only
# the leaf `#1` goes, since `#3` and all above it are in use.

# %%
before = cache.state
receipt = cache.lock(cache.match_prefix(second).node)
print(cache.evict({"full": 16}).evicted)
print(cache.pretty())

# %% [markdown]
# Unlocked, it can go too. A lock's receipt can be used once; a second time it is refused, and nothing changes.

# %%
cache.unlock(receipt)
try:
    cache.unlock(receipt)
except urc.InvalidInput as error:
    print("refused:", error)
print(cache.evict({"full": 16}).evicted)

# %% [markdown]
# And back to before:

# %%
cache.state = before
print(cache.pretty())

# %% [markdown]
# ## Which policy?
#
# When room runs out, the policy says which leaf goes first. That depends on the traffic, so replay some: here a
# generated chat workload, in which short conversations return and long documents do not. One id stands for a block of
# 64 tokens, and capacities are in blocks. (`urc replay` does the same for a trace file of yours.)

# %%
from urc.replay.engine import ideal, open_cache, replay
from urc.replay.workload import chat_workload

trace = chat_workload(requests=400)
best = ideal(trace)
policies = ["lru", "slru"]
capacities = [best.blocks * share // 100 for share in (3, 6, 12, 25, 50)]
rates = {}
for policy in policies:
    for capacity in capacities:
        empty = open_cache(slots=max(capacities), capacity=capacity, policy=policy)
        rates[policy, capacity] = replay(trace, empty, capacity=capacity, policy=policy).rate.blocks

# %%
from matplotlib import pyplot as plt

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for policy in policies:
    axes.plot(capacities, [rates[policy, capacity] for capacity in capacities], marker="o", label=policy)
axes.axhline(best.rate.blocks, color="gray", linestyle="--", label="infinite cache")
axes.set(xlabel="capacity (blocks of 64 tokens)", ylabel="hit rate", ylim=(0, 1), title=trace.name)
axes.legend()
plt.show()

# %% [markdown]
# LRU forgets a conversation as soon as a long document sweeps through. SLRU protects what was used twice, which helps
# while room is scarce; with more room LRU is better here, because what was used once may well return.
