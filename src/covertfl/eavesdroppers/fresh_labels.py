"""Eavesdroppers with a few labelled examples that the learner does not know."""

from __future__ import annotations

from typing import ClassVar

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import softmax
from covertfl.eavesdroppers.own_data import compute_loss
from covertfl.eavesdroppers.unlabelled import FreshListener


class FreshLabelsEavesdropper(FreshListener):
    """Eavesdropper that believes in the trajectory with the lowest loss on `number` examples.

    A decoy is made to be worthless on data like the clients', and it cannot be trained on examples
    that the learner has never seen.
    """

    number: ClassVar[int] = 20
    threat = "sees every query and owns 20 labelled examples that the learner does not know"

    def measure_losses(self) -> list[float]:
        """Return the mean loss of each trajectory's latest weights on its own examples."""
        labels = self._fresh.labels[: self.number]
        return [compute_loss(outputs[: self.number], labels) for outputs in self._outputs]

    def belief(self) -> FloatArray:
        """Return the posterior, given its labels, of each trajectory's latest weights."""
        number = min(self.number, len(self._fresh))
        return softmax([-number * loss for loss in self.measure_losses()])


class FewFreshLabelsEavesdropper(FreshLabelsEavesdropper):
    """The same with 5 examples."""

    number = 5
    threat = "sees every query and owns 5 labelled examples that the learner does not know"


class ManyFreshLabelsEavesdropper(FreshLabelsEavesdropper):
    """The same with 100 examples."""

    number = 100
    threat = "sees every query and owns 100 labelled examples that the learner does not know"
