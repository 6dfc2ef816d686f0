"""What eavesdroppers believe of the true model while a service runs.

Both are told which queries belong together, as assumption E2 of the paper has it, so that neither
does worse than one that has to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from covertfl.auditing.means import find_scheme
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.runs.federation import Federation

# Rounds that a service which is started again goes through; earlier ones are left out.
MOST_ROUNDS = 20_000
NOTHING = np.zeros(1, dtype=np.float32)


class Beliefs:
    """The eavesdropper that counts queries, and the one that knows problem and policy.

    Parameters
    ----------
    federation : of the run
    records : private records of its rounds so far
    """

    def __init__(self, federation: Federation, records: Iterable[Mapping[str, Any]]) -> None:
        means = Means(scheme=find_scheme(federation))
        self._counting, self._scheme = MajorityEavesdropper(means), LikelihoodEavesdropper(means)
        self._places: dict[int, int] = {}
        self.trajectories = 1 + federation.responder.num_decoys
        for record in records:
            self.observe(int(record["round"]), int(record["trajectory"]))

    def observe(self, round_number: int, trajectory: int) -> None:
        """Let both see which trajectory a round has queried."""
        place = self._places.setdefault(trajectory, len(self._places))
        query = SeenQuery(round_number, place, NOTHING, None)
        for eavesdropper in (self._counting, self._scheme):  # neither uses the order
            eavesdropper.observe(query)
            eavesdropper.forget_order()

    def describe(self) -> dict[str, float]:
        """Return the probability that each gives the true trajectory; 0 before it was queried."""
        place = self._places.get(0)
        if place is None:
            return {"counting": 0.0, "scheme": 0.0}
        found = {"counting": self._counting.belief(), "scheme": self._scheme.belief()}
        return {name: float(belief[place]) for name, belief in found.items()}
