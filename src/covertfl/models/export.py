"""Exported models: the true weights of a run as a safetensors file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.format import FORMATS
from covertfl.kernels.weights import Layout
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.folder import require_readable


@dataclass(frozen=True)
class ExportedModel:
    """A model that was written to a file.

    Parameters
    ----------
    output : path of the file
    rounds : rounds that the run had done
    updates_done : updates of the true weights by then
    """

    output: Path
    rounds: int
    updates_done: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "output": str(self.output),
            "rounds": self.rounds,
            "updates_done": self.updates_done,
        }


def export_model(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> ExportedModel:
    """Write the true weights of a run to a file that only its owner may read.

    They are read from the checkpoint, never from what clients were sent.

    Parameters
    ----------
    path : folder of the run
    output : path of the safetensors file
    """
    from safetensors.numpy import save

    require_readable(path)
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise InvalidInput(f"{os.fspath(path)} holds no run with a complete round")
    parameters = checkpoint.facts["parameters"]
    layout = Layout(
        tuple(name for name, _ in parameters), tuple(tuple(shape) for _, shape in parameters)
    )
    tensors = layout.split(checkpoint.arrays["true"])
    # safetensors files have a `format` of their own in their metadata.
    metadata = {"covertfl_format": str(FORMATS["model"])}
    write_atomically(output, save(tensors, metadata=metadata), mode=0o600)
    return ExportedModel(Path(output), checkpoint.round, checkpoint.facts["updates"])
