"""Exported models: the true weights of a run as a safetensors file, written and read.

A model whose inputs pass the public map is exported with it, as the tensors `public_map.mean`,
`public_map.basis` and `public_map.scale` (`tasks.public_map`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.format import FORMATS, require_format
from covertfl.files.regular import require_regular
from covertfl.files.toml import parse_toml, read_text
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.checkpoint import WRONG_CONTENT, Checkpoint, read_checkpoint
from covertfl.runs.files import SETTINGS
from covertfl.runs.folder import MAP, require_readable
from covertfl.tasks.public_map import PublicMap

INPUTS = "public_map"
PREFIX = f"{INPUTS}."


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written to a file, after how many rounds and updates of the run.

    Parameters
    ----------
    inputs : "public_map" if inputs pass the map in the file before the model, None if they do not
    """

    output: Path
    rounds: int
    updates_done: int
    inputs: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "output": str(self.output)}


def export_model(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> ExportedModel:
    """Write the true weights of a run to a file that only its owner may read.

    They are read from the checkpoint in the run's folder `path`, never from what clients were sent.
    The public map is added if the run's inputs pass it.
    """
    from safetensors.numpy import save

    require_readable(path)
    checkpoint = read_checkpoint(path)
    if checkpoint is None or checkpoint.round == 0:
        raise InvalidInput(f"{os.fspath(path)} holds no run with a complete round")
    tensors = _split_weights(checkpoint, os.fspath(path))
    # safetensors files have a `format` of their own in their metadata.
    metadata = {"covertfl_format": str(FORMATS["model"])}
    public_map = _read_map(Path(path))
    if public_map is not None:
        tensors |= {PREFIX + name: array for name, array in public_map.arrays.items()}
        metadata |= {"covertfl_inputs": INPUTS, "covertfl_map": public_map.fingerprint}
    write_atomically(output, save(tensors, metadata=metadata), mode=0o600)
    inputs = None if public_map is None else INPUTS
    return ExportedModel(Path(output), checkpoint.round, checkpoint.facts["updates"], inputs)


def _split_weights(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    """Return the true weights of the run in the folder `name`, by parameter."""
    try:
        parameters = {str(key): tuple(shape) for key, shape in checkpoint.facts["parameters"]}
        layout = Layout(tuple(parameters), tuple(parameters.values()))
        parts = layout.split(checkpoint.arrays["true"])
    except (*WRONG_CONTENT, InvalidInput) as error:
        raise InvalidInput(f"{name}: the checkpoint does not hold a model: {error}") from error
    if not parts or type(checkpoint.facts.get("updates")) is not int:
        raise InvalidInput(f"{name}: the checkpoint does not hold a model: parameters or updates")
    return dict(parts)


def _read_map(path: Path) -> PublicMap | None:
    """Return the public map in a run's folder, None for a run without one."""
    if (path / MAP).exists():
        return PublicMap.load(path / MAP)
    settings = path / SETTINGS
    if settings.exists():
        content = parse_toml(read_text(settings, "the folder of a run"), str(settings))
        data = content.get("data")
        if isinstance(data, dict) and data.get("map") == "public":
            raise InvalidInput(
                f"{path / MAP} is missing, and the model is of no use without it: train again with "
                "--resume to write it"
            )
    return None


def load_weights(path: str | os.PathLike[str]) -> dict[str, Vector]:
    """Return the tensors of an exported model, by parameter name; refuse a newer format."""
    with _open_model(path) as content:
        names = [name for name in content.keys() if not name.startswith(PREFIX)]  # noqa: SIM118
        if not names:
            raise InvalidInput(f"{os.fspath(path)}: must hold the tensors of a model, got none")
        return {name: content.get_tensor(name) for name in names}


def load_public_map(path: str | os.PathLike[str]) -> PublicMap | None:
    """Return the map that inputs pass before an exported model, None if they pass none."""
    with _open_model(path) as content:
        facts = content.metadata() or {}
        if facts.get("covertfl_inputs") != INPUTS:
            return None
        names = [name for name in content.keys() if name.startswith(PREFIX)]  # noqa: SIM118
        arrays = {name.removeprefix(PREFIX): content.get_tensor(name) for name in names}
    return PublicMap.from_arrays(arrays, facts.get("covertfl_map", ""), os.fspath(path))


@contextlib.contextmanager
def _open_model(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open the file of an exported model; refuse other files and a newer format."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    require_regular(name, "an exported model")
    try:
        with safe_open(name, framework="numpy") as content:
            version = (content.metadata() or {}).get("covertfl_format", "1")
            require_format("model", int(version) if version.isdecimal() else version, name)
            yield content
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InvalidInput(f"{name}: not a safetensors file: {error}") from error
