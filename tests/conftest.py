"""How all tests run: the same examples on every run in CI, and what was compiled once is not compiled again."""

import os

# Without LLVM's optimisations a program compiles in half the time. What the tests read and compare is the same.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.room import make_room

# A first call compiles for seconds, so time is no reason to give up.
_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", deadline=None, suppress_health_check=_slow)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config):
    if hasattr(config, "cache"):
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(autouse=True)
def _room_for_programs():
    yield
    make_room()
