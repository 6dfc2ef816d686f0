"""An eavesdropper that compares moves with its own replies."""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax
from covertfl.errors import InvalidInput

# Log-odds for a cosine of 1; a cosine of 0.3 against one of 0 is close to certainty.
ALIGNMENT_ODDS = 20.0


class AlignmentEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that moves with its own replies.

    A client's reply pulls the true trajectory in its direction; a decoy that the server trains by
    itself does not respond to it.
    """

    threat = "is a client: sees every query and knows its own replies"

    def __init__(self, means: Means) -> None:
        if means.reply is None or means.kernel is None:
            raise InvalidInput("the alignment eavesdropper needs to be a client, got no replies")
        self._reply, self._kernel = means.reply, means.kernel
        super().__init__(means)
        self._pulls: dict[int, FloatArray] = {}
        self._cosines: dict[int, list[float]] = {}

    def observe(self, query: SeenQuery) -> None:
        """Compare the move with the reply to the previous query, then reply to this one."""
        number = query.trajectory
        earlier = self._seen.add(query)
        if earlier is not None and query.moved and number in self._pulls:
            move, pull = query.weights.astype(np.float64) - earlier, self._pulls[number]
            size = math.sqrt(float(np.sum(pull * pull)))
            if size > 0.0:
                cosine = float(np.sum(move * pull)) / (query.moved * size)
                self._cosines.setdefault(number, []).append(cosine)
        job = self._reply(query.round, query.weights)
        (replied,) = self._kernel.run([job])
        pull = replied.astype(np.float64)
        # The model moves towards replied weights, but against a replied gradient.
        self._pulls[number] = -pull if job.work == "gradient" else pull - query.weights

    def alignment(self, number: int) -> float:
        """Return the mean cosine of a trajectory's moves with its own replies; 0 without any."""
        return float(np.mean(self._cosines.get(number, 0.0)))

    def belief(self) -> FloatArray:
        """Return beliefs by alignment."""
        numbers = range(len(self._seen))
        return softmax([ALIGNMENT_ODDS * self.alignment(number) for number in numbers])
