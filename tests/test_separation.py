from __future__ import annotations

import numpy as np
import pytest

from covertfl.eavesdroppers.separation import Separator
from covertfl.weights import Vector


def walk(seed: int, steps: int, size: float = 0.15) -> list[Vector]:
    """A trajectory: a start of length about 10 and short steps."""
    generator = np.random.default_rng(seed)
    points = [generator.normal(size=100).astype(np.float32)]
    for _ in range(steps - 1):
        step = generator.normal(size=100) * size
        points.append((points[-1] + step).astype(np.float32))
    return points


@pytest.mark.parametrize("number", [1, 2, 4])
def test_interleaved_trajectories_are_told_apart(number: int) -> None:
    walks = [walk(seed, 30) for seed in range(number)]
    order = np.random.default_rng(9).permutation(np.repeat(np.arange(number), 30))
    separator, places = Separator(), [iter(points) for points in walks]
    named = [separator.assign(next(places[trajectory])) for trajectory in order]
    first_seen = list(dict.fromkeys(order.tolist()))
    assert named == [first_seen.index(trajectory) for trajectory in order]


def test_a_repeated_query_stays_where_it_was() -> None:
    separator, (point, *_) = Separator(), walk(1, 1)
    assert [separator.assign(point) for _ in range(3)] == [0, 0, 0]
