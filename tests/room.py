"""Compiled programs are mapped into memory piece by piece, and Linux allows a process some 65,000 pieces: a hundred
programs of ours. Beyond that the compiler dies. What is dropped here is compiled again when it is needed.
"""

import gc
from pathlib import Path

MOST = 25_000
_MAPS = Path("/proc/self/maps")


def make_room() -> None:
    """Drops all compiled programs if they take up too many pieces."""
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > MOST:
        import jax

        jax.clear_caches()
        gc.collect()
