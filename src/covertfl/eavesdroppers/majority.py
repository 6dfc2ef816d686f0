"""The paper's eavesdropper: proportional sampling."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class MajorityEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with most queries.

    It is the paper's: proportional sampling (assumption E3).  Its estimate, the last query of that
    trajectory, is equation (6) of the paper.
    """

    threat = "sees every query, knows nothing of the scheme, owns no data"

    def belief(self) -> FloatArray:
        """Return the share of queries of each trajectory (formula F3 of docs/paper_map.md)."""
        return normalise(self._seen.counts)

    def figures(self) -> dict[str, FloatArray]:
        """Return the share of queries of each trajectory."""
        return {"share of queries": self.belief()}
