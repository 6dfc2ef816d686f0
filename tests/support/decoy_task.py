"""A small task for tests of decoys, its kernel, and replies of its clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.job import (
    Examples,
    Labels,
    LocalJob,
    LocalKernel,
    LocalOptimizer,
    Loss,
    Vector,
    Work,
)
from covertfl.schemes.decoys.decoy import Decoy, DecoyView
from covertfl.tasks.task import TrainingTask

INPUTS, BATCH_SIZE = 6, 10


def make_small_task(
    loss: Loss = "binary", *, seed: int = 0, rare_share: float = 0.1
) -> TrainingTask:
    """Return a task with classes that differ in their means, and few of the last in public."""
    generator = np.random.default_rng(seed)
    classes = 2 if loss == "binary" else 3
    means = 2.0 * generator.standard_normal((classes, INPUTS))

    def draw(shares: list[float], number: int) -> Examples:
        drawn = generator.choice(classes, size=number, p=shares)
        features = means[drawn] + generator.standard_normal((number, INPUTS))
        labels: Labels = drawn.astype(np.int64)
        if loss == "binary":
            labels = drawn.astype(np.float32)
        return Examples(features.astype(np.float32), labels)

    even = [1.0 / classes] * classes
    rare = [(1.0 - rare_share) / (classes - 1)] * (classes - 1) + [rare_share]
    return TrainingTask(
        name="small",
        make_model=make_model(1 if loss == "binary" else classes),
        loss=loss,
        train=draw(even, 200),
        clients=tuple(np.array_split(np.arange(200), 4)),
        public=draw(rare, 60),
        validation=draw(even, 200),
    )


def make_model(outputs: int) -> Callable[[], torch.nn.Module]:
    return lambda: torch.nn.Sequential(
        torch.nn.Linear(INPUTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, outputs)
    )


def make_kernel(task: TrainingTask) -> LocalKernel:
    return choose_kernel(task.make_model, task.loss, LocalOptimizer())


def make_view(
    task: TrainingTask,
    kernel: LocalKernel,
    *,
    moves: int = 0,
    work: Work = "train",
    weights: Vector | None = None,
) -> DecoyView:
    """Return a view with replies of all clients to the decoy's query."""
    weights = draw_weights(task.make_model, seed=1) if weights is None else weights
    jobs = [LocalJob(weights, task.train, rows, BATCH_SIZE, 0, work) for rows in task.clients]
    return DecoyView(
        weights=weights,
        learner=draw_weights(task.make_model, seed=2),
        replies=np.stack(kernel.run(jobs)),
        examples=np.array([len(rows) for rows in task.clients]),
        moves=moves,
        predict=kernel.predict,
    )


def move_decoy(decoy: Decoy, view: DecoyView, kernel: LocalKernel, *, seed: int = 0) -> Vector:
    """Return the weights after one move, with separate generators for planning and moving."""
    results = kernel.run(decoy.plan(view, generator=np.random.default_rng([seed, 0])))
    return decoy.move(view, results, generator=np.random.default_rng([seed, 1]))
