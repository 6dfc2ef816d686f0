"""The settings, the secret seed and the folder of a `CovertStrategy`'s run, new or resumed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.strategy_settings import StrategySettings
from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular, write_atomically
from covertfl.files.text import parse_toml, read_text
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.files import read_rounds
from covertfl.runs.folder import RunFolder
from covertfl.runs.settings import RunSettings, build_run, format_run, list_versions
from covertfl.runs.state import Federation, RunState, start_run, unpack_state
from covertfl.runs.train import check_folder
from covertfl.seeding import LARGEST_SEED

SEED = "private/seed.json"
FIRST = "private/first_arrays.safetensors"


def find_run_settings(given: StrategySettings, num_rounds: int | None) -> RunSettings:
    """Return the settings of a run with its secret seed.

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


def _read_settings(given: StrategySettings, num_rounds: int | None) -> RunSettings:
    source: Any = getattr(given.run, "settings", given.run)
    if isinstance(source, RunSettings):
        settings = source
        if num_rounds not in (None, settings.rounds):
            raise InvalidInput(
                f"num_rounds must be {settings.rounds}, as in the run's settings, got {num_rounds}"
            )
    else:
        settings = _build_settings(given, source, num_rounds)
    return settings if given.task is None else settings.with_task(given.task)


def _build_settings(
    given: StrategySettings,
    source: str | os.PathLike[str] | Mapping[str, Any],
    num_rounds: int | None,
) -> RunSettings:
    if isinstance(source, Mapping):
        content, name, folder = dict(source), "run", Path()
    else:
        name, folder = os.fspath(source), Path(source).parent
        content = dict(parse_toml(read_text(source, "a run file"), name))
    if given.task is not None:
        content["task"] = "own"
        federation = _read_section(content, "federation", name)
        content["federation"] = {"clients": len(given.task.clients), **federation}
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
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"{path} does not hold the seed of a run: {error}") from error


def open_folder(
    given: StrategySettings, settings: RunSettings, folder: RunFolder
) -> Checkpoint | None:
    """Create the folder of a run or resume it, and store the secret seed in its private part.

    Raises
    ------
    InvalidInput
        if the folder cannot be used, or the run is resumed and its seed is lost
    """
    text, checkpoint = format_run(settings, list_versions()), None
    if given.resume and (folder.path / "checkpoint").exists():
        checkpoint = folder.resume(text)
    else:
        folder.create(text, force=given.force)
    path = folder.path / SEED
    if settings.secret is not None and not path.exists():
        if checkpoint is not None:
            raise InvalidInput(f"{path} is missing: the run cannot be resumed with the same draws")
        write_atomically(path, json.dumps({"seed": settings.secret}) + "\n", mode=0o600)
    return checkpoint


def seal_arrays(
    folder: Path, arrays: ArrayRecord | None, checkpoint: Checkpoint | None
) -> ArrayRecord | None:
    """Return the arrays that a run began with, stored before its first query is sent.

    A run that is resumed uses them whatever it is given: a server app may draw others each time.
    """
    path = folder / FIRST
    if arrays is not None and checkpoint is None and not path.exists():
        write_atomically(path, _pack_arrays(arrays), mode=0o600)
    return _read_arrays(path) if path.exists() else arrays


def _pack_arrays(arrays: ArrayRecord) -> bytes:
    from safetensors.numpy import save

    values = {name: np.array(array.numpy(), order="C") for name, array in arrays.items()}
    return save(values, metadata={"names": json.dumps(list(values))})


def _read_arrays(path: Path) -> ArrayRecord:
    from safetensors import SafetensorError, safe_open

    require_regular(path, "the first arrays of a run")
    try:
        with safe_open(path, framework="numpy") as content:
            names = json.loads(content.metadata()["names"])
            return ArrayRecord({name: Array(content.get_tensor(name)) for name in names})
    except (SafetensorError, LookupError, TypeError, ValueError, OSError) as error:
        raise InvalidInput(f"{path} does not hold the first arrays of a run: {error}") from error


def find_state(
    given: StrategySettings,
    federation: Federation,
    form: ArrayForm,
    initial_arrays: ArrayRecord | None,
    checkpoint: Checkpoint | None,
) -> RunState:
    """Return the state in which a run starts or is resumed."""
    settings = federation.settings
    if checkpoint is not None:
        states, trajectories = federation.problem.oracle.num_states, settings.num_trajectories
        records = read_rounds(given.folder, states=states, trajectories=trajectories)
        return unpack_state(checkpoint, records, federation)
    if initial_arrays is None:
        return start_run(federation)
    is_fresh = given.decoy_start == "fresh"
    return start_run(federation, form.flatten(initial_arrays), is_fresh=is_fresh)
