"""An eavesdropper that knows that decoys are the majority."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class MinorityEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with fewest queries."""

    threat = "sees every query, knows that decoys are the majority, owns no data"

    def belief(self) -> FloatArray:
        """Return, normalised, the share of queries that did not belong to each trajectory."""
        counts = np.array(self._seen.counts, dtype=np.float64)
        return np.ones(1) if len(counts) == 1 else normalise(counts.sum() - counts)
