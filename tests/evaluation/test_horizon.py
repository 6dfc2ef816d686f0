"""Exact evaluation against the enumeration of every path, closed forms and simulation; F10."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import (
    GreedyPolicy,
    HorizonTable,
    Observation,
    Policy,
    RandomPlacement,
)
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput, NoSolution
from covertfl.evaluation.horizon import (
    evaluate_horizon_policy,
    expected_greedy_queries,
    mean_greedy_queries,
    resolve_first_distribution,
    simulate_horizon_policy,
)
from covertfl.solvers.backward_induction import solve_horizon
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE


def make_oracle(transition: list[list[float]], success: list[float]) -> Oracle:
    return Oracle(np.array(transition), np.array(success))


MAIN = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 45, 16)


@dataclass(frozen=True)
class FullTable:
    """A randomised policy of everything: [rounds_left - 1][oracle][backlog][learning queries]."""

    table: FloatArray

    def learn_prob(self, observation: Observation) -> FloatArray:
        probs: FloatArray = self.table[
            np.asarray(observation.rounds_left) - 1,
            observation.oracle_state,
            observation.backlog,
            observation.learning_queries,
        ]
        return probs


@st.composite
def cases(draw: st.DrawFn) -> tuple[FiniteHorizon, FullTable, FloatArray]:
    num_states, rounds = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    updates = draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    transition = generator.dirichlet(np.ones(num_states), size=num_states)
    oracle = Oracle(
        transition / transition.sum(axis=1, keepdims=True), generator.random(num_states)
    )
    problem = FiniteHorizon(
        oracle,
        generator.uniform(0.0, 2.0, num_states),
        LearningCost("table", values=tuple(generator.uniform(0.0, 5.0, updates + 1))),
        rounds,
        updates,
    )
    shape = (rounds, num_states, updates + 1, rounds + 1)
    policy = FullTable(np.clip(generator.uniform(-0.2, 1.2, shape), 0.0, 1.0))
    return problem, policy, generator.dirichlet(np.ones(num_states))


def enumerate_paths(
    problem: FiniteHorizon, policy: Policy, first: FloatArray
) -> Iterator[tuple[float, float, int, int]]:
    """Probability, privacy cost, backlog left and learning queries of every path there is."""
    oracle, rounds = problem.oracle, problem.rounds
    for states in itertools.product(range(oracle.num_states), repeat=rounds):
        for actions in itertools.product((0, 1), repeat=rounds):
            for luck in itertools.product((0, 1), repeat=rounds):
                prob, cost, backlog, sent = float(first[states[0]]), 0.0, problem.updates, 0
                for t, (o, u, s) in enumerate(zip(states, actions, luck, strict=True)):
                    if t:
                        prob *= float(oracle.transition[states[t - 1], o])
                    p = float(policy.learn_prob(Observation(o, backlog, 0, rounds - t, sent)))
                    prob *= p if u else 1.0 - p
                    g = float(oracle.success[o])
                    prob *= g if s else 1.0 - g
                    cost += u * float(problem.privacy_cost[o])
                    backlog -= u and s and backlog > 0
                    sent += u
                yield prob, cost, backlog, sent


@pytest.mark.slow
@given(cases())
@settings(max_examples=40, deadline=None)
def test_agrees_with_the_enumeration_of_every_path(
    case: tuple[FiniteHorizon, FullTable, FloatArray],
) -> None:
    problem, policy, first = case
    prob, cost, backlog, sent = map(
        np.array, zip(*enumerate_paths(problem, policy, first), strict=True)
    )
    evaluation = evaluate_horizon_policy(problem, policy, first=first)
    finished, minority = backlog == 0, 2 * sent < problem.rounds
    terminal = problem.terminal_cost()[backlog.astype(int)]
    assert evaluation.privacy_cost == pytest.approx(prob @ cost, abs=1e-12)
    assert evaluation.terminal_cost == pytest.approx(prob @ terminal, abs=1e-12)
    assert evaluation.total_cost == pytest.approx(prob @ (cost + terminal), abs=1e-12)
    assert evaluation.learning_queries == pytest.approx(prob @ sent, abs=1e-12)
    assert evaluation.exposure == pytest.approx(prob @ sent / problem.rounds, abs=1e-12)
    assert evaluation.finish_prob == pytest.approx(prob @ finished, abs=1e-12)
    assert evaluation.minority_prob == pytest.approx(prob @ minority, abs=1e-12)
    assert evaluation.covert_finish_prob == pytest.approx(prob @ (finished & minority), abs=1e-12)
    named = np.where(2 * sent == problem.rounds, 0.5, 2 * sent > problem.rounds)
    assert evaluation.named_prob == pytest.approx(prob @ named, abs=1e-12)


def test_the_optimal_policy_costs_what_backward_induction_says() -> None:
    solution = solve_horizon(MAIN)
    for state in range(3):
        evaluation = evaluate_horizon_policy(MAIN, solution.policy, first=np.eye(3)[state])
        assert evaluation.total_cost == pytest.approx(solution.expected_cost[state], rel=1e-12)
    stationary = evaluate_horizon_policy(MAIN, solution.policy)
    distribution = compute_stationary_distribution(TEXT_ORACLE)
    assert stationary.total_cost == pytest.approx(distribution @ solution.expected_cost, rel=1e-12)
    assert stationary.total_cost < evaluate_horizon_policy(MAIN, GreedyPolicy()).total_cost


def test_random_placement_sends_exactly_its_queries_and_learns_at_backlog_0() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("linear", 1.0), 12, 2)
    evaluation = evaluate_horizon_policy(problem, RandomPlacement(7))
    distribution = compute_stationary_distribution(TEXT_ORACLE)
    assert evaluation.learning_queries == pytest.approx(7.0)
    assert evaluation.minority_prob == 0.0
    assert evaluation.privacy_cost == pytest.approx(
        7.0 * float(distribution @ problem.privacy_cost)
    )


def test_greedy_with_sure_success_by_hand() -> None:
    problem = FiniteHorizon(
        make_oracle([[1.0]], [1.0]), np.array([2.0]), LearningCost("linear", 1.0), 5, 3
    )
    evaluation = evaluate_horizon_policy(problem, GreedyPolicy())
    assert (evaluation.privacy_cost, evaluation.terminal_cost) == (6.0, 0.0)
    assert (evaluation.learning_queries, evaluation.exposure) == (3.0, 0.6)
    assert (evaluation.finish_prob, evaluation.minority_prob) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["optimal", "greedy", "random"])
def test_simulation_agrees_with_the_exact_evaluation(name: str) -> None:
    policies: dict[str, Policy] = {
        "optimal": solve_horizon(MAIN).policy,
        "greedy": GreedyPolicy(),
        "random": RandomPlacement(16),
    }
    policy = policies[name]
    exact = evaluate_horizon_policy(MAIN, policy)
    sample = simulate_horizon_policy(MAIN, policy, 20_000, generator=np.random.default_rng(11))
    privacy = (sample.actions * MAIN.privacy_cost[sample.oracle_states]).sum(axis=1)
    terminal = MAIN.terminal_cost()[sample.backlog_left]
    finished, minority = sample.backlog_left == 0, 2 * sample.learning_queries < 45
    for simulated, expected in (
        (privacy, exact.privacy_cost),
        (terminal, exact.terminal_cost),
        (sample.learning_queries, exact.learning_queries),
        (finished, exact.finish_prob),
        (minority, exact.minority_prob),
        (finished & minority, exact.covert_finish_prob),
    ):
        error = simulated.std() / np.sqrt(20_000)
        assert abs(simulated.mean() - expected) <= 4.5 * error + 1e-9


def test_a_sample_is_consistent_and_repeats_with_its_seed() -> None:
    runs = [
        simulate_horizon_policy(
            MAIN, GreedyPolicy(), 500, generator=np.random.default_rng(3), first=[0.0, 0.0, 1.0]
        )
        for _ in range(2)
    ]
    sample = runs[0]
    np.testing.assert_array_equal(sample.actions, runs[1].actions)
    assert np.all(sample.oracle_states[:, 0] == 2)
    assert not np.any(sample.successes & ~sample.actions)
    np.testing.assert_array_equal(16 - sample.successes.sum(axis=1), sample.backlog_left)
    moves = np.zeros((3, 3))
    np.add.at(moves, (sample.oracle_states[:, :-1], sample.oracle_states[:, 1:]), 1.0)
    shares = moves / moves.sum(axis=1, keepdims=True)
    assert shares == pytest.approx(TEXT_ORACLE.transition, abs=0.02)
    assert moves[0, 2] == moves[2, 0] == 0.0


def test_greedy_queries_in_closed_form() -> None:
    assert expected_greedy_queries(make_oracle([[1.0]], [0.25]), 7) == pytest.approx([28.0])
    assert mean_greedy_queries(TEXT_ORACLE, 16) == pytest.approx(39.2, abs=0.05)
    # Stationary and in the long run an update takes 1 / sum(pi g) queries.
    rate = float(compute_stationary_distribution(TEXT_ORACLE) @ TEXT_ORACLE.success)
    steps = mean_greedy_queries(TEXT_ORACLE, 301) - mean_greedy_queries(TEXT_ORACLE, 300)
    assert steps == pytest.approx(1.0 / rate)


def test_greedy_queries_against_a_horizon_long_enough() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, np.ones(3), LearningCost("linear", 1.0), 400, 4)
    queries = expected_greedy_queries(TEXT_ORACLE, 4)
    for state in range(3):
        evaluation = evaluate_horizon_policy(problem, GreedyPolicy(), first=np.eye(3)[state])
        assert queries[state] == pytest.approx(evaluation.learning_queries, rel=1e-9)


def test_greedy_queries_that_never_end() -> None:
    with pytest.raises(NoSolution, match="reached from state 0 has a positive probability"):
        expected_greedy_queries(make_oracle([[0.5, 0.5], [0.5, 0.5]], [0.0, 0.0]), 3)
    with pytest.raises(NoSolution, match="reached from state 1 "):
        expected_greedy_queries(make_oracle([[0.5, 0.5], [0.0, 1.0]], [0.9, 0.0]), 3)
    with pytest.raises(InvalidInput, match="updates must be a whole number of at least 1, got 0"):
        expected_greedy_queries(TEXT_ORACLE, 0)


def test_the_law_of_the_first_state() -> None:
    split = make_oracle([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5])
    with pytest.raises(
        InvalidInput, match="first, the distribution of the first oracle state, must be"
    ):
        resolve_first_distribution(split, None)
    assert resolve_first_distribution(split, [0.25, 0.75]).tolist() == [0.25, 0.75]
    with pytest.raises(InvalidInput, match="one probability for each of the 2 oracle states"):
        resolve_first_distribution(split, [1.0])
    for wrong in ([0.5, 0.6], [-0.5, 1.5], [np.nan, 1.0]):
        with pytest.raises(InvalidInput, match="sum to 1"):
            resolve_first_distribution(split, wrong)


def test_refusals() -> None:
    good: dict[str, Any] = {"problem": MAIN, "policy": GreedyPolicy()}
    policy = "policy must have a method learn_prob"
    sampled: dict[str, Any] = good | {"num_runs": 2, "generator": np.random.default_rng(0)}
    changes: list[tuple[dict[str, Any], str]] = [
        *(({"policy": wrong}, policy) for wrong in (None, "greedy", GreedyPolicy)),
        ({"problem": None}, "problem must be of type FiniteHorizon, got None"),
        *(({"num_runs": wrong}, "num_runs must be a whole") for wrong in (0, "2", 2.5, True)),
        *(({"generator": wrong}, "generator must be of type") for wrong in (None, 0)),
    ]
    for change, sentence in changes:
        with pytest.raises(InvalidInput, match=sentence):
            simulate_horizon_policy(**sampled | change)
        if change.keys() <= good.keys():
            with pytest.raises(InvalidInput, match=sentence):
                evaluate_horizon_policy(**good | change)
    too_small = HorizonTable(np.zeros((45, 2, 17)))
    with pytest.raises(InvalidInput, match="cover every oracle state and backlog"):
        evaluate_horizon_policy(MAIN, too_small)
