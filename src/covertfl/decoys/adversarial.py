"""A decoy that fits the public set and contradicts the learner everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.decoys.contradiction import Contradiction
from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector


class AdversarialDecoy:
    """Learns the public set by heart and denies the learner's opinion on points near it.

    Each move is the mean of several jobs on the public set and on synthetic points with labels
    that contradict (`contradiction`).

    Hides: on the public set, the only data the eavesdropper has, its loss is below the true
    model's, so whoever chooses by that takes the decoy; away from it the decoy guesses.  Moves are
    means of several jobs and about as long as true ones.

    Gives away: on fresh labelled data it is no better than guessing, so an eavesdropper that keeps
    a few examples secret from the learner sees through it.  Where the public set has one
    class only it says that class to everything, but the order of its outputs still ranks the
    classes: there the threshold is hidden, not the ranking.  Replies are not used, so a client's
    reply and the next move have nothing in common.  The more evenly the
    public set holds all classes, the less room there is between fitting it and contradicting the
    learner: then the fit comes first, and the accuracy rises.

    Parameters
    ----------
    contradiction : what its jobs are made from
    rule : how results become an update
    """

    needs_replies = False

    def __init__(self, contradiction: Contradiction, rule: UpdateRule) -> None:
        self._contradiction, self._rule = contradiction, rule

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Several jobs that fit and contradict."""
        return self._contradiction.plan(
            view.weights, view.learner, view.predict, view.moves, generator=generator
        )

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """The weights after the mean of the jobs."""
        return move_by(view.weights, self._rule.displace(view.weights, results))
