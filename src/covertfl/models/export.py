"""Exported models: the true weights of a run as a safetensors file, written and read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.format import FORMATS, require_format
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.folder import require_readable


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written to a file, after how many rounds and updates of the run."""

    output: Path
    rounds: int
    updates_done: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "output": str(self.output)}


def export_model(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> ExportedModel:
    """Write the true weights of a run to a file that only its owner may read.

    They are read from the checkpoint in the run's folder `path`, never from what clients were sent.
    """
    from safetensors.numpy import save

    require_readable(path)
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise InvalidInput(f"{os.fspath(path)} holds no run with a complete round")
    names, shapes = zip(*checkpoint.facts["parameters"], strict=True)
    tensors = Layout(names, tuple(map(tuple, shapes))).split(checkpoint.arrays["true"])
    # safetensors files have a `format` of their own in their metadata.
    metadata = {"covertfl_format": str(FORMATS["model"])}
    write_atomically(output, save(tensors, metadata=metadata), mode=0o600)
    return ExportedModel(Path(output), checkpoint.round, checkpoint.facts["updates"])


def load_weights(path: str | os.PathLike[str]) -> dict[str, Vector]:
    """Return the tensors of an exported model, by parameter name; refuse a newer format."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        with safe_open(name, framework="numpy") as content:
            version = (content.metadata() or {}).get("covertfl_format", "1")
            require_format("model", int(version) if version.isdecimal() else version, name)
            return {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InvalidInput(f"{name}: not a safetensors file: {error}") from error
