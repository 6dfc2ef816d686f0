"""Result files: one JSON file per experiment, with how it was made."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.text import read_object
from covertfl.runs.settings import list_versions
from paper.experiment import Request

StoredResult = Mapping[str, Any]
RESULT_SUFFIX = ".json"
NUMBER_WORDS = {1: "one core", 2: "two cores", 4: "four cores", 8: "eight cores"}


def make_folder(folder: Path) -> None:
    """Create a folder if it does not exist; raise `InvalidInput` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}") from error


def load_results(folder: Path, names: Sequence[str]) -> list[StoredResult]:
    """Read the result files of a folder, in the order of some names."""
    found: list[StoredResult] = []
    for name in names:
        path = folder / f"{name}{RESULT_SUFFIX}"
        if path.exists():
            result = read_object(path, "a result")
            if result.get("experiment") != name:
                raise InvalidInput(f"{path} is not a result: it is not of the experiment {name}")
            found.append(result)
    return found


def format_result(result: dict[str, Any]) -> str:
    """Return the text of a result file, with one line per list entry to keep diffs readable."""
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            lines.append(f'"{key}": [\n  {entries}\n ]')
        else:
            lines.append(f'"{key}": {json.dumps(value, allow_nan=False)}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def describe_making(name: str, request: Request, seconds: float, wall: float) -> dict[str, Any]:
    """Return the date, machine, command and versions behind a result.

    Parameters
    ----------
    seconds : spent on its parts, whenever they were computed
    wall : seconds that the command took; less if parts had been computed before
    """
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": describe_machine(request.device),
        "command": format_command(name, request),
        "reading": request.reading,
        "quick": request.quick,
        "first_seed": request.first_seed,
        "seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "versions": list_versions(),
    }


def format_command(name: str, request: Request) -> str:
    """Return the command that makes a result again."""
    words = ["python", "-m", "paper", name]
    if request.reading != Request().reading:
        words += ["--preset", request.reading]
    if request.seeds is not None:
        words += ["--seeds", str(request.seeds)]
    if request.first_seed != Request().first_seed:
        words += ["--first-seed", str(request.first_seed)]
    if request.quick:
        words.append("--quick")
    if request.device != Request().device:
        words += ["--device", request.device]
    return shlex.join(words)


def describe_machine(device: str) -> str:
    """Return the kind of machine in general words."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    cores = os.cpu_count() or 1
    architecture = platform.machine().replace("_", "-")
    return f"{NUMBER_WORDS.get(cores, f'{cores} cores')}, {architecture}"
