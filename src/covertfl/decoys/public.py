"""A decoy that is trained on the public set, beside the true model (the paper's scenarios)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.arrays import IntArray
from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import Examples, LocalJob
from covertfl.kernels.weights import Vector

SEEDS = 2**63  # seeds of jobs are below


class PublicDecoy:
    """One local job on the public set a move, with a client's random number of batches.

    This is the paper's decoy: scenario 1 has no positives in the public set, scenario 2 has few.

    Hides: it is a trained model that fits what the eavesdropper can check it on, better than the
    true model does.

    Gives away: it is what the eavesdropper could have trained alone, so with a fair share of
    positives it is worth something.  One job is not the mean of many: once training has settled its
    moves are longer than true ones.  Replies are not used, so a client's reply and the
    next move have nothing in common.

    Parameters
    ----------
    public : the public set
    batch_size : of the clients
    rule : how results become an update
    """

    needs_replies = False

    def __init__(self, public: Examples, batch_size: int, rule: UpdateRule) -> None:
        self._public, self._batch_size, self._rule = public, batch_size, rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """One job, on 1 to all batches of the public set."""
        num_batches = -(-len(self._public) // self._batch_size)
        taken = int(generator.integers(1, num_batches + 1)) * self._batch_size
        rows = draw_rows(len(self._public), taken, generator=generator)
        seed = draw_seed(generator=generator)
        return [LocalJob(view.weights, self._public, rows, self._batch_size, seed, self._rule.work)]

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """The weights after the job."""
        return move_by(view.weights, self._rule.displace(view.weights, results))


def draw_rows(size: int, taken: int, *, generator: np.random.Generator) -> IntArray:
    """Some rows of a set, in random order and without repetition; at most all."""
    return generator.permutation(size)[:taken].astype(np.int64)


def draw_seed(*, generator: np.random.Generator) -> int:
    """A seed for a job."""
    return int(generator.integers(SEEDS - 1))
