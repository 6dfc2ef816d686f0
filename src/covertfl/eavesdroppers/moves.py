"""Moves of trajectories: what eavesdroppers that compare them share."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery
from covertfl.kernels.job import Layout

# Share of the run, at its beginning and at its end, that a trend compares.
TREND_SHARE = 1.0 / 3.0


class Tally:
    """Numbers noted of trajectories, by name, in the order of the queries."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, int], list[float]] = {}

    def note(self, name: str, number: int, value: float) -> None:
        """Add a number of a trajectory."""
        self._noted.setdefault((name, number), []).append(value)

    def read(self, name: str, number: int) -> list[float]:
        """Return the numbers of a trajectory so far."""
        return self._noted.get((name, number), [])

    def average(self, name: str, count: int, *, first: int | None = None) -> FloatArray:
        """Return (count,) means of each trajectory, of its first few or all; 0 without any."""
        rows = [self.read(name, number)[:first] for number in range(count)]
        return np.array([np.mean(row) if row else 0.0 for row in rows])

    def spread(self, name: str, count: int) -> FloatArray:
        """Return (count,) standard deviations; 0 without any."""
        rows = [self.read(name, number) for number in range(count)]
        return np.array([np.std(row) if row else 0.0 for row in rows])

    def trend(self, name: str, count: int) -> FloatArray:
        """Return (count,) means of the last third less those of the first; 0 without any."""
        return np.array([_find_trend(self.read(name, number)) for number in range(count)])

    def last(self, name: str, count: int) -> FloatArray:
        """Return (count,) latest numbers; 0 without any."""
        rows = [self.read(name, number) for number in range(count)]
        return np.array([row[-1] if row else 0.0 for row in rows])


def _find_trend(row: list[float]) -> float:
    if len(row) < 2:
        return 0.0
    part = max(int(len(row) * TREND_SHARE), 1)
    return float(np.mean(row[-part:]) - np.mean(row[:part]))


class MoveListener(Listener):
    """Base class of eavesdroppers that look at moves; `note_move` is called with each."""

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._tally = Tally()

    def observe(self, query: SeenQuery) -> None:
        """Work out the trajectory's move, if it has moved."""
        earlier = self._seen.add(query)
        if earlier is not None and earlier is not query.weights:
            step = query.weights.astype(np.float64) - earlier
            if step.any():
                self.note_move(query, step)

    @abstractmethod
    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Take note of a move that ended in a query; `step` (P,) is not zero."""
        ...


def measure_length(step: FloatArray) -> float:
    """Return the Euclidean length."""
    # Not np.dot: for vectors of this length its threads cost more than they save.
    return math.sqrt(float(np.sum(step * step)))


def measure_cosine(one: FloatArray, other: FloatArray) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    size = measure_length(one) * measure_length(other)
    return float(np.sum(one * other)) / size if size > 0.0 else 0.0


def find_last_layer(layout: Layout) -> slice:
    """Return the coordinates of the last weights of two or more dimensions and all after them."""
    shaped = zip(layout.trained_names, layout.shapes, strict=False)
    names = [name for name, shape in shaped if shape[1:]]
    return slice(layout.locate(names[-1]).start if names else 0, layout.num_trained)


def find_last_bias(layout: Layout) -> slice:
    """Return the coordinates of the last parameter if it is a bias, none if it is not."""
    shape, end = layout.shapes[len(layout.trained_names) - 1], layout.num_trained
    return slice(end - (shape[0] if len(shape) == 1 else 0), end)
