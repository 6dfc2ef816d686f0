"""Files are written completely or not at all."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import covertfl as cf
from covertfl.files.disk import write_atomically
from tests.support.ordinary_user import read_only


def fail_for_space(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_on_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", fail_for_space)


def fail_on_write(patch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.BufferedWriter):
        write = fail_for_space

    def open_full(handle: int, _: str) -> FullDisk:
        return FullDisk(io.FileIO(handle, "w"))

    patch.setattr(os, "fdopen", open_full)


def fail_on_rename(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Path, "replace", fail_for_space)


def test_text_and_bytes(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "é\n")
    assert (tmp_path / "text").read_bytes() == b"\xc3\xa9\n"
    write_atomically(str(tmp_path / "bytes"), b"\x00\xff")
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    write_atomically(tmp_path / "text", "shorter")
    assert (tmp_path / "text").read_text() == "shorter"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "text"]


def test_a_name_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("here.txt", "x")
    assert (tmp_path / "here.txt").read_text() == "x"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", "x")
        assert os.umask(mask) == mask  # not left changed
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_an_old_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o600)
    write_atomically(tmp_path / "file", "new")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    for content in ("first", "second"):
        write_atomically(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "file").read_text() == content
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("fail", [fail_on_fsync, fail_on_write, fail_on_rename])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, fail: Callable[[pytest.MonkeyPatch], None]
) -> None:
    target = tmp_path / "policy.json"
    target.write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        fail(patch)
        with pytest.raises(cf.InvalidInput, match=r"policy\.json cannot be written: No space left"):
            write_atomically(target, "new")
        with pytest.raises(cf.InvalidInput, match=r"other\.json cannot be written: No space left"):
            write_atomically(tmp_path / "other.json", "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "policy.json"
    target.write_text("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["policy.json"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(cf.InvalidInput, match=r"file cannot be written: No such file or directory"):
        write_atomically(tmp_path / "missing" / "file", "x")
    with pytest.raises(cf.InvalidInput, match=r"cannot be written: Is a directory"):
        write_atomically(tmp_path, "x")
    (tmp_path / "plain").write_text("")
    with pytest.raises(cf.InvalidInput, match=r"cannot be written: Not a directory"):
        write_atomically(tmp_path / "plain" / "file", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_a_folder_without_permission(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "x")
    with (
        read_only(tmp_path),
        pytest.raises(cf.InvalidInput, match="cannot be written: Permission denied"),
    ):
        write_atomically(tmp_path / "file", "y")
    assert (tmp_path / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_can_be_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_atomically(path, "one", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    write_atomically(path, "two", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
