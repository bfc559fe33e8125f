import hashlib

import numpy as np

from urc.replay.engine import ideal
from urc.replay.workload import chat_workload


def test_same_seed_same_requests():
    digest = hashlib.sha256()
    for request in chat_workload(requests=200, seed=1).requests:
        digest.update(request.ids.astype("<i4").tobytes())
        digest.update(repr((request.input_blocks, request.input_length, request.output_length)).encode())
    assert digest.hexdigest()[:16] == "ffbb3965354775fd"


def test_seeds_differ():
    one, two = (chat_workload(requests=20, seed=seed).requests for seed in (0, 1))
    assert any(a.input_length != b.input_length for a, b in zip(one, two, strict=True))


def test_shorter_is_the_beginning_of_longer():
    short, long = chat_workload(requests=30), chat_workload(requests=90)
    for a, b in zip(short.requests, long.requests, strict=False):
        np.testing.assert_array_equal(a.ids, b.ids)


def test_ids_name_their_block_and_all_before_it():
    before = {}
    for request in chat_workload(requests=300).requests:
        for parent, block in zip([-1, *request.ids.tolist()], request.ids.tolist(), strict=False):
            assert before.setdefault(block, parent) == parent


def test_lengths_agree_with_ids():
    for block_size in (1, 16, 100):
        for request in chat_workload(requests=50, block_size=block_size).requests:
            assert request.input_blocks == request.input_length // block_size
            assert len(request.ids) == (request.input_length + request.output_length) // block_size


def test_worth_caching():
    trace = chat_workload(requests=1200)
    assert 0.8 < ideal(trace).rate.blocks < 0.95
