"""Transitions of the cache: pure functions of a `CacheState`, for use under jit, scan, vmap and shard_map.

State first, options after `*`. None of them donates; `donating` wraps one for a caller who gives the state away.
"""

from urc.ops.compact import compact
from urc.ops.digest import digest
from urc.ops.donate import donating
from urc.ops.evict import Evicted, evict
from urc.ops.insert import Inserted, insert, inserts
from urc.ops.lock import Receipt, lock, unlock
from urc.ops.match import Match, match_prefix, match_prefixes, probe, probes
from urc.ops.slots import alloc, free, freed_slots
from urc.ops.split import split

__all__ = [
    "Evicted",
    "Inserted",
    "Match",
    "Receipt",
    "alloc",
    "compact",
    "digest",
    "donating",
    "evict",
    "free",
    "freed_slots",
    "insert",
    "inserts",
    "lock",
    "match_prefix",
    "match_prefixes",
    "probe",
    "probes",
    "split",
    "unlock",
]
