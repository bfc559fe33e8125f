"""Request traces: JSON lines read into typed, immutable requests.

Two formats, told apart by their fields. In both, `hash_ids` names prefix blocks, and two
requests share a prefix exactly as far as their ids agree.

- Mooncake (Qin et al., FAST'25): `timestamp, input_length, output_length, hash_ids`; the ids
  cover the input, 512 tokens each, and only the input enters the cache.
- chat: `session, turn, input_length, output_length, hash_ids`; the ids cover input and output,
  16 tokens each, `input_length // 16` of them are the input's, and outputs enter the cache.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

BLOCK_SIZE = {"mooncake": 512, "chat": 16}
FIELDS = {
    "mooncake": ("timestamp", "input_length", "output_length"),
    "chat": ("session", "turn", "input_length", "output_length"),
}
INT32_MAX = 2**31 - 1


class TraceError(ValueError):
    """A trace cannot be read: the message names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request: its prefix blocks, the input's first, then those of the output that are cached."""

    ids: np.ndarray  # i32[n], read-only
    input_blocks: int  # of the ids, how many are input: <= n
    input_length: int  # tokens
    output_length: int  # tokens


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order they are served; one id stands for `block_size` tokens."""

    name: str
    block_size: int
    requests: tuple[Request, ...]

    @property
    def input_blocks(self) -> int:
        """Blocks of all inputs: what a hit rate is taken of."""
        return sum(r.input_blocks for r in self.requests)

    @property
    def input_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(r.input_length for r in self.requests)


def read_trace(path: Path, *, block_size: int | None = None, limit: int | None = None) -> Trace:
    """Reads a trace file, or its first `limit` requests; a name that ends in `.gz` is unpacked.

    Args:
      path: the file.
      block_size: tokens that one id stands for; by default the format's own (512 or 16).
      limit: read no further than this many requests.

    Raises:
      TraceError: the file cannot be opened, is empty, or a line of it is malformed.

    """
    rows: list[dict[str, Any]] = []
    kind = ""
    with closing(_lines(path)) as numbered:
        for number, line in islice(numbered, limit):
            where = f"{path}, line {number}"
            row = _parse(line, where)
            kind = kind or _format_of(row, where)
            _check(row, kind, block_size or BLOCK_SIZE[kind], where)
            rows.append(row)
    if not rows:
        raise TraceError(f"{path}: no requests in it")
    size = block_size or BLOCK_SIZE[kind]
    return Trace(name=path.name, block_size=size, requests=_requests(rows, kind, size))


def _lines(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Yields (number from 1, bytes) of each line that is not blank."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: broken gzip file ({error})") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise TraceError(f"{where}: not a JSON object")
    return row


def _format_of(row: dict[str, Any], where: str) -> str:
    if "session" in row or "turn" in row:
        return "chat"
    if "timestamp" in row:
        return "mooncake"
    raise TraceError(f"{where}: neither `timestamp` (Mooncake) nor `session` and `turn` (chat) in it")


def _check(row: dict[str, Any], kind: str, block_size: int, where: str) -> None:
    for field in FIELDS[kind]:
        if field not in row:
            raise TraceError(f"{where}: `{field}` is missing")
        if not _is_count(row[field]) or row[field] >= 2**53:
            raise TraceError(f"{where}: `{field}` is not an integer in [0, 2**53)")
    if "hash_ids" not in row:
        raise TraceError(f"{where}: `hash_ids` is missing")
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(map(_is_count, ids)):
        raise TraceError(f"{where}: `hash_ids` is not a list of integers >= 0")
    needed = row["input_length"] // block_size
    if kind == "chat" and len(ids) < needed:
        raise TraceError(f"{where}: `hash_ids` has {len(ids)} ids, the input alone needs {needed}")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # type(), because a bool is an int too


def _requests(rows: list[dict[str, Any]], kind: str, block_size: int) -> tuple[Request, ...]:
    if any(max(row["hash_ids"], default=0) > INT32_MAX for row in rows):
        dense: dict[int, int] = {}
        for row in rows:
            row["hash_ids"] = [dense.setdefault(block, len(dense)) for block in row["hash_ids"]]
    requests = []
    for row in rows:
        ids = np.array(row["hash_ids"], np.int32)
        ids.flags.writeable = False
        input_blocks = row["input_length"] // block_size if kind == "chat" else len(ids)
        requests.append(Request(ids, input_blocks, row["input_length"], row["output_length"]))
    return tuple(requests)
