"""Rounds recorded in the folder of a run, with weights of six numbers."""

from __future__ import annotations

import numpy as np

from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.folder import RunFolder

LAYOUT = Layout(("w", "b"), ((2, 2), (2,)))


def vector(value: float) -> Vector:
    """Return weights that are all the same."""
    return np.full(6, value, dtype=np.float32)


def record_round(folder: RunFolder, number: int) -> None:
    """Write the lines and weights of a round."""
    name = folder.write_weights(LAYOUT, vector(number))
    folder.append("public/rounds.jsonl", {"round": number, "client": None, "weights": name})
    folder.append("private/rounds.jsonl", {"round": number, "action": "learn"})
    folder.append("metrics.jsonl", {"round": number})


def seal_round(folder: RunFolder, number: int) -> None:
    """Record a round and seal it."""
    record_round(folder, number)
    folder.seal(Checkpoint(number, {"true": vector(number)}, {"note": "é", "list": [1, None]}))
