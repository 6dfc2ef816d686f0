"""Line files: one JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a line file, in order; InvalidInput names the line that is wrong."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise InvalidInput(f"{path} line {number} is not JSON: {error}") from error
                if not isinstance(record, dict):
                    raise InvalidInput(f"{path} line {number} must be a JSON object")
                yield record
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error
