"""A decoy that fits the public set and contradicts the learner elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.decoys.contradiction import Contradiction
from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector


class AdversarialDecoy:
    """Decoy that memorises the public set and contradicts the learner on points near it.

    Each move is the mean of several jobs on the public set and on synthetic points whose labels
    contradict the learner (`contradiction`).

    Hides: on the public set, the only data the eavesdropper has, its loss is below the true
    model's, so an eavesdropper that chooses by loss takes the decoy; elsewhere the decoy is no
    better than guessing.  Moves are means of several jobs and about as long as true ones.

    Reveals: on fresh labelled data it is no better than guessing, so an eavesdropper with a few
    examples unknown to the learner recognises it.  If the public set has a single class, the decoy
    predicts that class everywhere, but its outputs still rank the classes: the threshold is hidden,
    the ranking is not.  Replies are not used, so a client's reply and the next move are unrelated.
    The more balanced the public set, the less room there is between fitting it and contradicting
    the learner; the fit has priority, and the decoy's accuracy rises.
    """

    needs_replies = False

    def __init__(self, contradiction: Contradiction, rule: UpdateRule) -> None:
        self._contradiction, self._rule = contradiction, rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return several jobs that fit the public set and contradict the learner."""
        return self._contradiction.plan(view, generator=generator)

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the mean step of the jobs."""
        return move_by(view.weights, self._rule.displace(view.weights, results))
