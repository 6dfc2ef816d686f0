"""Which trajectory a query belongs to.

Assumption E2 of the paper takes this as known.  Here the eavesdropper has the weights of the
queries and at most the number K of trajectories.  It links each query to an earlier one, its
predecessor, such that the queries form at most K chains and all steps are as short as possible in
total: an assignment problem.  The first query of a chain counts as a step from the first query of
the run, where trajectories with a common start come from.  Trajectories may also start apart: two
models that were initialised independently are about as far from each other as each is from zero,
and steps are short in comparison, so a start counts no more than a share of the distance from zero.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Vector

# A query farther than this from all trajectories, relative to its own norm, starts a new one.
NEW_FROM = 0.7
# Of equal lengths, a step from a copy of the first query is preferred to a start: relative to both.
SLIGHTLY = 1e-9
# Numbers in a block of weights that are held in double precision.
BLOCK = 2**23
# Square of a distance below which it is not computed from inner products, relative to the squares.
CLOSE = 1e-10


def link_queries(
    weights: Sequence[Vector], *, trajectories: int | None = None, part: slice | None = None
) -> list[tuple[int, float | None]]:
    """Link the queries of a run into chains; return each one's trajectory and distance moved.

    Trajectories are numbered in the order of their first queries.  The distance is that of all
    weights from the previous query of the trajectory, None at its first query.

    Parameters
    ----------
    weights : (P,) each, in the order of the queries
    trajectories : largest number of chains; None to count queries that are far from all earlier
    part : coordinates to link by; all if None, or if different weights are equal there

    Raises
    ------
    InvalidInput
        if the number of trajectories is not positive
    """
    if trajectories is not None and trajectories < 1:
        raise InvalidInput(f"the number of trajectories must be at least 1, got {trajectories}")
    if not weights:
        return []
    numbers = number_distinct(weights)
    distinct = [weights[numbers.index(number)] for number in range(max(numbers) + 1)]
    points = distinct if part is None else [one[part] for one in distinct]
    apart = measure_distances(points)
    if part is not None and np.count_nonzero(apart == 0.0) > len(points):
        points, apart = distinct, measure_distances(distinct)
    lengths = np.array([measure_distance(one, np.zeros_like(one)) for one in points])
    apart, far = apart[np.ix_(numbers, numbers)], NEW_FROM * lengths[numbers]
    earlier = _choose_predecessors(apart, far, trajectories or _count_trajectories(apart, far))
    return _follow_chains(weights, numbers, earlier)


def _count_trajectories(apart: FloatArray, far: FloatArray) -> int:
    """Count the queries that are far from the latest query of every trajectory before."""
    latest: list[int] = []
    for query, row in enumerate(apart):
        nearest = min(range(len(latest)), key=lambda number: row[latest[number]], default=None)
        if nearest is None or row[latest[nearest]] > far[query]:
            latest.append(query)
        else:
            latest[nearest] = query
    return len(latest)


def _choose_predecessors(apart: FloatArray, far: FloatArray, trajectories: int) -> list[int | None]:
    """Return each query's predecessor in the shortest chains, None at the start of a chain."""
    from scipy.optimize import linear_sum_assignment

    number = len(apart)
    links = np.where(np.tri(number, k=-1, dtype=np.bool_), apart, np.inf)
    starts = np.minimum((1.0 + SLIGHTLY) * apart[0], far)
    costs = np.hstack([links, np.repeat(starts[:, np.newaxis], trajectories, axis=1)])
    _, chosen = linear_sum_assignment(costs)
    return [int(column) if column < number else None for column in chosen]


def _follow_chains(
    weights: Sequence[Vector], numbers: Sequence[int], earlier: Sequence[int | None]
) -> list[tuple[int, float | None]]:
    placed: list[tuple[int, float | None]] = []
    found = 0
    for query, before in enumerate(earlier):
        if before is None:
            placed.append((found, None))
            found += 1
        else:
            is_repeat = numbers[query] == numbers[before]
            moved = 0.0 if is_repeat else measure_distance(weights[query], weights[before])
            placed.append((placed[before][0], moved))
    return placed


def number_distinct(weights: Sequence[Vector]) -> list[int]:
    """Return a number for each query, the same for equal bytes: 0, 1, ... as they first appear."""
    arrays = {id(one): one for one in weights}
    names = {key: hashlib.sha256(one.tobytes()).digest() for key, one in arrays.items()}
    seen: dict[bytes, int] = {}
    return [seen.setdefault(names[id(one)], len(seen)) for one in weights]


def measure_distances(points: Sequence[Vector]) -> FloatArray:
    """Return the (n, n) Euclidean distances of n vectors, equal ones being exactly 0 apart.

    They are computed from inner products in double precision, with the first vector as the origin;
    where too many digits cancel, from the difference.
    """
    products = np.zeros((len(points), len(points)))
    width = max(BLOCK // len(points), 1)
    for start in range(0, len(points[0]), width):
        columns = slice(start, start + width)
        block = np.array([one[columns] for one in points], dtype=np.float64) - points[0][columns]
        products += block @ block.T
    sums = np.add.outer(np.diagonal(products), np.diagonal(products))
    squares = sums - 2.0 * products
    apart = np.sqrt(np.maximum(squares, 0.0))
    for one, other in np.argwhere(np.triu(squares <= CLOSE * sums)):
        apart[one, other] = apart[other, one] = measure_distance(points[one], points[other])
    return apart


def measure_distance(one: Vector, other: Vector) -> float:
    """Return the Euclidean distance, summed in double precision."""
    difference: FloatArray = one.astype(np.float64) - other
    # Not np.dot: for vectors of this length its threads cost more than they save.
    return math.sqrt(float(np.sum(difference * difference)))
