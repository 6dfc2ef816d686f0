"""A decoy that walks at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.predictions import sample_labels
from covertfl.decoys.public import draw_job_seed, draw_rows
from covertfl.decoys.step_length import (
    count_equivalent_clients,
    count_mean_batches,
    estimate_length,
    scale_length,
)
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import Examples, LocalJob
from covertfl.kernels.weights import Vector
from covertfl.tasks.task import TrainingTask

# Mean share of its batches that a client uses, uniform from none to all and weighted by examples.
PASS_SHARE = 2.0 / 3.0


class RandomDecoy:
    """Decoy that follows a random walk: each move goes in a new direction.

    A job on the public set determines how far each coordinate would move in training; the walk
    moves each coordinate that far, with a random sign.  A second job, on labels sampled from the
    decoy's own predictions, has nothing to learn and measures noise alone.  Both together give the
    length of a plausible true move (`step_length`).

    Hides: the initial scale, the length of moves, and their distribution over layers.  The
    eavesdropper learns nothing from it: its accuracy is that of guessing.

    Reveals: everything else.  It fits no data at all, which an eavesdropper with a few labelled
    examples notices; its moves are orthogonal to one another and unrelated to the replies.
    """

    needs_replies = False

    def __init__(self, task: TrainingTask, batch_size: int, rule: UpdateRule) -> None:
        self._public, self._loss, self._rule = task.public, task.loss, rule
        self._batch_size = batch_size
        self._batches = count_mean_batches(task, batch_size)
        self._equivalent_clients = count_equivalent_clients(len(task.clients))

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return a job on the public set and one on labels that hold nothing to learn."""
        outputs = view.predict(view.weights, self._public.features)
        labels = sample_labels(outputs, self._loss, generator=generator)
        noise = Examples(self._public.features, labels)
        return [self._job(view, data, generator=generator) for data in (self._public, noise)]

    def _job(self, view: DecoyView, data: Examples, *, generator: np.random.Generator) -> LocalJob:
        taken = max(1, round(PASS_SHARE * len(data)))
        rows = draw_rows(len(data), taken, generator=generator)
        seed = draw_job_seed(generator=generator)
        return LocalJob(view.weights, data, rows, self._batch_size, seed, self._rule.work)

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after a step in a random direction."""
        learned = self._rule.displace(view.weights, results[:1])
        noise = self._rule.displace(view.weights, results[1:])
        step = np.where(generator.random(len(learned)) < 0.5, -1.0, 1.0) * np.abs(learned)
        if self._rule.algorithm == "fedavg":
            left = float(np.linalg.norm(noise)) / np.sqrt(self._equivalent_clients)
            length = estimate_length(
                float(np.linalg.norm(learned)), left, view.moves * self._batches
            )
            step = scale_length(step, length)
        return move_by(view.weights, step)
