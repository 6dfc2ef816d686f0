"""Bring your own: a torch module and the clients' arrays, wrapped as a task and trained covertly.

Run it:  python examples/own_task.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

from covertfl.kernels.job import Examples
from covertfl.runs.run_file import build_run
from covertfl.runs.summary import RunSummary
from covertfl.tasks.task import TrainingTask
from covertfl.training import train


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))


def make_examples(rows: int, generator: np.random.Generator) -> Examples:
    """Stands for your own data: points on either side of a plane."""
    features = generator.normal(size=(rows, 30)).astype(np.float32)
    labels = (features[:, :3].sum(axis=1) > 0.0).astype(np.float32)
    return Examples(features, labels)


def make_own_task(seed: int = 0) -> TrainingTask:
    generator = np.random.default_rng(seed)
    held = [make_examples(rows, generator) for rows in (400, 250, 600, 120)]  # one for each client
    ends = np.cumsum([len(client) for client in held])
    return TrainingTask(
        name="planes",
        make_model=make_model,
        loss="binary",  # one logit; or "multiclass", a logit for each class and integer labels
        train=Examples(
            np.concatenate([client.features for client in held]),
            np.concatenate([client.labels for client in held]),
        ),
        clients=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        public=make_examples(200, generator),  # what the eavesdropper has, for the decoy
        validation=make_examples(1000, generator),
    )


def train_own_task(folder: Path) -> RunSummary:
    content = {
        "task": "own",
        "federation": {
            "clients": 4,
            "participation": [1, 2, 4],
            "optimizer": {"name": "adam", "lr": 0.01},
        },
        "policy": {"kind": "minority"},
    }
    settings = build_run(content, "own_task.py", folder=Path()).with_task(make_own_task())
    return train(settings, folder)[0]


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/own-task")
    summary = train_own_task(out)
    print(
        f"learner accuracy {summary.learner_accuracy:.3f}, "
        f"decoy {summary.decoy_accuracy[0]:.3f}, exposure {summary.exposure:.0%}"
    )
