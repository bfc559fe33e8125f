"""Configurations: defaults, equality, and an error for each thing that makes no sense."""

import pytest

import urc
from urc.tables.victims import BLOCK


def test_defaults_never_let_the_node_table_fill():
    config = urc.CacheConfig(page_size=16, pools={"full": 65536})
    assert config.max_nodes == 65536 // 16 + 1
    assert config.arena_tokens == 65536 + 65536 // 2
    assert config.node_rows >= config.max_nodes + 1
    assert config.node_rows % BLOCK == 0


def test_equal_configurations_are_one_key():
    make = lambda: urc.CacheConfig(page_size=4, pools={"full": 64}, policy="slru")
    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != urc.CacheConfig(page_size=4, pools={"full": 64}, policy=urc.policies.Slru(protected_hits=3))
    assert make() == urc.CacheConfig(page_size=4, pools={"full": 64}, policy=urc.policies.Slru())


def test_a_caller_may_own_the_pool():
    for pools in (None, {}, {"full": None}):
        config = urc.CacheConfig(pools=pools, arena_tokens=100)
        assert config.pool_size("full") is None
        assert config.max_nodes == 101


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"page_size": 0}, "page_size"),
        ({"page_size": 1.5}, "page_size must be an integer"),
        ({"page_size": True}, "page_size"),
        ({"pools": {"ful": 3}}, "names of components"),
        ({"pools": {"full": -1}}, r"pools\['full'\]"),
        ({"pools": 7}, "names of components"),
        ({"policy": "lur"}, "unknown policy 'lur': use one of lru"),
        ({"policy": None}, "unknown policy"),
        ({"components": ()}, "components"),
        ({"components": ("full",)}, "components"),
        ({"components": (urc.Full(), urc.Full())}, "distinct names"),
        ({"pools": {"full": 8}, "arena_tokens": 7}, "arena_tokens must be at least the pool"),
        ({"arena_tokens": 3, "page_size": 4}, "at least one page"),
        ({"max_nodes": -1}, "max_nodes"),
        ({"max_nodes": 1, "pools": {"full": 8}}, "max_nodes"),
        ({"max_key_len": 0}, "max_key_len"),
        ({"max_nodes": 2**31}, "max_nodes"),
    ],
)
def test_nonsense_is_refused(options, says):
    with pytest.raises(urc.InvalidInput, match=says):
        urc.CacheConfig(**options)
