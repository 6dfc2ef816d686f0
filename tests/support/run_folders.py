"""Rounds recorded in the folder of a run, with weights of six numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from covertfl.kernels.job import Layout, Vector
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.files import RunSummary
from covertfl.runs.folder import RunFolder

SETTINGS_TEXT = 'seed = 1\n[versions]\ncovertfl = "1"\n'
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


def make_summary(**changes: Any) -> RunSummary:
    """Return the summary of a run with clients, with some fields changed."""
    content: dict[str, Any] = {
        "learner_accuracy": 0.75,
        "decoy_accuracy": [0.5],
        "updates_done": 2,
        "rounds": 4,
        "learning_queries": 3,
        "exposure": 0.75,
        "completed": True,
        "updates_missing": 0,
        "rejected_replies": 1,
        "rejected_by_reason": {"not finite": 1},
        "average_privacy_cost": 0.5,
        "mean_wait": None,
        "little_wait": None,
        "success_measured": [0.25, 1.0],
        "success_printed": [0.5, 0.9],
        "seconds": 1.5,
    }
    return RunSummary.from_dict(content | changes)
