"""The host handle, whole."""

from urc.handle.warm import WarmCalls


class UnifiedRadixCache(WarmCalls):
    """A prefix cache for a serving stack: NumPy in, NumPy out, errors raised.

    It owns one state and updates it in place. Every method either does what it says or raises and leaves the cache as
    it was: `InvalidInput` for arguments that make no sense, `CacheFull` for what does not fit. Not thread-safe.
    """
