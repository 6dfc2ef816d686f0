"""The weighted problem: every policy of tiny queues, proven bounds, ties, and the discount (11)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import SplitChain
from covertfl.evaluation.chain import find_closed_classes, solve_chain
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.average_cost import (
    AverageCostSolution,
    QueueOperator,
    always_learn,
    lead_into,
    never_learn,
    solve_average_cost,
)
from tests.support.literal_queue import LEARN, OBFUSCATE, EveryPolicy, LiteralQueue
from tests.support.paper_queues import reference_queue
from tests.support.strategies import queue_problems, random_queue_problem

WEIGHTS = st.sampled_from(
    ((1.0, 0.0), (0.0, 1.0), (1.0, 0.03), (1.0, 0.5), (1.0, 20.0), (0.2, 1.0))
)


def solve_or_skip(problem: QueueProblem, weights: tuple[float, float]) -> AverageCostSolution:
    try:
        return solve_average_cost(QueueOperator(problem), weights, always_learn(problem))
    except SplitChain:
        assume(False)
        raise


# --- the optimum --------------------------------------------------------------------------------


@given(queue_problems(max_states=2, max_capacity=2, max_choices=12), WEIGHTS)
def test_no_policy_of_a_tiny_queue_is_better(
    problem: QueueProblem, weights: tuple[float, float]
) -> None:
    solution = solve_or_skip(problem, weights)
    every = EveryPolicy.of(LiteralQueue.of(problem))
    costs = weights[0] * every.privacy + weights[1] * every.learning
    assert solution.gain == pytest.approx(costs.min(), rel=1e-10, abs=1e-12)


@pytest.mark.slow
@given(queue_problems(), WEIGHTS)
def test_the_gain_is_a_proven_lower_bound(
    problem: QueueProblem, weights: tuple[float, float]
) -> None:
    solution = solve_or_skip(problem, weights)
    literal = LiteralQueue.of(problem)
    expected = literal.evaluate(solution.learn)
    gain = weights[0] * expected.privacy_cost + weights[1] * expected.learning_cost
    assert solution.gain == pytest.approx(gain, rel=1e-10, abs=1e-12)
    bound = literal.bound_below(solution.learn, weights)
    assert bound >= gain - 1e-9 * max(gain, 1.0)


@pytest.mark.slow
@given(queue_problems(), WEIGHTS, st.integers(0, 2**32 - 1))
def test_the_start_does_not_matter(
    problem: QueueProblem, weights: tuple[float, float], seed: int
) -> None:
    gain = solve_or_skip(problem, weights).gain
    anything = np.random.default_rng(seed).random(problem.table_shape) < 0.5
    anything[:, :, 0] = False
    for start in (never_learn(problem), anything):
        try:
            other = solve_average_cost(QueueOperator(problem), weights, start)
        except SplitChain:
            assume(False)
        assert other.gain == pytest.approx(gain, rel=1e-9, abs=1e-11)


def test_learning_whenever_possible_has_the_least_backlog() -> None:
    problem = reference_queue().with_capacity(60)
    problem = QueueProblem(
        problem.oracle,
        problem.privacy_cost,
        LearningCost("linear", 0.6, "always"),
        arrival_prob=0.1,
        arrival_size=4,
        limit=1.0,
        capacity=60,
        overflow_cost=5.0,
    )
    solution = solve_average_cost(QueueOperator(problem), (0.0, 1.0), never_learn(problem))
    greedy = evaluate_queue_policy(problem, QueueTable(always_learn(problem).astype(np.float64)))
    assert solution.gain == pytest.approx(greedy.learning_cost, rel=1e-12)
    cheapest = solve_average_cost(QueueOperator(problem), (1.0, 0.0), always_learn(problem))
    assert cheapest.gain == 0.0
    assert not cheapest.learn.any()


def test_ties_are_broken_towards_obfuscating() -> None:
    # Nothing costs anything: every policy is optimal.
    free = QueueProblem(
        Oracle(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([0.3, 0.9])),
        np.zeros(2),
        LearningCost("linear", 0.0),
        arrival_prob=0.3,
        arrival_size=2,
        limit=1.0,
        capacity=6,
        overflow_cost=0.0,
    )
    for start in (always_learn(free), never_learn(free)):
        assert not solve_average_cost(QueueOperator(free), (1.0, 1.0), start).learn.any()
    # A state in which learning never succeeds and costs nothing is left alone as well.
    useless = QueueProblem(
        Oracle(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([0.0, 0.9])),
        np.array([0.0, 0.1]),
        LearningCost("linear", 1.0),
        arrival_prob=0.3,
        arrival_size=1,
        limit=1.0,
        capacity=6,
        overflow_cost=5.0,
    )
    solution = solve_average_cost(QueueOperator(useless), (1.0, 1.0), always_learn(useless))
    assert not solution.learn[0].any()
    assert solution.learn[1, :, 1:].all()


@pytest.mark.parametrize("seed", range(6))
def test_actions_are_compared_as_the_literal_queue_does(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = random_queue_problem(generator, num_states=1 + seed % 3, capacity=7)
    W, _, levels = problem.table_shape
    values = generator.normal(size=(2, levels, W))
    weights = (0.7, 1.3)
    ours = QueueOperator(problem).compare_actions(values, np.zeros(2), weights)
    literal = LiteralQueue.of(problem)
    ahead = np.array(
        [weights[0] * values[0, y, o] + weights[1] * values[1, y, o] for o, _, y in literal.states]
    )
    costs = weights[0] * literal.privacy + weights[1] * literal.learning
    look = costs + literal.moves @ ahead
    expected = (look[LEARN] - look[OBFUSCATE]).reshape(problem.table_shape)
    np.testing.assert_allclose(ours.gap[:, :, 1:], expected[:, :, 1:], atol=1e-12)
    assert np.all(ours.gap[:, :, 0] == np.inf)
    assert np.all(ours.rounding >= 0.0) and np.all(ours.rounding <= 1e-9)


def test_other_states_are_led_into_a_closed_class() -> None:
    oracle = Oracle(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([1.0, 1.0]))
    problem = QueueProblem(
        oracle, np.array([1.0, 0.5]), LearningCost(), 0.5, 1, 1.0, capacity=9, overflow_cost=0.0
    )
    learn = never_learn(problem)
    learn[:, :, 1:4] = True
    classes = find_closed_classes(problem, learn.astype(np.float64))
    assert len(classes) == 2
    for members in classes:
        led = lead_into(problem, learn, members)
        chain = solve_chain(problem, led.astype(np.float64))
        assert len(chain.roots) == 1
        assert chain.mass[~members].sum() <= 1e-12
        inside = np.broadcast_to(members.T[:, None, :], led.shape)
        np.testing.assert_array_equal(led[inside], learn[inside])


def test_an_average_that_depends_on_the_start_is_refused() -> None:
    # An update arrives in every round and every learning query succeeds: the backlog never falls,
    # and the cheap level 2 is out of reach from 3 on.
    problem = QueueProblem(
        Oracle(np.array([[1.0]]), np.array([1.0])),
        np.array([1.0]),
        LearningCost("table", values=(3.0, 2.0, 0.1, 4.0, 2.0)),
        arrival_prob=1.0,
        arrival_size=1,
        limit=1.0,
        capacity=4,
        overflow_cost=10.0,
    )
    with pytest.raises(SplitChain):
        solve_average_cost(QueueOperator(problem), (0.0, 1.0), always_learn(problem))
