"""An eavesdropper that looks at how far its own replies move the model."""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import find_last_bias, find_last_layer, measure_length
from covertfl.eavesdroppers.own_replies import ReplyListener

# Log-odds for replies that are shorter by a factor of e.
LENGTH_ODDS = 20.0


class ReplyLengthEavesdropper(ReplyListener):
    """Eavesdropper that believes in the trajectory that its own replies change least.

    Clients agree with what they have trained: gradients are small there and differ in sign from
    batch to batch, so that a pass over its data ends near where it began.
    """

    threat = "is a client: compares the lengths of its own replies to each trajectory"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        layout = self._kernel.layout
        self._last, self._bias = find_last_layer(layout), find_last_bias(layout)

    def note_reply(self, query: SeenQuery, pull: FloatArray) -> None:
        """Measure a reply."""
        number, length = query.trajectory, measure_length(pull)
        if length > 0.0:
            self._tally.note("length", number, math.log(length))
            self._tally.note("last layer", number, measure_length(pull[self._last]) / length)
            self._tally.note("bias", number, float(np.sum(pull[self._bias])) / length)

    def belief(self) -> FloatArray:
        """Return beliefs by the mean length of replies."""
        return softmax(-LENGTH_ODDS * self._tally.average("length", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return means and trends of log length, last layer's share and change of the bias."""
        count, found = len(self._seen), {}
        for name in ("length", "last layer", "bias"):
            found[name] = self._tally.average(name, count)
            found[f"trend of {name}"] = self._tally.trend(name, count)
        return found
