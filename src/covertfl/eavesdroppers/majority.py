"""The paper's eavesdropper: proportional sampling (E3, equation (6)).

Its belief in a trajectory is the share of queries that belonged to it (F3), and its estimate is the
last query of the trajectory it believes in most.
"""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class MajorityEavesdropper(Listener):
    """Believes in the trajectory with most queries."""

    threat = "sees every query, knows nothing of the scheme, owns no data"

    def belief(self) -> FloatArray:
        """Share of queries of each trajectory (F3)."""
        return normalise(self._seen.counts)
