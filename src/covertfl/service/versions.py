"""Versions: the states of a service's run that its requests have released, in files.

    versions/3/state.safetensors   the checkpoint of the run after the round of the release
    versions/3/version.json        what it is: its parent, round, request and metrics

Both are for the owner only.  The second is written last and says that the first is complete.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.files.disk import read_bytes, write_atomically
from covertfl.models.export import VERSION_FACTS, find_version
from covertfl.runs.checkpoint import CHECKPOINT, STATE, Checkpoint, read_state
from covertfl.runs.folder import report_errors
from covertfl.service.store import Version


def write_version(folder: Path, version: Version, source: Path | None = None) -> None:
    """Write the files of a version, whose state is the checkpoint in the folder or in `source`."""
    place = find_version(folder, version.version)
    with report_errors(place):
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
    content = read_bytes(source or folder / CHECKPOINT, "a checkpoint")
    write_atomically(place / STATE, content, mode=0o600)
    facts = {key: value for key, value in asdict(version).items() if key != "withdrawn"}
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    write_atomically(place / VERSION_FACTS, text, mode=0o600)


def read_version(folder: Path, number: int) -> Checkpoint:
    """Return the state of a version.

    Raises
    ------
    InvalidInput
        if it is not there, or damaged
    """
    file = find_version(folder, number) / STATE
    found = read_state(file)
    if found is None:
        raise InvalidInput(f"{file}: no such file, the state of version {number} is needed")
    return found


def remove_version(folder: Path, number: int) -> None:
    """Remove the files of a version that has been withdrawn."""
    place = find_version(folder, number)
    with report_errors(place), contextlib.suppress(FileNotFoundError):
        (place / VERSION_FACTS).unlink(missing_ok=True)
        (place / STATE).unlink(missing_ok=True)
        place.rmdir()
