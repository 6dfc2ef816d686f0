"""Plans of a queue: published numbers, the frontier, limits and loads that are out of reach."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.planning.queue import QueuePlan
from tests.support.presets import queue_preset


def load(name: str = "sound/queue", **changes: Any) -> cf.QueueProblem:
    return replace(queue_preset(name), **changes)


@cache
def plan(name: str = "sound/queue") -> QueuePlan:
    return plan_queue(load(name))


def plan_queue(problem: cf.QueueProblem) -> QueuePlan:
    found = cf.plan(problem).details
    assert isinstance(found, QueuePlan)
    return found


@pytest.mark.slow
def test_printed_numbers_of_the_sound_queue() -> None:
    found = plan()
    assert found.stable and found.always_stable is None
    assert found.least_exposure == pytest.approx(0.629, abs=5e-4)
    assert found.least_limit == pytest.approx(20.75, abs=5e-3)
    assert found.advice == (
        "To keep up, at least 62.9% of the queries must be true, and 80.4% are with a learning "
        "limit of 25: an eavesdropper that counts queries finds the true model."
    )


@pytest.mark.parametrize(
    "name", ["sound/queue", "paper-text/queue", "paper-code/queue", "sound/tracking-before"]
)
def test_the_frontier_falls_and_is_convex(name: str) -> None:
    problem = load(name)
    found = plan(name)
    limits = np.array([point.limit for point in found.frontier])
    costs = np.array([point.privacy_cost for point in found.frontier])
    assert len(limits) >= 10 and np.all(np.diff(limits) > 0.0)
    slopes = np.diff(costs) / np.diff(limits)
    assert np.all(slopes <= 1e-9)
    assert np.all(np.diff(slopes) >= -1e-7)
    assert slopes[0] < slopes[-1]
    for point in found.frontier:
        assert point.learning_cost <= point.limit * (1.0 + 1e-9)
    here = next(point for point in found.frontier if point.limit == problem.limit)
    solved = cf.solve(problem)
    assert here.privacy_cost == pytest.approx(solved.privacy_cost, rel=1e-9)
    assert here.learning_cost == pytest.approx(solved.learning_cost, rel=1e-9)
    assert here.learn_fraction == pytest.approx(solved.learn_fraction, rel=1e-9)


def test_the_frontier_of_a_stable_queue_stays_above_the_bounds() -> None:
    found = plan()
    assert found.privacy_cost_bound is not None and found.least_exposure is not None
    for point in found.frontier:
        assert point.privacy_cost > found.privacy_cost_bound
        assert point.learn_fraction > found.least_exposure


@pytest.mark.slow
def test_the_mirrored_problem_has_the_same_frontier() -> None:
    """The least learning cost under the optimal privacy cost is the limit that gave it."""
    point = plan().frontier[4]
    found = plan_queue(load(objective="learning", limit=point.privacy_cost))
    here = next(entry for entry in found.frontier if entry.limit == point.privacy_cost)
    assert here.learning_cost == pytest.approx(point.learning_cost, rel=1e-6)
    assert found.least_limit == found.privacy_cost_bound


def test_a_queue_that_cannot_be_kept_up_with() -> None:
    found = plan_queue(load(arrival_prob=0.2))
    assert not found.stable
    assert (found.least_exposure, found.privacy_cost_bound, found.least_limit) == (None,) * 3
    assert found.frontier == ()
    assert found.advice == (
        "The queue cannot be kept up with: 0.8 updates arrive in a round and at most 0.437 can be "
        "done."
    )


def test_a_buffer_that_loses_work_has_a_frontier_all_the_same() -> None:
    found = plan_queue(load(arrival_prob=0.2, capacity=20, overflow_cost=5.0))
    assert not found.stable
    assert found.least_limit is not None and len(found.frontier) >= 10


@pytest.mark.slow
def test_a_limit_that_cannot_be_met() -> None:
    found = plan_queue(load(limit=20.0))
    assert found.advice == (
        "The learning limit of 20 cannot be met: the least is 20.75; at least 62.9% of the queries "
        "must be true."
    )
    assert all(point.limit > 20.75 for point in found.frontier)
