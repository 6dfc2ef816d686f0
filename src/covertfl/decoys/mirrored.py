"""A decoy that moves against what training says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector


class MirroredDecoy:
    """Takes the update that the replies to its query ask for, and makes the opposite one.

    With FedAvg the new weights are w - (mean reply - w), with FedSGD w plus the step along the
    gradient; the mean is weighted by examples.

    Hides: length and shape of a single move are those of an honest one, because it is one, turned
    around.  It needs no data at the server.

    Gives away: its loss rises from move to move, on any labelled data, and it ends up naming most
    examples wrongly, so that exchanging the answers of two classes gives a usable model.  A client
    that compares its reply with the next move sees a cosine below zero.
    """

    needs_replies = True

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """No jobs: the replies are all it needs."""
        return []

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """The weights, moved against the replies."""
        return move_by(
            view.weights, -self._rule.displace(view.weights, view.replies, view.examples)
        )
