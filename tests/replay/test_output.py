import os
from pathlib import Path

import pytest

from urc.replay.output import OutputError, check_writable, write


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "out.bin"
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_write_follows_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_check_leaves_nothing(tmp_path):
    check_writable(tmp_path / "out.bin")
    assert os.listdir(tmp_path) == []


def test_refused(tmp_path):
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path: "not a regular file",
        tmp_path / "missing" / "out": "No such file",
        tmp_path / "file" / "out": "Not a directory",
    }
    for path, reason in cases.items():
        with pytest.raises(OutputError, match=reason):
            check_writable(path)
    for path in list(cases)[1:]:
        with pytest.raises(OutputError):
            write(path, b"x")
    assert os.listdir(tmp_path) == ["file"]


def test_device_is_not_replaced():
    with pytest.raises(OutputError, match="not a regular file"):
        check_writable(Path("/dev/null"))


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    write(path, b"old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OutputError, match="No space left"):
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]
