"""The files of runs: where runs are, and line files with one JSON object on each line.

A folder may be that of a run, or hold one sub-folder for each seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput

SETTINGS = "run.toml"


def find_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder: itself, or its sub-folders in the order of their numbers."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: no such folder, the folder of a run is needed")
    if _is_run(folder):
        return [folder]
    found = [child for child in folder.iterdir() if child.is_dir() and _is_run(child)]
    if not found:
        raise InvalidInput(f"{folder} holds no run: public/ or rounds.jsonl is needed")
    return sorted(found, key=lambda child: (len(child.name), child.name))


def _is_run(folder: Path) -> bool:
    return (folder / "public").is_dir() or is_public(folder)


def is_public(folder: Path) -> bool:
    """Return whether a folder is itself a public one, of a run or as a client recorded it."""
    return not (folder / "public").is_dir() and (folder / "rounds.jsonl").is_file()


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
