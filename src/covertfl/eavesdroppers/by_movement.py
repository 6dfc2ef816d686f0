"""Eavesdroppers that use how the weights of each trajectory move."""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise, softmax
from covertfl.errors import InvalidInput

# Log-odds for a difference of 1 in smoothness.
SMOOTHNESS_ODDS = 10.0
# Log-odds for a cosine of 1; a cosine of 0.3 against one of 0 is close to certainty.
ALIGNMENT_ODDS = 20.0


class EarlyStopEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that has not moved for the longest time."""

    threat = "sees every query, guesses that a learner which is done stops, owns no data"

    def belief(self) -> FloatArray:
        """Return equal beliefs in the trajectories that stopped first."""
        moved = np.array(self._seen.moved)
        return normalise((moved == moved.min()).astype(np.float64))


class RepeatEavesdropper(Listener):
    """Eavesdropper that believes in trajectories in proportion to their repeated queries.

    A learning query that failed is sent again unchanged.  A decoy that moves in every round never
    repeats itself; a gated decoy, which moves only when its query is accepted, does.
    """

    threat = "sees every query, knows that failed learning queries repeat, owns no data"

    def belief(self) -> FloatArray:
        """Return the share of each trajectory in all repeats; equal beliefs without any."""
        return normalise(self._seen.repeats)


class StepShapeEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with the smoothest steps.

    An average over many clients moves more smoothly than what a server trains on a single data set:
    successive steps of the true trajectory point in more similar directions, and their lengths vary
    less.
    """

    threat = "sees every query, knows how federated averages move, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._steps: dict[int, FloatArray] = {}
        self._cosines: dict[int, list[float]] = {}
        self._lengths: dict[int, list[float]] = {}

    def observe(self, query: SeenQuery) -> None:
        """Compare the trajectory's latest step with the previous one."""
        number = query.trajectory
        earlier = self._seen.add(query)
        if earlier is None or not query.moved:
            return
        step = query.weights.astype(np.float64) - earlier
        if number in self._steps:
            last = self._lengths[number][-1]
            cosine = float(np.sum(step * self._steps[number])) / (query.moved * last)
            self._cosines.setdefault(number, []).append(cosine)
        self._steps[number] = step
        self._lengths.setdefault(number, []).append(query.moved)

    def belief(self) -> FloatArray:
        """Return beliefs by smoothness."""
        numbers = range(len(self._seen))
        return softmax([SMOOTHNESS_ODDS * self.smoothness(number) for number in numbers])

    def smoothness(self, number: int) -> float:
        """Return the smoothness of a trajectory's steps; 0 if there are fewer than two.

        It is the mean cosine of successive steps less half the mean absolute change of log length.
        """
        if number not in self._cosines:
            return 0.0
        changes = np.diff(np.log(self._lengths[number]))
        return float(np.mean(self._cosines[number]) - 0.5 * np.mean(np.abs(changes)))


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
