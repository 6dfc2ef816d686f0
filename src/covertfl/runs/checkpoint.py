"""Checkpoints: the state of a run after its last complete round, or before the first.

The checksum is part of the file because a file that can be read is not always the one that was
written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.json_file import parse_json
from covertfl.files.regular import require_regular
from covertfl.kernels.weights import Vector

STATE = "state.safetensors"
CHECKPOINT = f"checkpoint/{STATE}"
WRONG_CONTENT = (AttributeError, LookupError, TypeError, ValueError, OSError)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a round: arrays of weights and memories, other facts as JSON."""

    round: int
    arrays: Mapping[str, Vector]
    facts: Mapping[str, Any]

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the line files in bytes, by name, in a checkpoint that was read."""
        return {name: int(length) for name, length in self.facts["lengths"].items()}


def write_checkpoint(folder: Path, checkpoint: Checkpoint, lengths: Mapping[str, int]) -> None:
    """Replace the checkpoint of a run's folder, whole or not at all, for its owner only."""
    from safetensors.numpy import save

    facts = {**checkpoint.facts, "round": checkpoint.round, "lengths": lengths}
    arrays = {name: np.ascontiguousarray(array) for name, array in checkpoint.arrays.items()}
    text = json.dumps({**facts, "checksum": _checksum(arrays, facts)}, allow_nan=False)
    write_atomically(folder / CHECKPOINT, save(arrays, metadata={"facts": text}), mode=0o600)


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the checkpoint of a run's folder, None before a run has started."""
    return read_state(Path(folder) / CHECKPOINT)


def read_state(file: Path) -> Checkpoint | None:
    """Return the checkpoint in a file, None if there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not file.exists():
        return None
    require_regular(file, "a checkpoint")
    try:
        with safe_open(file, framework="numpy") as content:
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            facts = parse_json(content.metadata()["facts"], "the state of the run")
        checksum, number = facts.pop("checksum"), int(facts["round"])
    except (InvalidInput, SafetensorError, ArithmeticError, *WRONG_CONTENT) as error:
        raise InvalidInput(f"{file} is not a checkpoint of covertfl: {error}") from error
    if checksum != _checksum(arrays, facts):
        raise InvalidInput(f"{file} is damaged: its content does not match its checksum")
    return Checkpoint(number, arrays, facts)


def _checksum(arrays: Mapping[str, Vector], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
