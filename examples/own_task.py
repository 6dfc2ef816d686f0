"""Train your own model covertly: a torch module and the clients' arrays, wrapped as a task.

Usage: python examples/own_task.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

import covertfl as cf
from covertfl.kernels.job import Examples


def make_model() -> nn.Module:
    """Return your model."""
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))


def make_examples(rows: int, generator: np.random.Generator) -> Examples:
    """Return synthetic data in place of your own: points on either side of a plane."""
    features = generator.normal(size=(rows, 30)).astype(np.float32)
    labels = (features[:, :3].sum(axis=1) > 0.0).astype(np.float32)
    return Examples(features, labels)


def make_own_task(seed: int = 0) -> cf.TrainingTask:
    """Return the task: model, clients' data, public set and validation set."""
    generator = np.random.default_rng(seed)
    held = [make_examples(rows, generator) for rows in (400, 250, 600, 120)]  # one per client
    ends = np.cumsum([len(client) for client in held])
    return cf.TrainingTask(
        name="planes",
        make_model=make_model,
        loss="binary",  # one logit; or "multiclass", one logit per class and integer labels
        train=Examples(
            np.concatenate([client.features for client in held]),
            np.concatenate([client.labels for client in held]),
        ),
        clients=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        public=make_examples(200, generator),  # held by the eavesdropper; decoys train on it
        validation=make_examples(1000, generator),
    )


def train_own_task(folder: Path) -> cf.TrainingResult:
    """Train the task into a folder; a run that is there is resumed, and kept if it is finished."""
    run = cf.Run(
        task=make_own_task(),
        participation=[1, 2, 4],
        optimizer={"name": "adam", "lr": 0.01},
        policy="minority",
    )
    return run.train(folder, resume=True)


if __name__ == "__main__":
    result = train_own_task(Path(sys.argv[1] if len(sys.argv) > 1 else "out/own-task"))
    summary = result.runs[0]
    print(
        f"learner accuracy {summary.learner_accuracy:.3f}, "
        f"decoy {summary.decoy_accuracy[0]:.3f}, exposure {summary.exposure:.0%}, "
        f"{summary.updates_done} updates done, {summary.updates_missing} missing"
    )
