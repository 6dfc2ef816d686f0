"""The chain under one policy: closed forms, exact fractions, a dense solution, closed classes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.evaluation.chain import (
    LEARNING,
    PRIVACY,
    find_closed_classes,
    mean_costs,
    solve_chain,
)
from tests.support.literal_queue import (
    LiteralQueue,
    count_closed_classes,
    follow_round,
    list_arrivals,
    list_states,
)
from tests.support.paper_queues import reference_queue
from tests.support.strategies import queue_problems, random_queue_problem


def draw_policy(problem: QueueProblem, seed: int) -> FloatArray:
    """A policy with probabilities 0, 1 and in between, mixed."""
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, 3, size=problem.table_shape)
    learn = np.where(kind == 2, generator.random(problem.table_shape), kind.astype(np.float64))
    learn[:, :, 0] = 0.0
    return np.asarray(learn, dtype=np.float64)


SEEDS = st.integers(0, 2**32 - 1)


# --- stationary distribution --------------------------------------------------------------------


def test_masses_of_a_single_server_in_closed_form() -> None:
    # One oracle state, single arrivals, always learning: a walk that rises with d (1 - g) and falls
    # with (1 - d) g; from 0 it rises with d.  The smallest mass is about 1e-236.
    d, g, capacity = 0.01, 0.9, 80
    oracle = Oracle(np.array([[1.0]]), np.array([g]))
    problem = QueueProblem(
        oracle, np.array([1.0]), LearningCost(), d, 1, 1.0, capacity=capacity, overflow_cost=0.0
    )
    learn = np.ones(problem.table_shape)
    learn[:, :, 0] = 0.0
    ratios = np.append(d / ((1 - d) * g), np.full(capacity - 1, d * (1 - g) / ((1 - d) * g)))
    expected = np.cumprod(np.append(1.0, ratios))
    expected /= expected.sum()
    assert 0.0 < expected[-1] < 1e-230
    for pivot in (0, 1, 40, 80):
        mass = solve_chain(problem, learn, pivot=pivot).mass[:, 0]
        np.testing.assert_allclose(mass, expected, rtol=1e-12)


def test_masses_in_exact_fractions() -> None:
    # Powers of two are exact in floating point, so the fractions describe the very same chain.
    oracle = Oracle(np.array([[0.75, 0.25], [2.0**-10, 1 - 2.0**-10]]), np.array([0.25, 0.875]))
    problem = QueueProblem(
        oracle,
        np.array([1.5, 0.25]),
        LearningCost("linear", 0.5, "when-obfuscating"),
        arrival_prob=2.0**-12,
        arrival_size=2,
        limit=1.0,
        capacity=7,
        overflow_cost=8.0,
        full_cost=4.0,
    )
    learn = np.ones(problem.table_shape)
    learn[0, 0, 2], learn[1, 1, 5] = 0.125, 0.5
    learn[:, :, 0] = 0.0
    exact = solve_in_fractions(problem, learn)
    distribution = np.array([prob for _, prob in list_arrivals(problem)])
    for pivot in (0, 5, 15):
        chain = solve_chain(problem, learn, pivot=pivot)
        ours = np.einsum("yo,e->oey", chain.mass, distribution)
        for state, mass in exact.items():
            assert ours[state] == pytest.approx(float(mass), rel=1e-13), state
    assert min(exact.values()) < Fraction(1, 10**14)


def solve_in_fractions(
    problem: QueueProblem, learn: FloatArray
) -> dict[tuple[int, int, int], Fraction]:
    """Stationary distribution of the full chain by Gaussian elimination without rounding."""
    states = list_states(problem)
    place = {state: number for number, state in enumerate(states)}
    size = len(states)
    rows = [[Fraction(0)] * size + [Fraction(0)] for _ in range(size)]
    for state in states:
        for action, weight in ((1, Fraction(learn[state])), (0, 1 - Fraction(learn[state]))):
            for follower, prob in follow_round(problem, state, action)[0].items():
                rows[place[follower]][place[state]] += weight * Fraction(prob)
    for number in range(size):
        rows[number][number] -= 1
    rows[-1] = [Fraction(1)] * (size + 1)
    for pivot in range(size):
        swap = next(n for n in range(pivot, size) if rows[n][pivot] != 0)
        rows[pivot], rows[swap] = rows[swap], rows[pivot]
        for n in range(size):
            if n != pivot and rows[n][pivot] != 0:
                factor = rows[n][pivot] / rows[pivot][pivot]
                rows[n] = [a - factor * b for a, b in zip(rows[n], rows[pivot], strict=True)]
    return {state: rows[n][-1] / rows[n][n] for n, state in enumerate(states)}


@pytest.mark.slow
@given(queue_problems(), SEEDS, SEEDS)
def test_law_and_averages_agree_with_the_dense_chain(
    problem: QueueProblem, seed: int, pivot_seed: int
) -> None:
    learn = draw_policy(problem, seed)
    literal = LiteralQueue.of(problem)
    num_classes = count_closed_classes(literal.mix(literal.flatten(learn), literal.moves))
    pivot = pivot_seed % (problem.oracle.num_states * problem.num_levels)
    chain = solve_chain(problem, learn, pivot=pivot)
    assert len(chain.roots) == num_classes
    assert len(find_closed_classes(problem, learn)) == num_classes
    assume(num_classes == 1)
    expected = literal.evaluate(learn)
    distribution = np.array([prob for _, prob in list_arrivals(problem)])
    np.testing.assert_allclose(
        np.einsum("yo,e->oey", chain.mass, distribution).ravel(),
        expected.distribution,
        rtol=1e-9,
        atol=1e-13,
    )
    averages = [expected.privacy_cost, expected.learning_cost]
    np.testing.assert_allclose(chain.averages, averages, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
@given(queue_problems(), SEEDS)
def test_mean_costs_agree_with_the_literal_ones(problem: QueueProblem, seed: int) -> None:
    learn = draw_policy(problem, seed)
    literal = LiteralQueue.of(problem)
    flat = literal.flatten(learn)
    ours = mean_costs(problem, learn)
    distribution = np.array([prob for _, prob in list_arrivals(problem)])
    for kind, costs in ((PRIVACY, literal.privacy), (LEARNING, literal.learning)):
        by_state = literal.mix(flat, costs).reshape(problem.table_shape)
        np.testing.assert_allclose(
            ours[..., kind], np.einsum("oey,e->yo", by_state, distribution), atol=1e-12
        )


def test_averages_do_not_depend_on_the_pivot() -> None:
    problem = reference_queue()
    learn = draw_policy(problem, 3)
    chains = [solve_chain(problem, learn, pivot=pivot) for pivot in range(0, 123, 7)]
    for chain in chains[1:]:
        np.testing.assert_allclose(chain.averages, chains[0].averages, rtol=1e-13)
        np.testing.assert_allclose(chain.mass, chains[0].mass, rtol=1e-11)
        # Relative values are determined up to a constant.
        difference = chain.values - chains[0].values
        spread = difference.max(axis=(1, 2)) - difference.min(axis=(1, 2))
        assert np.all(spread <= 1e-9 * np.abs(chains[0].values).max(axis=(1, 2)))


# --- relative values ----------------------------------------------------------------------------


def move_in_expectation(
    problem: QueueProblem, learn: FloatArray
) -> tuple[LiteralQueue, FloatArray, FloatArray]:
    """The dense chain and the matrices that average over, and spread to, the arrival."""
    literal = LiteralQueue.of(problem)
    W, _, levels = problem.table_shape
    before = np.zeros((levels * W, len(literal.states)))
    for number, (o, e, y) in enumerate(literal.states):
        before[y * W + o, number] = list_arrivals(problem)[e][1]
    return literal, literal.mix(literal.flatten(learn), literal.moves), before


@pytest.mark.parametrize("seed", range(12))
def test_relative_values_satisfy_the_poisson_equation(seed: int) -> None:
    problem = random_queue_problem(np.random.default_rng(seed), num_states=1 + seed % 4)
    learn = draw_policy(problem, seed)
    chain = solve_chain(problem, learn)
    literal, moves, before = move_in_expectation(problem, learn)
    # After a round the next arrival is still open: moves @ (one for each state (o', y')).
    W = problem.oracle.num_states
    after = np.zeros((len(literal.states), before.shape[0]))
    for number, (o, _, y) in enumerate(literal.states):
        after[number, y * W + o] = 1.0
    step = before @ moves @ after
    for kind, costs in ((PRIVACY, literal.privacy), (LEARNING, literal.learning)):
        cost = before @ literal.mix(literal.flatten(learn), costs)
        w = chain.values[kind].ravel()
        residual = cost - chain.averages[kind] + step @ w - w
        scale = np.abs(w).max() + np.abs(cost).max()
        assert np.abs(residual).max() <= 1e-10 * scale
    assert np.all(chain.values.reshape(2, -1)[:, chain.roots[0]] == 0.0)


# --- closed classes -----------------------------------------------------------------------------


def test_a_policy_that_gives_up_when_full_has_two_classes() -> None:
    # Every query that learns succeeds and every round brings one update: while the policy learns
    # the backlog stays where it is; once full, the policy gives up for good.
    oracle = Oracle(np.array([[1.0]]), np.array([1.0]))
    problem = QueueProblem(
        oracle, np.array([1.0]), LearningCost(), 1.0, 1, 1.0, capacity=5, overflow_cost=0.0
    )
    learn = np.zeros(problem.table_shape)
    learn[0, :, 2] = 1.0
    # From 0 it rises to 2 and stays; from 3 on it rises to 5 and stays.
    assert len(solve_chain(problem, learn).roots) == 2
    classes = find_closed_classes(problem, learn)
    levels = sorted(np.flatnonzero(members.any(axis=1)).tolist() for members in classes)
    assert levels == [[2], [5]]


def test_classes_of_a_queue_with_probability() -> None:
    # Certain success and single arrivals in half of the rounds: learning never lets the backlog
    # grow, so "learn while short, give up when long" splits the queue between 3 and 4.
    oracle = Oracle(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([1.0, 1.0]))
    problem = QueueProblem(
        oracle, np.array([1.0, 0.5]), LearningCost(), 0.5, 1, 1.0, capacity=9, overflow_cost=0.0
    )
    learn = np.zeros(problem.table_shape)
    learn[:, :, 1:4] = 1.0
    classes = find_closed_classes(problem, learn)
    levels = sorted(np.flatnonzero(members.any(axis=1)).tolist() for members in classes)
    assert levels == [[0, 1], [9]]
    assert all(
        members[level].all() for members in classes for level in np.flatnonzero(members.any(axis=1))
    )
    chain = solve_chain(problem, learn)
    assert len(chain.roots) == 2
    assert np.all(np.isnan(chain.averages))
