"""An eavesdropper that looks for repeated queries."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class RepeatEavesdropper(Listener):
    """Eavesdropper that believes in trajectories in proportion to their repeated queries.

    A learning query that failed is sent again unchanged.  A decoy that moves in every round never
    repeats itself; a gated decoy, which moves only when its query is accepted, does, and a matched
    one repeats as large a share of its queries as the truth.
    """

    threat = "sees every query, knows that failed learning queries repeat, owns no data"

    def belief(self) -> FloatArray:
        """Return the share of each trajectory in all repeats; equal beliefs without any."""
        return normalise(self._seen.repeats)

    def figures(self) -> dict[str, FloatArray]:
        """Return the share of each trajectory's queries that repeat the previous one."""
        return {"repeats": np.array(self._seen.repeats) / np.array(self._seen.counts)}
