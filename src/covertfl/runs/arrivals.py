"""Files of arrivals: CSV with the columns round and updates."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from covertfl.errors import InvalidInput
from covertfl.files.toml import read_text, shorten

# Largest number in a file of arrivals.
MAX_NUMBER = 1_000_000_000


def read_arrivals(path: str) -> Mapping[int, int]:
    """Return the number of updates that arrive, by round.

    Raises
    ------
    InvalidInput
        naming the file and the line
    """
    reader = csv.DictReader(io.StringIO(read_text(path, "a file of arrivals")))
    if reader.fieldnames != ["round", "updates"]:
        came = ",".join(reader.fieldnames or []) or "nothing"
        raise InvalidInput(f"{path}: the first line must be round,updates, got {came}")
    arrivals: dict[int, int] = {}
    for row in reader:
        line = f"{path} line {reader.line_num}"
        number = _parse_whole(row["round"], "round", 1, line)
        if number in arrivals:
            raise InvalidInput(f"{line}: round must occur once, got {number} again")
        arrivals[number] = _parse_whole(row["updates"], "updates", 0, line)
    return arrivals


def _parse_whole(text: str | None, name: str, least: int, line: str) -> int:
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if not least <= number <= MAX_NUMBER:
        raise InvalidInput(
            f"{line}: {name} must be a whole number in {least}..{MAX_NUMBER}, got {shorten(text)}"
        )
    return number
