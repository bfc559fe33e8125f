"""Output files: refused early if they cannot be written, and whole or absent."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


class OutputError(ValueError):
    """A file cannot be written: the message names it and says why."""


def check_writable(path: Path) -> None:
    """Raises OutputError where `write` would fail; leaves nothing behind."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OutputError(f"{path}: not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: not writable")
    probe = _beside(target)
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def write(path: Path, content: bytes) -> None:
    """Writes a temporary file beside `path` and renames it, so that no half-written file is ever seen."""
    target = path.resolve()
    temporary = _beside(target)
    try:
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:64]}.{secrets.token_hex(4)}.tmp")
