"""What a command sends with a request: row numbers, client numbers, and files."""

from __future__ import annotations

import base64
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.files.regular import read_bytes
from covertfl.files.table import split_rows
from covertfl.files.toml import read_text, shorten

COLUMN = "row"


def read_row_numbers(path: Path) -> list[int]:
    """Return the numbers in the column `row` of a csv file, or in its only column.

    A file with one column needs no header.
    """
    rows = split_rows(str(path), read_text(path, "a table of rows"))
    lines = [(line, cells) for line, cells in rows if any(map(str.strip, cells))]
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    if COLUMN not in header and len(header) != 1:
        raise InvalidInput(
            f"{path} must have a column {COLUMN} or only one column, got {', '.join(header)}"
        )
    place = header.index(COLUMN) if COLUMN in header else 0
    has_header = COLUMN in header or not _is_row(header[0])
    numbers = [
        _parse_number(cells[place] if place < len(cells) else "", f"{path} line {line}: row")
        for line, cells in lines[has_header:]
    ]
    if not numbers:
        raise InvalidInput(f"{path} must name at least one row, got none")
    return numbers


def parse_numbers(text: str, name: str) -> list[int]:
    """Return the numbers in text such as 1,2; `name` is what messages call it."""
    return [_parse_number(part, name) for part in text.split(",")]


def _parse_number(text: str, name: str) -> int:
    if not _is_row(text):
        raise InvalidInput(f"{name} must be a whole number of at least 0, got {shorten(text)}")
    return int(text)


def _is_row(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) <= 15


def encode_file(path: Path) -> str:
    """Return the content of a file in base64."""
    return base64.b64encode(read_bytes(path, "an .npz file")).decode()
