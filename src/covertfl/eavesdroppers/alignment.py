"""By trajectory: a client that takes part compares its own reply with the next move.

What a client sends back pulls the true trajectory its way; a decoy that the server trains alone is
not moved by it.
"""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, weigh
from covertfl.errors import InvalidInput

# How much a cosine of 1 is worth, as a log-odds; one of 0.3 against none is near certainty.
SHARPNESS = 20.0


class AlignmentEavesdropper(Listener):
    """Believes in the trajectory that moves with its own replies."""

    threat = "is a client: sees every query and knows its own replies"

    def __init__(self, means: Means) -> None:
        if means.reply is None or means.kernel is None:
            raise InvalidInput("the alignment eavesdropper needs to be a client, got no replies")
        self._reply, self._kernel = means.reply, means.kernel
        super().__init__(means)
        self._pulls: dict[int, FloatArray] = {}
        self._cosines: dict[int, list[float]] = {}

    def observe(self, query: SeenQuery) -> None:
        """Compare the move with the reply to the last query, then reply to this one."""
        number = query.trajectory
        earlier = self._seen.latest[number] if number < len(self._seen) else None
        super().observe(query)
        if earlier is not None and query.moved and number in self._pulls:
            move, pull = query.weights.astype(np.float64) - earlier, self._pulls[number]
            size = math.sqrt(float(np.sum(pull * pull)))
            if size > 0.0:
                cosine = float(np.sum(move * pull)) / (query.moved * size)
                self._cosines.setdefault(number, []).append(cosine)
        job = self._reply(query.round, query.weights)
        (replied,) = self._kernel.run([job])
        pull = replied.astype(np.float64)
        # A gradient pulls the other way; weights pull towards themselves.
        self._pulls[number] = -pull if job.work == "gradient" else pull - query.weights

    def alignment(self, number: int) -> float:
        """Mean cosine of a trajectory's moves with its own replies; 0 before there is one."""
        cosines = self._cosines.get(number, [])
        return float(np.mean(cosines)) if cosines else 0.0

    def belief(self) -> FloatArray:
        """By alignment."""
        return weigh([SHARPNESS * self.alignment(number) for number in range(len(self._seen))])
