"""The files of runs: where runs are, and line files with one JSON object on each line.

A folder may be that of a run, or hold one sub-folder for each seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.compact import unpack_record
from covertfl.files.disk import require_regular
from covertfl.files.text import parse_json, shorten

SETTINGS = "run.toml"
# Line files: what was sent, what was done in each round, updates that were served, scores.
SENT, ROUNDS, UPDATES = "public/rounds.jsonl", "private/rounds.jsonl", "private/updates.jsonl"
METRICS = "metrics.jsonl"


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
    require_regular(path, "a line file of a run")
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                record = parse_json(line, f"{path} line {number}")
                if not isinstance(record, dict):
                    raise InvalidInput(f"{path} line {number} must be a JSON object")
                yield record
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from error


def read_rounds(folder: Path, *, states: int, trajectories: int) -> Iterator[dict[str, Any]]:
    """Yield the private records of a run's rounds, with all that is used of them checked.

    Clients and batches are lists, also where they were written in a shorter form (`compact`).

    Parameters
    ----------
    states : number of oracle states (W)
    trajectories : number of trajectories (K)

    Raises
    ------
    InvalidInput
        naming the line and the key, if a value is missing or impossible
    """
    path = folder / ROUNDS
    wanted: dict[str, tuple[Callable[[Any], bool], str]] = {
        "round": (lambda value: _is_below(value, math.inf), "a whole number"),
        "trajectory": (lambda value: _is_below(value, trajectories), f"in 0..{trajectories - 1}"),
        "oracle_state": (lambda value: _is_below(value, states), f"in 0..{states - 1}"),
        "arrival": (lambda value: _is_below(value, math.inf), "a whole number"),
        "accepted": (lambda value: type(value) is bool, "true or false"),
        "action": (lambda value: value in ("learn", "obfuscate"), "learn or obfuscate"),
        "clients": (_is_list_of_clients, "a list of whole numbers"),
    }
    for number, record in enumerate(read_lines(path), start=1):
        unpack_record(record)
        for key, (is_valid, allowed) in wanted.items():
            if not is_valid(record.get(key)):
                raise InvalidInput(
                    f"{path} line {number}: {key} must be {allowed}, "
                    f"got {shorten(record.get(key, 'nothing'))}"
                )
        yield record


def _is_below(value: object, limit: float) -> bool:
    """Return whether a value is a whole number from 0, below a limit; true is not 1."""
    return type(value) is int and 0 <= value < limit


def _is_list_of_clients(value: object) -> bool:
    return isinstance(value, list) and all(_is_below(client, math.inf) for client in value)
