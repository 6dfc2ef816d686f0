"""An eavesdropper that looks at how much of a step is in the last layer."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import (
    MoveListener,
    find_last_bias,
    find_last_layer,
    measure_length,
)

# Log-odds for a share that is smaller by a factor of e.
SHARE_ODDS = 10.0


class LastLayerEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory whose last layer has least of the steps.

    Replies of clients disagree about the inputs, and their average goes on moving the first layers;
    what a server trains towards a fixed answer goes into the last one.  (Measured: the truth has
    the smaller share in nearly all runs of the paper's policies with its decoys.)
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel",)
    threat = "sees every query, knows which weights are the last layer's, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None
        layout = means.kernel.layout
        self._last, self._bias = find_last_layer(layout), find_last_bias(layout)

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare squared lengths."""
        number, length = query.trajectory, measure_length(step)
        share = (measure_length(step[self._last]) / length) ** 2
        self._tally.note("share", number, math.log(max(share, 1e-12)))
        self._tally.note("bias", number, float(np.sum(step[self._bias])) / length)

    def belief(self) -> FloatArray:
        """Return beliefs by the last layer's mean share, in logs."""
        return softmax(-SHARE_ODDS * self._tally.average("share", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return the log share, its trend, the last bias and the length of the last layer."""
        count = len(self._seen)
        lengths = [measure_length(w[self._last].astype(np.float64)) for w in self._seen.latest]
        return {
            "share": self._tally.average("share", count),
            "share at first": self._tally.average("share", count, first=3),
            "trend of share": self._tally.trend("share", count),
            "bias": self._tally.average("bias", count),
            "length": np.log(np.maximum(lengths, 1e-12)),
        }
