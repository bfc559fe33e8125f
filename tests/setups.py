"""The caches that the machines and the long run drive: small, to meet every limit; few, as each compiles.

Every combination of components; pages of 1, 2 and 4 tokens; windows below, at and above the page, and above every
key; all eight policies; full pools, node tables and arenas; pools of the cache's and of the caller's. Two are larger:
more nodes than one block of the victim order, and runs longer than the chunk that loops over runs take.
"""

from dataclasses import dataclass, field
from functools import cache

from tests.oracle import OracleCache
from tests.oracle.components import FULL, MAMBA, SWA


@dataclass(frozen=True)
class Setup:
    name: str
    page_size: int
    policy: str
    pools: dict = field(hash=False)  # component -> slots, whoever owns them; in the order of the components
    window: int | None = None
    mamba: dict = field(default_factory=dict, hash=False)  # options of the component
    callers: tuple = ()  # components whose pools the caller owns
    max_nodes: int | None = None
    arena_tokens: int | None = None
    max_sessions: int = 3
    policy_args: dict = field(default_factory=dict, hash=False)
    namespaces: tuple = (None, ("ab", "c"), ("a", "bc"))
    tails: bool = True  # False: whole pages only, so that pages of slots must stay together
    branching: int = 3
    episode: int = 400  # moves of the long run from one empty cache to the next
    max_pages: int = 0  # of a key; default: one more than fits, where that costs few tokens
    max_key_len: int = 64

    @property
    def names(self) -> tuple:
        return tuple(self.pools)

    @property
    def slots(self) -> int:
        return self.pools[FULL]

    @property
    def pages(self) -> tuple:
        """What keys are made of; most differ in their last token alone, so that only whole pages tell them apart."""
        zeros = (0,) * (self.page_size - 1)
        return *((*zeros, i) for i in range(self.branching - 1)), (self.branching - 1, *zeros)

    @property
    def owned_pools(self) -> dict:
        """As a configuration has it: None where the caller owns the pool."""
        return {name: None if name in self.callers else n for name, n in self.pools.items()}

    def __post_init__(self):
        if not self.max_pages:
            fits = min(self.slots, self.arena_tokens or self.slots) // self.page_size
            object.__setattr__(self, "max_pages", min(fits + 1, 10))

    def oracle(self) -> OracleCache:
        return OracleCache(
            page_size=self.page_size,
            pools=self.owned_pools,
            window=self.window,
            mamba=self.mamba,
            policy=self.policy,
            policy_args=self.policy_args,
            max_nodes=self.max_nodes,
            arena_tokens=self.arena_tokens,
            max_sessions=self.max_sessions,
        )

    def cache(self):
        return _cache(self)


@cache
def _cache(setup: Setup):
    """One handle for each setup in a process: each new configuration compiles for seconds."""
    import urc

    policy = setup.policy
    if setup.policy_args:
        policy = getattr(urc.policies, policy.capitalize())(**setup.policy_args)
    kinds = {
        FULL: lambda: urc.Full(),
        SWA: lambda: urc.SWA(window=setup.window),
        MAMBA: lambda: urc.Mamba(**setup.mamba),
    }
    return urc.UnifiedRadixCache(
        urc.CacheConfig(
            components=tuple(kinds[name]() for name in setup.pools),
            page_size=setup.page_size,
            pools=setup.owned_pools,
            policy=policy,
            max_nodes=setup.max_nodes,
            arena_tokens=setup.arena_tokens,
            max_sessions=setup.max_sessions,
            max_key_len=setup.max_key_len,
        )
    )


def _pools(full: int, swa: int = 0, mamba: int = 0) -> dict:
    return {name: n for name, n in ((FULL, full), (SWA, swa), (MAMBA, mamba)) if n}


SETUPS = {
    s.name: s
    for s in (
        Setup("p100_lru_long_runs", 100, "lru", _pools(900), arena_tokens=1000, max_key_len=512, max_pages=5),
        Setup("p2_lfu_few_nodes", 2, "lfu", _pools(16), max_nodes=6, arena_tokens=16),
        Setup("p4_fifo_whole_pages", 4, "fifo", _pools(24), arena_tokens=28, tails=False),
        Setup("p1_mru_few_nodes", 1, "mru", _pools(10), max_nodes=4, namespaces=(None, "", 0)),
        Setup("p2_filo_caller", 2, "filo", _pools(20), callers=(FULL,), max_nodes=8, arena_tokens=12),
        Setup("p1_priority_nodes", 1, "priority", _pools(16), max_nodes=8, arena_tokens=17, namespaces=("1", 1)),
        Setup("p4_slru_two_nodes", 4, "slru", _pools(24), max_nodes=3, arena_tokens=24, namespaces=(b"x", "x")),
        Setup(
            "p2_tlru_tight_arena",
            2,
            "tlru",
            _pools(20),
            arena_tokens=20,
            policy_args={"threshold": 6, "next_prompt": 2},
        ),
        # Full and SWA: a window above the page that is no multiple of it; one below the page.
        Setup("p2_swa3", 2, "lru", _pools(20, 12), window=3, arena_tokens=24, max_sessions=2),
        Setup("p2_swa1_caller", 2, "fifo", _pools(20, 14), window=1, callers=(FULL, SWA), max_nodes=8, arena_tokens=20),
        # Full and Mamba.
        Setup("p1_mamba_per_path", 1, "lru", _pools(14, mamba=5), mamba={"max_states_per_path": 2}, max_sessions=2),
        Setup(
            "p2_mamba_interval",
            2,
            "lfu",
            _pools(24, mamba=3),
            mamba={"checkpoint_interval": 3},
            callers=(MAMBA,),
            max_nodes=8,
        ),
        # All three.
        Setup("p1_all_few_nodes", 1, "lru", _pools(14, 10, 3), window=3, max_nodes=9, namespaces=(None, "a")),
        Setup(
            "p2_all_page_window",
            2,
            "slru",
            _pools(20, 14, 4),
            window=2,
            mamba={"max_states_per_path": 1},
            callers=(SWA,),
            arena_tokens=20,
            policy_args={"protected_hits": 3},
        ),
        Setup(
            "p4_all_long_window",  # Mamba's evictions come before SWA's
            4,
            "priority",
            {FULL: 32, MAMBA: 3, SWA: 20},
            window=100,
            max_nodes=10,
            max_sessions=2,
        ),
        Setup(
            "p1_all_many_nodes",
            1,
            "tlru",
            _pools(700, 500, 80),
            window=5,
            arena_tokens=720,
            branching=8,
            episode=2400,
            policy_args={"threshold": 4, "next_prompt": 1},
        ),
    )
}
