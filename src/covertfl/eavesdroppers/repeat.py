"""By trajectory: a learning query that failed is sent again, unchanged.

A decoy that moves in every round never repeats itself; one that is gated as learning is, does.
"""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class RepeatEavesdropper(Listener):
    """Believes in trajectories in proportion to their repeated queries."""

    threat = "sees every query, knows that failed learning queries repeat, owns no data"

    def belief(self) -> FloatArray:
        """Share of all repeats; even where there is none."""
        return normalise(self._seen.repeats)
