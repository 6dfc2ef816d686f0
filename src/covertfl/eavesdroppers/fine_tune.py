"""By content: it goes on training, on its own data, from what it caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from covertfl.oracle import FloatArray
from covertfl.weights import Vector


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
        return tuple(self._tune(weights) for weights in self._chooser.estimate())

    def _tune(self, weights: Vector) -> Vector:
        key = weights.tobytes()
        if key not in self._tuned:
            self._tuned = {key: self._own.train(weights)}
        return self._tuned[key]
