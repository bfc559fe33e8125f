"""Transitions of the cache: pure functions of a `CacheState`, for use under jit, scan, vmap and shard_map.

State first, options after `*`. None of them donates; `donating` wraps one for a caller who gives the state away.
"""

from urc.ops.compact import compact
from urc.ops.digest import digest
from urc.ops.donate import donating
from urc.ops.evict import Evicted, evict
from urc.ops.insert import Inserted, insert, inserts
from urc.ops.lock import Receipt, lock, release_early, unlock
from urc.ops.match import Match, match_prefix, match_prefixes, probe, probes
from urc.ops.request import Begun, Committed, admits, begin, begins, commit, reserve
from urc.ops.session import SessionRef, advance_session, close_session, open_session, recede_session
from urc.ops.slots import alloc, free, freed_slots
from urc.ops.split import split

__all__ = [
    "Begun",
    "Committed",
    "Evicted",
    "Inserted",
    "Match",
    "Receipt",
    "SessionRef",
    "admits",
    "advance_session",
    "alloc",
    "begin",
    "begins",
    "close_session",
    "commit",
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
    "open_session",
    "probe",
    "probes",
    "recede_session",
    "release_early",
    "reserve",
    "split",
    "unlock",
]
