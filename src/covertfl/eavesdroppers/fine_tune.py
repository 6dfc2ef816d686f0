"""By content: take the best trajectory and train it further on one's own labelled data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from covertfl.kernels.weights import Vector


class FineTuneEavesdropper:
    """Eavesdropper that chooses as `validation` does and trains for one more pass."""

    threat: ClassVar[str] = "sees every query, owns labelled data and trains on from what it caught"

    def __init__(self, means: Means) -> None:
        self._chooser = ValidationEavesdropper(means)
        self._own = OwnData(means, "fine-tune")
        self._tuned: dict[bytes, Vector] = {}

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query."""
        self._chooser.observe(query)

    def belief(self) -> FloatArray:
        """Return the beliefs of `validation`."""
        return self._chooser.belief()

    def estimate(self) -> Sequence[Vector]:
        """Return the chosen weights after one pass over its own data."""
        chosen = {weights.tobytes(): weights for weights in self._chooser.estimate()}
        # Weights are tuned once and kept for as long as they remain the choice.
        self._tuned = {
            key: self._tuned[key] if key in self._tuned else self._own.train(weights)
            for key, weights in chosen.items()
        }
        return tuple(self._tuned.values())
