"""The run settings of a `CovertStrategy`: from its arguments, with the secret seed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from covertfl.engines.flower.strategy_settings import StrategySettings
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import parse_toml, read_text
from covertfl.runs.progress import check_folder
from covertfl.runs.run_file import build_run
from covertfl.runs.settings import LARGEST_SEED, RunSettings
from covertfl.tasks.task import TrainingTask

SEED = "private/seed.json"


def find_run_settings(given: StrategySettings, num_rounds: int | None) -> RunSettings:
    """Return the settings of a run with its secret seed.

    Parameters
    ----------
    num_rounds : None for the run file's

    Raises
    ------
    InvalidInput
        if they are wrong, or the folder of the run is in use for another one
    """
    settings = _read_settings(given, num_rounds)
    check_folder(settings, given.folder, resume=given.resume, force=given.force)
    if given.seed == "run":
        return settings
    path = given.folder / SEED
    if given.resume and path.exists():
        return replace(settings, secret=_read_seed(path))
    drawn = secrets.randbelow(LARGEST_SEED + 1)
    return replace(settings, secret=drawn if given.seed is None else given.seed)


def store_seed(settings: RunSettings, folder: Path, *, is_resumed: bool) -> None:
    """Store the secret seed of a run in the private part of its folder.

    Raises
    ------
    InvalidInput
        if the run is resumed and its seed is lost
    """
    path = folder / SEED
    if settings.secret is None or path.exists():
        return
    if is_resumed:
        raise InvalidInput(f"{path} is missing: the run cannot be resumed with the same draws")
    write_atomically(path, json.dumps({"seed": settings.secret}) + "\n", mode=0o600)


def _read_settings(given: StrategySettings, num_rounds: int | None) -> RunSettings:
    if isinstance(given.run, RunSettings):
        settings = given.run
        if num_rounds not in (None, settings.rounds):
            raise InvalidInput(
                f"num_rounds must be {settings.rounds}, as in the run's settings, got {num_rounds}"
            )
    else:
        settings = _build_settings(given.run, given.task, num_rounds)
    return settings if given.task is None else settings.with_task(given.task)


def _build_settings(
    source: str | os.PathLike[str] | Mapping[str, Any],
    task: TrainingTask | None,
    num_rounds: int | None,
) -> RunSettings:
    if isinstance(source, Mapping):
        content, name, folder = dict(source), "run", Path()
    else:
        name, folder = os.fspath(source), Path(source).parent
        content = dict(parse_toml(read_text(source, "a run file"), name))
    if task is not None:
        content["task"] = "own"
        federation = _read_section(content, "federation", name)
        content["federation"] = {"clients": len(task.clients), **federation}
    if num_rounds is not None:
        content["rounds"] = num_rounds
    engine = _read_section(content, "engine", name)
    content["engine"] = {"mode": "deployment", **engine, "kind": "flower"}
    return build_run(content, name, folder=folder)


def _read_section(content: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    section = content.get(key, {})
    if not isinstance(section, Mapping):
        raise InvalidInput(f"{name}: {key} must be a section, got {section!r}")
    return section


def _read_seed(path: Path) -> int:
    try:
        return int(json.loads(read_text(path, "the seed of a run"))["seed"])
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidInput(f"{path} does not hold the seed of a run: {error}") from error
