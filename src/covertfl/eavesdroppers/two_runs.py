"""An eavesdropper that compares two runs over the same clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import measure_cosine
from covertfl.kernels.weights import Vector

# Log-odds for a cosine of 1.
RUNS_ODDS = 20.0


class TwoRunsEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory most like one of another run.

    What each input does to the output is compared: how a trajectory's training has changed the
    first-order effect of every axis of the public map.  The true trajectories of two runs over the
    same clients have learned the same; decoys made anew for each run have not.
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel", "axes", "other_run")
    threat = "sees every query of two runs over the same clients, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None and means.axes is not None
        self._kernel, self._memory = means.kernel, means.memory
        shape = (-1,) if means.data is None else means.data.features.shape[1:]
        axes = np.concatenate([means.axes.T, -means.axes.T]).astype(np.float32)
        self._inputs = np.ascontiguousarray(axes.reshape(len(axes), *shape))
        self._first: list[Vector] = []
        self._others = self._follow(means.other_run or ())

    def observe(self, query: SeenQuery) -> None:
        """Keep the first query of each trajectory."""
        if query.trajectory == len(self._first):
            self._first.append(query.weights)
        super().observe(query)

    def _follow(self, queries: Sequence[SeenQuery]) -> list[FloatArray]:
        """Return what each trajectory of another run has learned."""
        first: dict[int, Vector] = {}
        last: dict[int, Vector] = {}
        for query in queries:
            first.setdefault(query.trajectory, query.weights)
            last[query.trajectory] = query.weights
        return [self._compare(first[number], last[number]) for number in sorted(first)]

    def _compare(self, first: Vector, last: Vector) -> FloatArray:
        return self.measure_effects(last) - self.measure_effects(first)

    def measure_effects(self, weights: Vector) -> FloatArray:
        """Return (d * outputs,) half differences of the outputs at plus and minus each axis."""
        outputs = self._memory.recall(
            "axes", 0, weights, lambda: self._kernel.predict(weights, self._inputs)
        ).astype(np.float64)
        half = len(outputs) // 2
        return np.ravel(outputs[:half] - outputs[half:]) / 2.0

    def measure_likeness(self) -> FloatArray:
        """Return the largest cosine of each trajectory with one of the other run."""
        pairs = zip(self._first, self._seen.latest, strict=True)
        learned = [self._compare(*pair) for pair in pairs]
        return np.array(
            [
                max([measure_cosine(one, other) for other in self._others] or [0.0])
                for one in learned
            ]
        )

    def belief(self) -> FloatArray:
        """Return beliefs by likeness to a trajectory of the other run."""
        return softmax(RUNS_ODDS * self.measure_likeness())

    def figures(self) -> dict[str, FloatArray]:
        """Return the likeness."""
        return {"likeness": self.measure_likeness()}
