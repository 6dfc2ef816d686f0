"""Models exported by the command, taken apart and put together again with other content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import covertfl as cf
from tests.support.commands import invoke

Tensors = dict[str, npt.NDArray[Any]]
ROWS = np.random.default_rng(5).normal(2.0, 3.0, size=(90, 4))
SHORT: dict[str, Any] = {
    "rounds": 3,
    "updates": 2,
    "clients": 3,
    "participation": [1, 2, 3],
    "batch_size": 5,
    "policy": "always-learn",
}


def export(folder: Path, output: Path) -> Path:
    """Export a run's model by the command."""
    outcome = invoke("export", folder, "-o", output)
    assert (outcome.status, outcome.err) == (0, "")
    return output


def export_vectors(folder: Path, labels: Sequence[Any], **settings: Any) -> Path:
    """Train on the rows above, whose labels are given, and export the model."""
    np.savez(folder / "rows.npz", features=ROWS, labels=np.array(labels))
    return train_vectors(folder, folder / "rows.npz", **settings)


def train_vectors(folder: Path, vectors: Path, **data: Any) -> Path:
    """Train one linear layer on the vectors of a file and export it."""
    data |= {"path": str(vectors), "public_size": 0.5, "model": "logistic"}
    cf.Run("embeddings", data=data, **SHORT).train(folder / "run")
    return export(folder / "run", folder / "model.safetensors")


def take_apart(model: Path) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors of an exported model and its metadata."""
    with safe_open(model, framework="numpy") as content:
        metadata = dict(content.metadata())
    return load_file(model), metadata


def read_facts(model: Path) -> dict[str, Any]:
    """Return what the file of a model says of it."""
    facts: dict[str, Any] = json.loads(take_apart(model)[1]["covertfl_model"])
    return facts


def change(
    model: Path,
    copy: Path,
    facts: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """Write a copy of a model with other facts and tensors."""
    before, metadata = take_apart(model)
    metadata["covertfl_model"] = json.dumps(read_facts(model) | (facts or {}))
    save_file(before | (tensors or {}), copy, metadata=metadata)
    return copy
