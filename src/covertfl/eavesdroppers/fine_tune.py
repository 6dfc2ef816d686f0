"""By content: it goes on training, on its own data, from what it caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from covertfl.kernels.weights import Vector


class FineTuneEavesdropper:
    """Takes the trajectory that its data prefers and trains one pass further."""

    threat: ClassVar[str] = "sees every query, owns labelled data and trains on from what it caught"

    def __init__(self, means: Means) -> None:
        self._chooser = ValidationEavesdropper(means)
        self._own = OwnData(means, "fine-tune")
        self._tuned: dict[bytes, Vector] = {}

    def observe(self, query: SeenQuery) -> None:
        """Leave the choice to its data."""
        self._chooser.observe(query)

    def belief(self) -> FloatArray:
        """As `validation`."""
        return self._chooser.belief()

    def estimate(self) -> Sequence[Vector]:
        """What it caught, trained one pass further."""
        caught = {weights.tobytes(): weights for weights in self._chooser.estimate()}
        # What was tuned stays as it is for as long as it is the choice.
        self._tuned = {
            key: self._tuned[key] if key in self._tuned else self._own.train(weights)
            for key, weights in caught.items()
        }
        return tuple(self._tuned.values())
