"""The caches that the machines and the long run drive: small, to meet every limit; few, as each compiles.

Pages of 1, 2 and 4 tokens, all eight policies, and full pools, node tables and arenas are spread over them. Two
are larger: more nodes than one block of the victim order, and runs longer than the chunk that loops over runs take.
"""

from dataclasses import dataclass, field
from functools import cache

from tests.oracle import OracleCache


@dataclass(frozen=True)
class Setup:
    name: str
    page_size: int
    policy: str
    slots: int  # in the pool, whoever owns it
    owned: bool = True  # by the cache
    max_nodes: int | None = None
    arena_tokens: int | None = None
    policy_args: dict = field(default_factory=dict, hash=False)
    namespaces: tuple = (None, ("ab", "c"), ("a", "bc"))
    tails: bool = True  # False: whole pages only, so that pages of slots must stay together
    branching: int = 3
    episode: int = 400  # moves of the long run from one empty cache to the next
    max_pages: int = 0  # of a key; default: one more than fits, where that costs few tokens
    max_key_len: int = 64

    @property
    def pages(self) -> tuple:
        """What keys are made of; most differ in their last token alone, so that only whole pages tell them apart."""
        zeros = (0,) * (self.page_size - 1)
        return *((*zeros, i) for i in range(self.branching - 1)), (self.branching - 1, *zeros)

    def __post_init__(self):
        if not self.max_pages:
            fits = min(self.slots, self.arena_tokens or self.slots) // self.page_size
            object.__setattr__(self, "max_pages", min(fits + 1, 10))

    def oracle(self) -> OracleCache:
        return OracleCache(
            page_size=self.page_size,
            pool=self.slots if self.owned else None,
            policy=self.policy,
            policy_args=self.policy_args,
            max_nodes=self.max_nodes,
            arena_tokens=self.arena_tokens,
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
    return urc.UnifiedRadixCache(
        urc.CacheConfig(
            components=(urc.Full(),),
            page_size=setup.page_size,
            pools={"full": setup.slots if setup.owned else None},
            policy=policy,
            max_nodes=setup.max_nodes,
            arena_tokens=setup.arena_tokens,
            max_key_len=setup.max_key_len,
        )
    )


SETUPS = {
    s.name: s
    for s in (
        Setup(
            "p1_tlru_many_nodes",
            1,
            "tlru",
            400,
            arena_tokens=410,
            branching=6,
            episode=1600,
            policy_args={"threshold": 4, "next_prompt": 1},
        ),
        Setup("p100_lru_long_runs", 100, "lru", 900, arena_tokens=1000, max_key_len=512, max_pages=5),
        Setup("p1_lru_tight_arena", 1, "lru", 12, arena_tokens=12),
        Setup("p2_lfu_few_nodes", 2, "lfu", 16, max_nodes=6, arena_tokens=16),
        Setup("p4_fifo_whole_pages", 4, "fifo", 24, arena_tokens=28, tails=False),
        Setup("p1_mru_few_nodes", 1, "mru", 10, max_nodes=4, namespaces=(None, "", 0)),
        Setup("p2_filo_caller", 2, "filo", 20, owned=False, max_nodes=8, arena_tokens=12),
        Setup("p1_priority_nodes", 1, "priority", 16, max_nodes=8, arena_tokens=17, namespaces=("1", 1)),
        Setup("p4_slru_two_nodes", 4, "slru", 24, max_nodes=3, arena_tokens=24, namespaces=(b"x", "x")),
        Setup(
            "p2_tlru_tight_arena",
            2,
            "tlru",
            20,
            arena_tokens=20,
            policy_args={"threshold": 6, "next_prompt": 2},
        ),
        Setup("p1_slru_caller", 1, "slru", 12, owned=False, arena_tokens=9, policy_args={"protected_hits": 3}),
    )
}
