"""The eavesdropper `change-point`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.eavesdroppers.change_point import ChangePointEavesdropper, find_fall_prob
from covertfl.eavesdroppers.eavesdropper import Means
from tests.support.seen_queries import feed, follow_schedule


def literal_fall(queried: list[int]) -> float:
    """Sum over change points, with integrals of p^hits (1 - p)^misses as factorials."""
    weights, falls = [], []
    for change in range(1, len(queried)):
        sides, weight = [], 1.0
        for side in (queried[:change], queried[change:]):
            hits, size = sum(side), len(side)
            misses = size - hits
            weight *= math.factorial(hits) * math.factorial(misses) / math.factorial(size + 1)
            mean = (hits + 1) / (size + 2)
            sides.append((mean, mean * (1.0 - mean) / (size + 3)))
        (first, var1), (second, var2) = sides
        score = (first - second) / math.sqrt(var1 + var2)
        weights.append(weight)
        falls.append(0.5 * (1.0 + math.erf(score / math.sqrt(2.0))))
    return sum(w * f for w, f in zip(weights, falls, strict=True)) / sum(weights)


@given(st.lists(st.integers(0, 1), min_size=2, max_size=20))
def test_evidence_against_a_literal_sum(queried: list[int]) -> None:
    assert find_fall_prob(np.array(queried, dtype=bool)) == pytest.approx(literal_fall(queried))


@given(st.lists(st.integers(0, 1), min_size=2, max_size=20))
def test_of_two_trajectories_one_falls_as_the_other_rises(queried: list[int]) -> None:
    hits = np.array(queried, dtype=bool)
    assert find_fall_prob(hits) + find_fall_prob(~hits) == pytest.approx(1.0)


def test_two_queries_worked_by_hand() -> None:
    """(1) then (0): means 2/3 and 1/3, variances 1/18 each, so the score is 1/3 / (1/3) = 1."""
    eavesdropper = feed(ChangePointEavesdropper(Means()), follow_schedule([0, 1]))
    prob = 0.5 * (1.0 + math.erf(1.0 / math.sqrt(2.0)))
    assert eavesdropper.belief() == pytest.approx([prob, 1.0 - prob])


def test_one_trajectory_and_an_even_schedule() -> None:
    alone = feed(ChangePointEavesdropper(Means()), follow_schedule([0]))
    assert alone.belief().tolist() == [1.0]
    assert feed(alone, follow_schedule([0, 0])).belief().tolist() == [1.0]
    # A schedule that reads the same backwards has no direction.
    even = feed(ChangePointEavesdropper(Means()), follow_schedule([0, 1, 1, 0]))
    assert even.belief() == pytest.approx([0.5, 0.5])


def test_of_three_the_one_that_ends_is_named() -> None:
    """The others take turns all along; how often each was queried is no evidence by itself."""
    order = [0, 1, 0, 2] * 5 + [1, 2] * 10
    eavesdropper = feed(ChangePointEavesdropper(Means()), follow_schedule(order))
    belief = eavesdropper.belief()
    assert belief.sum() == pytest.approx(1.0)
    assert int(np.argmax(belief)) == 0
    (held,) = eavesdropper.estimate()
    assert held[0] == 0.0
    scores = [literal_fall([int(number == k) for number in order]) for k in range(3)]
    assert belief == pytest.approx(np.array(scores) / sum(scores))
