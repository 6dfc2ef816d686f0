"""A decoy that moves against the replies to its queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.kernels.job import LocalJob, Vector
from covertfl.schemes.decoys.decoy import DecoyView, UpdateRule, move_by


class MirroredDecoy:
    """Decoy that takes the opposite of the step that the replies to its query ask for.

    With FedAvg the new weights are w - (mean reply - w), with FedSGD w plus the step along the
    gradient; the mean is weighted by examples.  It is the mirrored gradient of the paper's
    footnote on decoys, in place of equation (5).

    Hides: the length and shape of a single move are those of a true one, reversed.  It needs no
    data at the server.

    Reveals: its loss rises from move to move on any labelled data, and in the end it misclassifies
    most examples, so that swapping two classes yields a usable model.  A client that compares its
    reply with the next move sees a negative cosine.
    """

    needs_replies = True

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return no jobs: the replies are all it needs."""
        return []

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after a step against the replies."""
        displacement = self._rule.displace(view.weights, view.replies, view.examples)
        return move_by(view.weights, -displacement)
