"""Row numbers, client numbers and files that a command sends."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.service.uploads import encode_file, parse_numbers, read_row_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("row\n3\n5\n", [3, 5]),
        ("3\n5\n", [3, 5]),
        ("number\n3\n5", [3, 5]),
        ("7", [7]),
        ("name,row\nann,3\nbob,5\n", [3, 5]),
        ("\ufeffrow\r\n3\r\n\r\n5\r\n", [3, 5]),
        (" row , x\n 3 ,1\n", [3]),
    ],
)
def test_rows_are_read(tmp_path: Path, text: str, numbers: list[int]) -> None:
    (tmp_path / "rows.csv").write_text(text, newline="")
    assert read_row_numbers(tmp_path / "rows.csv") == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must have a column row or only one column"),
        ("a,b\n1,2\n", "must have a column row or only one column, got a, b"),
        ("row\n", "must name at least one row"),
        ("row\n3\nx\n", "line 3: row must be a whole number of at least 0, got 'x'"),
        ("row\n-1\n", "line 2: row must be"),
        ("row\n1.5\n", "got '1.5'"),
        ("a,row\n1\n", "line 2: row must be"),
    ],
)
def test_other_rows_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_row_numbers(tmp_path / "rows.csv")


def test_numbers_are_parsed() -> None:
    assert parse_numbers("1, 2,30", "--clients") == [1, 2, 30]
    for text in ("", "1,", "x", "1;2"):
        with pytest.raises(InvalidInput, match="--clients must be a whole number"):
            parse_numbers(text, "--clients")


def test_a_file_is_encoded(tmp_path: Path) -> None:
    (tmp_path / "new.npz").write_bytes(b"\x00\xff")
    assert base64.b64decode(encode_file(tmp_path / "new.npz")) == b"\x00\xff"
    with pytest.raises(InvalidInput, match="no such file"):
        encode_file(tmp_path / "nothing.npz")
