"""A decoy that walks at random, by moves as long as true ones are likely to be.

An average over clients is the sum of a part on which they agree and of their noise.  The agreed
part shrinks as training proceeds; averaging k clients leaves 1/sqrt(k) of the noise.  On the
toxicity task the length of true moves falls from 1.1 to 0.2 within eight moves and then stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.kernels.job import Examples, Float32Array, Labels, LocalJob, Loss, Vector
from covertfl.schemes.decoys.decoy import DecoyView, UpdateRule, move_by
from covertfl.schemes.decoys.public import draw_job_seed, draw_rows
from covertfl.tasks.task import TrainingTask

# Mean share of its batches that a client uses, uniform from none to all and weighted by examples.
PASS_SHARE = 2.0 / 3.0
# Factor of the agreed part for each batch that a client holds: it falls to two thirds in a move of
# 38 batches.  Measured on the toxicity task with Adam and a learning rate of 1e-3.
AGREED_DECAY = 0.989
# Clients draw their numbers of batches uniformly from none to all.  Weighted by examples, their
# mean is as noisy as that of this share of clients with equal numbers.
EQUIVALENT_SHARE = 0.75


class RandomDecoy:
    """Decoy that follows a random walk: each move goes in a new direction.

    A job on the public set determines how far each coordinate would move in training; the walk
    moves each coordinate that far, with a random sign.  A second job, on labels sampled from the
    decoy's own predictions, has nothing to learn and measures noise alone.  Both together give the
    length of a plausible true move (`estimate_length`).

    Hides: the initial scale, the length of moves, and their distribution over layers.  The
    eavesdropper learns nothing from it: its accuracy is that of guessing.

    Reveals: everything else.  It fits no data at all, which an eavesdropper with a few labelled
    examples notices; its moves are orthogonal to one another and unrelated to the replies.
    """

    needs_replies = False

    def __init__(self, task: TrainingTask, batch_size: int, rule: UpdateRule) -> None:
        self._public, self._loss, self._rule = task.public, task.loss, rule
        self._batch_size = batch_size
        # The mean number of batches that a client holds.
        self._batches = max(1, round(task.num_examples / len(task.clients) / batch_size))
        self._equivalent_clients = max(1.0, EQUIVALENT_SHARE * len(task.clients))

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
            norm = float(np.linalg.norm(step))
            step = step * (length / norm) if norm > 0.0 else step
        return move_by(view.weights, step)


def estimate_length(agreed: float, noise: float, batches: int) -> float:
    """Return the length of a plausible true move.

    Parameters
    ----------
    agreed : length of the part that clients agree on, at the first move
    noise : length of the noise that remains after averaging
    batches : number of moves so far, times the number of batches that a client holds
    """
    return float(np.hypot(noise, agreed * AGREED_DECAY**batches))


def sample_labels(outputs: Float32Array, loss: Loss, *, generator: np.random.Generator) -> Labels:
    """Return (n,) labels sampled from the distributions of (n, outputs) logits."""
    logits = outputs.astype(np.float64)
    if loss == "binary":
        prob = 0.5 * (1.0 + np.tanh(0.5 * logits[:, 0]))
        return (generator.random(len(prob)) < prob).astype(np.float32)
    # The argmax of logits plus Gumbel noise is a sample from their softmax.
    noisy = logits + generator.gumbel(size=logits.shape)
    return np.asarray(noisy.argmax(axis=1), dtype=np.int64)
