"""An eavesdropper that mixes the trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.kernels.weights import Vector

# Shares of one trajectory that are tried in a mixture with the mean of the others.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class EnsembleEavesdropper(Listener):
    """Eavesdropper that interpolates between the latest weights of all trajectories."""

    tier = "B"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "data")
    threat = "sees every query, owns labelled data and mixes trajectories"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "ensemble")
        super().__init__(means)
        self._best: tuple[FloatArray, Vector] | None = None

    def observe(self, query: SeenQuery) -> None:
        """Forget the mixtures if a trajectory has moved."""
        super().observe(query)
        if query.moved != 0.0:
            self._best = None

    def _find_best(self) -> tuple[FloatArray, Vector]:
        """Return shares and weights of the mixture with the lowest loss on its own data."""
        if self._best is None:
            mixtures = [self._mix(shares) for shares in self._list_shares()]
            _, shares, weights = min(mixtures, key=lambda mixture: mixture[0])
            self._best = shares, weights
        return self._best

    def _list_shares(self) -> list[FloatArray]:
        number = len(self._seen)
        if number == 1:
            return [np.ones(1)]
        rows = []
        # With two trajectories, the share of the first determines that of the second.
        for first in range(number if number > 2 else 1):
            for share in SHARES:
                row = np.full(number, (1.0 - share) / (number - 1))
                row[first] = share
                rows.append(row)
        return rows

    def _mix(self, shares: FloatArray) -> tuple[float, FloatArray, Vector]:
        mixed = (shares[:, np.newaxis] * np.stack(self._seen.latest)).sum(axis=0)
        weights = mixed.astype(np.float32)
        return self._own.measure_loss(weights), shares, weights

    def belief(self) -> FloatArray:
        """Return the shares of the trajectories in the best mixture."""
        return normalise(self._find_best()[0])

    def estimate(self) -> Sequence[Vector]:
        """Return the mixture with the lowest loss on its own data."""
        return (self._find_best()[1],)
