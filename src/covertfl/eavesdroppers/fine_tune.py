"""An eavesdropper that trains on from what it caught."""

from __future__ import annotations

from collections.abc import Sequence

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from covertfl.kernels.weights import Vector


class FineTuneEavesdropper(ValidationEavesdropper):
    """Eavesdropper that chooses as `ValidationEavesdropper` does and trains for one more pass."""

    threat = "sees every query, owns labelled data and trains on from what it caught"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._tuned: dict[bytes, Vector] = {}

    def estimate(self) -> Sequence[Vector]:
        """Return the chosen weights after one pass over its own data."""
        chosen = {weights.tobytes(): weights for weights in super().estimate()}
        # Weights are tuned once and kept for as long as they remain the choice.
        self._tuned = {
            key: self._tuned[key] if key in self._tuned else self._own.train(weights)
            for key, weights in chosen.items()
        }
        return tuple(self._tuned.values())
