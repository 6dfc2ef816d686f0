"""Automatic capacities: found directly where they can be, and refused after bounded work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import NoSolution, SolverFailed, SplitChain, Unstable
from covertfl.evaluation.bounds import privacy_cost_bound
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers import capacity, constrained
from covertfl.solvers.average_cost import QueueOperator, always_learn
from covertfl.solvers.constrained import solve_queue
from tests.support.paper_queues import frozen_queue, sound_queue

pytestmark = pytest.mark.slow

FROZEN = (1e-3, 1e-4, 1e-6, 1e-8, 1e-12)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """States of each policy evaluated by the solvers, with a hundredth of the usual work."""
    counted: list[int] = []
    evaluate = QueueOperator.evaluate

    def count(operator: QueueOperator, *arguments: Any, **options: Any) -> Any:
        chain = evaluate(operator, *arguments, **options)
        counted.append(operator.problem.num_states)
        return chain

    monkeypatch.setattr(QueueOperator, "evaluate", count)
    monkeypatch.setattr(constrained, "MOST_WORK", capacity.MOST_WORK // 100)
    yield counted


@pytest.mark.parametrize("moving", FROZEN)
@pytest.mark.parametrize(("arrival_prob", "limit"), [(0.05, 5.0), (0.05, 1e3), (0.05, 1e6)])
def test_the_work_for_nearly_frozen_oracles_is_bounded(
    work: list[int], moving: float, arrival_prob: float, limit: float
) -> None:
    problem = frozen_queue(moving, arrival_prob=arrival_prob, limit=limit)
    try:
        solution = solve_queue(problem)
    except SolverFailed as refusal:
        assert "the search for a capacity was stopped at" in str(refusal)
        assert "set capacity and overflow_cost" in str(refusal)
    except SplitChain as refusal:
        assert moving <= 1e-8
        assert "rounds on average, so no average settles" in str(refusal)
    else:
        assert solution.evaluation.full_prob < 1e-9
        assert solution.constrained_cost <= limit * (1.0 + 1e-9)
    # The Infeasible branch looks at one more problem, and the last evaluation may overshoot.
    assert sum(work) <= capacity.MOST_WORK // 100 + 2 * max(work, default=0)


@pytest.mark.parametrize("moving", FROZEN[2:])
def test_a_queue_that_no_policy_keeps_short_is_refused_before_any_is_solved(
    work: list[int], moving: float
) -> None:
    """In the worst state 0.3 updates arrive and 0.1 are done, for a million rounds and more."""
    problem = frozen_queue(moving, arrival_prob=0.3, limit=5.0)
    with pytest.raises(Unstable, match="even if every query learns") as refusal:
        solve_queue(problem)
    assert f"stays in state 0 for {5.0 / moving:.3g} rounds on average" in str(refusal.value)
    assert "set capacity and overflow_cost" in str(refusal.value)
    assert work == []


@pytest.mark.parametrize("moving", [1.0, 1e-1, 1e-2])
@pytest.mark.parametrize("limit", [1e4, 1e6, 1e12])
def test_a_loose_limit_is_kept_by_the_cheapest_states_alone(
    work: list[int], moving: float, limit: float
) -> None:
    problem = frozen_queue(moving, arrival_prob=0.05, limit=limit)
    solution = solve_queue(problem)
    assert solution.cost == pytest.approx(0.05 * 0.3 / 0.95, rel=1e-10)
    assert solution.lower_bound == privacy_cost_bound(problem)
    assert solution.evaluation.full_prob < 1e-9
    assert (solution.multiplier, solution.mixing) == (0.0, None)
    assert np.all(solution.policy.table[:2] == 0.0)
    assert np.all(solution.policy.table[2, :, 1:] == 1.0)
    assert work == []


@pytest.mark.parametrize("limit", [5.0, 20.0])
def test_a_found_capacity_does_not_matter(limit: float) -> None:
    found = solve_queue(frozen_queue(1e-6, arrival_prob=0.05, limit=limit))
    assert found.problem.capacity is not None
    larger = frozen_queue(1e-6, arrival_prob=0.05, limit=limit)
    again = solve_queue(larger.with_capacity(2 * found.problem.capacity))
    assert again.cost == pytest.approx(found.cost, rel=1e-7)


def test_no_policy_has_a_queue_that_is_less_often_full_than_always_learning() -> None:
    problem = sound_queue(limit=25.0).with_capacity(40)
    always = always_learn(problem).astype(np.float64)
    least = evaluate_queue_policy(problem, QueueTable(always)).full_prob
    generator = np.random.default_rng(3)
    for _ in range(50):
        table = always * generator.random(always.shape) ** generator.uniform(0.0, 2.0)
        assert evaluate_queue_policy(problem, QueueTable(table)).full_prob >= least


def test_states_that_cannot_do_all_the_work_are_no_cheapest_policy() -> None:
    # The best state does 0.95 * 2 / 7 updates a round at most.
    assert capacity.find_cheapest(frozen_queue(1.0, arrival_prob=0.28, limit=1e6)) is None
    assert capacity.find_cheapest(frozen_queue(1.0, arrival_prob=0.26, limit=1e6)) is not None
    # With a limit that binds there is none either.
    assert capacity.find_cheapest(frozen_queue(1.0, arrival_prob=0.26, limit=1.0)) is None


def test_stays_count_only_where_the_oracle_moves() -> None:
    problem = frozen_queue(1e-4, arrival_prob=0.05, limit=5.0)
    state, rounds = capacity.find_longest_stay(problem)
    assert state == 0
    assert rounds == pytest.approx(5e4)
    alone = QueueProblem(
        Oracle(np.eye(1), np.array([0.5])),
        np.ones(1),
        LearningCost("linear", 0.6, "always"),
        arrival_prob=0.1,
        arrival_size=1,
        limit=5.0,
    )
    assert capacity.find_longest_stay(alone) == (0, 1.0)
    assert solve_queue(alone).evaluation.full_prob < 1e-9


def test_an_operator_stops_at_the_policies_allowed() -> None:
    problem = sound_queue(limit=25.0).with_capacity(10)
    operator = QueueOperator(problem)
    operator.most_policies = 2
    for _ in range(2):
        operator.evaluate(always_learn(problem))
    with pytest.raises(NoSolution, match="more than 2 policies"):
        operator.evaluate(always_learn(problem))
