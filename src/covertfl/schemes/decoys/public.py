"""The paper's decoy: a second model, trained on the public set (equation (5))."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.arrays import IntArray
from covertfl.kernels.job import Examples, LocalJob, Vector
from covertfl.schemes.decoys.decoy import DecoyView, UpdateRule, move_by

SEEDS = 2**63  # upper limit of the seeds of jobs


class PublicDecoy:
    """Decoy that trains one local job on the public set in each move.

    The job takes a random number of batches, as a client's does.  This is the decoy update,
    equation (5) of the paper; in scenario 1 the public set has no positives, in scenario 2 few.

    Hides: it is a trained model that fits the eavesdropper's own data better than the true model
    does.

    Reveals: it is what the eavesdropper could have trained by itself, so with a fair share of
    positives it is of some use.  One job is not the mean of many: late in training its moves are
    longer than true ones.  Replies are not used, so a client's reply and the next move are
    unrelated.
    """

    needs_replies = False

    def __init__(self, public: Examples, batch_size: int, rule: UpdateRule) -> None:
        self._public, self._batch_size, self._rule = public, batch_size, rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return one job on a random number of batches of the public set, at least 1."""
        num_batches = -(-len(self._public) // self._batch_size)
        taken = int(generator.integers(1, num_batches + 1)) * self._batch_size
        rows = draw_rows(len(self._public), taken, generator=generator)
        seed = draw_job_seed(generator=generator)
        return [LocalJob(view.weights, self._public, rows, self._batch_size, seed, self._rule.work)]

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the job."""
        return move_by(view.weights, self._rule.displace(view.weights, results))


def draw_rows(size: int, taken: int, *, generator: np.random.Generator) -> IntArray:
    """Return `taken` rows of a set, or all if it has fewer, in random order without repetition."""
    return generator.permutation(size)[:taken].astype(np.int64)


def draw_job_seed(*, generator: np.random.Generator) -> int:
    """Return a seed for a job."""
    return int(generator.integers(SEEDS - 1))
