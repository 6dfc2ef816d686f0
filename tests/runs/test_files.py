"""Line files: what is not a record is named by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.files import read_lines


@pytest.mark.parametrize("line", [b"{", b"[]\n", b"3\n", b"\xff\n", b"\n"])
def test_lines_that_are_no_records_are_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"round": 1}\n' + line)
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl line 2"):
        list(read_lines(path))


def test_lines_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl: no such file"):
        list(read_lines(tmp_path / "rounds.jsonl"))
