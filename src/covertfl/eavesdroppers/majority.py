"""The paper's eavesdropper: proportional sampling (E3, equation (6)).

Its belief in a trajectory is the share of queries that belonged to it, and its estimate is the last
query of the trajectory it believes in most.
"""

from __future__ import annotations

from covertfl.eavesdroppers.separation import Separator
from covertfl.weights import Vector

THREAT = "sees every query, knows nothing of the scheme, owns no data"


class MajorityEavesdropper:
    """Fed the weights of public records one by one."""

    def __init__(self) -> None:
        self._separator = Separator()
        self._counts: list[int] = []
        self._latest: list[Vector] = []

    def observe(self, weights: Vector) -> int:
        """See a query; gives the number of the trajectory it is taken to belong to."""
        trajectory = self._separator.assign(weights)
        if trajectory == len(self._counts):
            self._counts.append(0)
            self._latest.append(weights)
        self._counts[trajectory] += 1
        self._latest[trajectory] = weights
        return trajectory

    def belief(self) -> tuple[float, ...]:
        """Share of queries of each trajectory (F3)."""
        total = sum(self._counts)
        return tuple(count / total for count in self._counts)

    def estimate(self) -> tuple[tuple[int, Vector], ...]:
        """The trajectories believed in most, with their last queries; several where they tie."""
        most = max(self._counts)
        return tuple(
            (trajectory, self._latest[trajectory])
            for trajectory, count in enumerate(self._counts)
            if count == most
        )
