"""An eavesdropper that distrusts what the public set likes."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import softmax
from covertfl.eavesdroppers.validation import ValidationEavesdropper


class AntiValidationEavesdropper(ValidationEavesdropper):
    """Eavesdropper that believes in the trajectory with the highest loss on the public set.

    A decoy is trained on the public set, on which it then does better than the truth.
    """

    threat = "sees every query, owns the public set and knows that decoys are trained on it"

    def belief(self) -> FloatArray:
        """Return beliefs by the loss of each trajectory's latest weights."""
        return softmax(len(self._own.data) * self._tally.last("loss", len(self._seen)))
