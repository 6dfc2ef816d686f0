"""Oracle states that are read with errors, and policies that act on them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from covertfl.decision.misreading import MisreadPolicy, build_confusion, read_state
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import HorizonTable, Observation
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.solvers.minority import MinorityPolicy

MATRIX = [[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.05, 0.15, 0.8]]


def test_a_probability_spreads_over_the_other_states() -> None:
    assert build_confusion(0.2, 3) == pytest.approx(
        np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    )
    assert build_confusion(0.0, 3).tolist() == np.eye(3).tolist()
    assert build_confusion(0.3, 1).tolist() == [[1.0]]
    assert build_confusion(MATRIX, 3).tolist() == MATRIX


@pytest.mark.parametrize(
    ("misread", "words"),
    [
        (1.5, ["[0, 1]", "1.5"]),
        ([[1.0]], ["3 x 3", "1 x 1"]),
        ([[0.5, 0.4, 0.0], *MATRIX[1:]], ["row 0", "sum to 1", "0.5, 0.4, 0"]),
        ([*MATRIX[:2], [1.2, -0.2, 0.0]], ["row 2", "-0.2"]),
        ([[1.0, 0.0], [1.0]], ["misread", "rows of one length"]),
    ],
)
def test_bad_errors_are_refused(misread: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        build_confusion(misread, 3)
    assert all(word in str(refusal.value) for word in words)


def test_states_are_read_with_their_probabilities() -> None:
    confusion, generator = build_confusion(MATRIX, 3), np.random.default_rng(0)
    for state in range(3):
        draws = [read_state(confusion, state, generator=generator) for _ in range(4000)]
        shares = np.bincount(draws, minlength=3) / 4000
        assert shares == pytest.approx(confusion[state], abs=0.03)
        assert np.all((shares > 0) == (confusion[state] > 0))


def test_errors_leave_a_policy_s_budget() -> None:
    """The rule for several decoys counts on it."""
    policy = MinorityPolicy(np.zeros((6, 3, 3, 4), dtype=np.bool_))
    assert MisreadPolicy(policy, build_confusion(0.2, 3)).budget == policy.budget == 3
    table = HorizonTable(np.zeros((2, 3, 3)))
    assert MisreadPolicy(table, build_confusion(0.2, 3)).budget is None


def test_cost_of_a_misread_policy_against_enumeration() -> None:
    """Every path of states, readings, actions and outcomes of three rounds."""
    oracle = Oracle(np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0.3, 0.9]))
    problem = FiniteHorizon(
        oracle=oracle,
        privacy_cost=np.array([1.8, 0.3]),
        learning_cost=LearningCost("quadratic", 0.6),
        rounds=3,
        updates=2,
    )
    table = np.random.default_rng(1).uniform(size=(3, 2, 3))
    table[:, :, 0] = 0.0
    policy, confusion = HorizonTable(table), np.array([[0.8, 0.2], [0.35, 0.65]])
    first = np.array([0.25, 0.75])
    cost = 0.0
    for states in product(range(2), repeat=3):
        for read in product(range(2), repeat=3):
            for learned in product((True, False), repeat=3):
                for succeeded in product((True, False), repeat=3):
                    prob, owed, paid = first[states[0]], 2, 0.0
                    for t in range(3):
                        prob *= oracle.transition[states[t - 1], states[t]] if t else 1.0
                        prob *= confusion[states[t], read[t]]
                        learn = float(policy.learn_prob(Observation(read[t], owed, 0, 3 - t, 0)))
                        prob *= learn if learned[t] else 1.0 - learn
                        g = oracle.success[states[t]]
                        prob *= g if succeeded[t] else 1.0 - g
                        paid += problem.privacy_cost[states[t]] * learned[t]
                        owed -= learned[t] and succeeded[t] and owed > 0
                    cost += prob * (paid + 0.6 * owed**2)
    found = evaluate_horizon_policy(problem, MisreadPolicy(policy, confusion), first=first)
    assert found.total_cost == pytest.approx(cost, rel=1e-12)
    right = evaluate_horizon_policy(problem, MisreadPolicy(policy, np.eye(2)), first=first)
    assert right == evaluate_horizon_policy(problem, policy, first=first)


def test_shapes_are_those_of_the_policy() -> None:
    table = np.random.default_rng(2).uniform(size=(4, 3, 5))
    table[:, :, 0] = 0.0
    policy = HorizonTable(table)
    misread = MisreadPolicy(policy, build_confusion(MATRIX, 3))
    states, backlog = np.indices((3, 5), sparse=True)
    observation = Observation(states, backlog, rounds_left=2)
    assert misread.learn_prob(observation) == pytest.approx(np.array(MATRIX) @ table[1])
    one = replace(observation, oracle_state=1, backlog=3)
    assert float(misread.learn_prob(one)) == pytest.approx(MATRIX[1] @ table[1][:, 3])
