"""The cache once more in plain Python: what `urc` is compared with."""

from tests.oracle.cache import OracleCache, tagged
from tests.oracle.results import OracleFull, OracleRefused, Receipt

__all__ = ["OracleCache", "OracleFull", "OracleRefused", "Receipt", "tagged"]
