"""By schedule: the true trajectory is the one whose share of queries falls at some point.

A learner that finishes its updates turns to obfuscating.  For every point where the schedule may
have changed, the queries before and after it are taken as independent draws with unknown chances,
and the eavesdropper asks how likely it is that a trajectory's chance is smaller after it.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class ChangePointEavesdropper(Listener):
    """Believes in the trajectory that is queried less after a change."""

    threat = "sees every query, guesses that learning comes first, owns no data"

    def belief(self) -> FloatArray:
        """In proportion to the evidence that a trajectory's share has fallen."""
        order = np.array(self._seen.order)
        if len(order) < 2:
            return normalise(np.ones(len(self._seen)))
        return normalise([weigh_fall(order == number) for number in range(len(self._seen))])


def weigh_fall(queried: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Evidence that the chance of a query falls, over all change points alike.

    Parameters
    ----------
    queried : (t,) whether each query belonged to the trajectory

    Returns
    -------
    posterior chance of a fall, averaged over change points by the marginal likelihood of both
    parts; uniform priors on both chances, and a normal approximation of their difference
    """
    from scipy.special import betaln, ndtr

    length = len(queried)
    before = np.arange(1, length)
    hits = np.cumsum(queried)[:-1]
    after, later = length - before, queried.sum() - hits
    evidence = betaln(hits + 1.0, before - hits + 1.0) + betaln(later + 1.0, after - later + 1.0)
    first, second = (hits + 1.0) / (before + 2.0), (later + 1.0) / (after + 2.0)
    spread = first * (1.0 - first) / (before + 3.0) + second * (1.0 - second) / (after + 3.0)
    falls = ndtr((first - second) / np.sqrt(spread))
    return float(np.average(falls, weights=np.exp(evidence - evidence.max())))
