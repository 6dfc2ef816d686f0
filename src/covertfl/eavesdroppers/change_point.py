"""An eavesdropper that looks for the round at which learning ends."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise


class ChangePointEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that is queried less after a change.

    A learner that completes its updates turns to obfuscating.  For every possible change point, the
    queries before and after it are treated as independent draws with unknown probabilities, and the
    eavesdropper computes how likely a trajectory's probability is to be smaller afterwards.
    """

    threat = "sees every query, guesses that learning comes first, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._order: list[int] = []

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query, and of its place in the order."""
        super().observe(query)
        self._order.append(query.trajectory)

    def belief(self) -> FloatArray:
        """Return beliefs in proportion to the evidence that a trajectory's share has fallen."""
        order = np.array(self._order)
        if len(order) < 2:
            return normalise(np.ones(len(self._seen)))
        return normalise([find_fall_prob(order == number) for number in range(len(self._seen))])

    def figures(self) -> dict[str, FloatArray]:
        """Return the belief, which is the evidence of a fall."""
        return {"fall": self.belief()}


def find_fall_prob(queried: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return the posterior probability that a trajectory is queried less after a change.

    Each change point has the same prior.  Both query probabilities have uniform priors, and their
    difference is approximated by a normal distribution.  Change points are averaged by the marginal
    likelihood of both parts.

    Parameters
    ----------
    queried : (t,) whether each query belonged to the trajectory
    """
    from scipy.special import betaln, ndtr

    length = len(queried)
    before = np.arange(1, length)
    hits = np.cumsum(queried)[:-1]
    after, later = length - before, queried.sum() - hits
    evidence = betaln(hits + 1.0, before - hits + 1.0) + betaln(later + 1.0, after - later + 1.0)
    first, second = (hits + 1.0) / (before + 2.0), (later + 1.0) / (after + 2.0)
    variance = first * (1.0 - first) / (before + 3.0) + second * (1.0 - second) / (after + 3.0)
    falls = ndtr((first - second) / np.sqrt(variance))
    return float(np.average(falls, weights=np.exp(evidence - evidence.max())))
