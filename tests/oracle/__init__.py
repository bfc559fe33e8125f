"""The cache once more in plain Python: what `urc` is compared with."""

from tests.oracle.cache import OracleCache
from tests.oracle.results import OracleFull, OracleRefused, Receipt
from tests.oracle.tree import tagged

__all__ = ["OracleCache", "OracleFull", "OracleRefused", "Receipt", "tagged"]
