"""Plans of a queue: published numbers, the frontier, limits and loads that are out of reach."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from covertfl.decision.problem import QueueProblem
from covertfl.planning.queue import QueuePlan, plan_queue
from covertfl.solvers.constrained import solve_queue
from tests.support.presets import queue_preset


@cache
def plan_sound_queue() -> QueuePlan:
    return plan_queue(queue_preset("sound/queue"))


@pytest.mark.slow
def test_printed_numbers_of_the_sound_queue() -> None:
    plan = plan_sound_queue()
    assert plan.stable and plan.always_stable is None
    assert plan.least_exposure == pytest.approx(0.629, abs=5e-4)
    assert plan.least_limit == pytest.approx(20.75, abs=5e-3)
    assert plan.advice == (
        "To keep up, at least 62.9% of the queries must be true, and 80.4% are with a learning "
        "limit of 25: an eavesdropper that counts queries finds the true model."
    )


@pytest.mark.parametrize(
    "name", ["sound/queue", "paper-text/queue", "paper-code/queue", "sound/tracking-before"]
)
def test_the_frontier_falls_and_is_convex(name: str) -> None:
    problem = queue_preset(name)
    plan = plan_sound_queue() if name == "sound/queue" else plan_queue(problem)
    limits = np.array([point.limit for point in plan.frontier])
    costs = np.array([point.privacy_cost for point in plan.frontier])
    assert len(limits) >= 10 and np.all(np.diff(limits) > 0.0)
    slopes = np.diff(costs) / np.diff(limits)
    assert np.all(slopes <= 1e-9)
    assert np.all(np.diff(slopes) >= -1e-7)
    assert slopes[0] < slopes[-1]
    for point in plan.frontier:
        assert point.learning_cost <= point.limit * (1.0 + 1e-9)
    here = next(point for point in plan.frontier if point.limit == problem.limit)
    solved = solve_queue(problem).evaluation
    assert here.privacy_cost == pytest.approx(solved.privacy_cost, rel=1e-9)
    assert here.learning_cost == pytest.approx(solved.learning_cost, rel=1e-9)
    assert here.learn_fraction == pytest.approx(solved.learn_fraction, rel=1e-9)


def test_the_frontier_of_a_stable_queue_stays_above_the_bounds() -> None:
    plan = plan_sound_queue()
    assert plan.privacy_cost_bound is not None and plan.least_exposure is not None
    for point in plan.frontier:
        assert point.privacy_cost > plan.privacy_cost_bound
        assert point.learn_fraction > plan.least_exposure


def mirrored(problem: QueueProblem, privacy_limit: float) -> QueueProblem:
    return replace(problem, objective="learning", limit=privacy_limit)


@pytest.mark.slow
def test_the_mirrored_problem_has_the_same_frontier() -> None:
    """The least learning cost under the optimal privacy cost is the limit that gave it."""
    point = plan_sound_queue().frontier[4]
    plan = plan_queue(mirrored(queue_preset("sound/queue"), point.privacy_cost))
    here = next(entry for entry in plan.frontier if entry.limit == point.privacy_cost)
    assert here.learning_cost == pytest.approx(point.learning_cost, rel=1e-6)
    assert plan.least_limit == plan.privacy_cost_bound


def overloaded() -> QueueProblem:
    return replace(queue_preset("sound/queue"), arrival_prob=0.2)


def test_a_queue_that_cannot_be_kept_up_with() -> None:
    plan = plan_queue(overloaded())
    assert not plan.stable
    assert (plan.least_exposure, plan.privacy_cost_bound, plan.least_limit) == (None,) * 3
    assert plan.frontier == ()
    assert plan.advice == (
        "The queue cannot be kept up with: 0.8 updates arrive in a round and at most 0.437 can be "
        "done."
    )


def test_a_buffer_that_loses_work_has_a_frontier_all_the_same() -> None:
    plan = plan_queue(replace(overloaded(), capacity=20, overflow_cost=5.0))
    assert not plan.stable
    assert plan.least_limit is not None and len(plan.frontier) >= 10


@pytest.mark.slow
def test_a_limit_that_cannot_be_met() -> None:
    plan = plan_queue(queue_preset("sound/queue").with_limit(20.0))
    assert plan.advice == (
        "The learning limit of 20 cannot be met: the least is 20.75; at least 62.9% of the queries "
        "must be true."
    )
    assert all(point.limit > 20.75 for point in plan.frontier)
