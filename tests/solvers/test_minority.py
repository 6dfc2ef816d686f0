"""Formula F5: its printed numbers, a search over whole histories, enumeration, and the policy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import evaluate_horizon_policy, simulate_horizon_policy
from covertfl.solvers.minority import (
    completion_by_rounds,
    completion_by_updates,
    completion_probs,
    minority_budget,
    rounds_needed,
    solve_minority,
)
from tests.support.paper_queues import TEXT_ORACLE


def make_oracle(transition: list[list[float]], success: list[float]) -> Oracle:
    return Oracle(np.array(transition), np.array(success))


SUCCESS = [0.1, 0.43, 0.95]
CODE_ORACLE = make_oracle([[0.7, 0.3, 0.0], [0.15, 0.7, 0.15], [0.0, 0.15, 0.85]], SUCCESS)


def make_problem(oracle: Oracle, rounds: int, updates: int) -> FiniteHorizon:
    costs = np.ones(oracle.num_states)
    return FiniteHorizon(oracle, costs, LearningCost("quadratic", 0.6), rounds, updates)


@st.composite
def oracles(draw: st.DrawFn, largest: int = 3) -> Oracle:
    num_states = draw(st.integers(1, largest))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    transition = generator.dirichlet(np.ones(num_states), size=num_states)
    success = generator.random(num_states)
    success[generator.random(num_states) < 0.15] = draw(st.sampled_from([0.0, 1.0]))
    return Oracle(transition / transition.sum(axis=1, keepdims=True), success)


def search_histories(
    oracle: Oracle,
    updates: int,
    rounds: int,
    state: int,
    *,
    every_prefix: bool,
    sent: int = 0,
    done: int = 0,
    t: int = 1,
) -> float:
    """Best probability from round t on, by trying both actions after every single history."""
    if t > rounds:
        return float(done >= updates)
    options = []
    for learns in (0, 1):
        k = sent + learns
        if learns and 2 * k >= (t if every_prefix else rounds):
            continue
        g = float(oracle.success[state]) if learns else 0.0
        prob = 0.0
        for succeeds, weight in ((1, g), (0, 1.0 - g)):
            for after, step in enumerate(oracle.transition[state].tolist()):
                if weight * step > 0.0:
                    prob += (weight * step) * search_histories(
                        oracle, updates, rounds, after,
                        every_prefix=every_prefix, sent=k, done=done + succeeds, t=t + 1,
                    )  # fmt: skip
        options.append(prob)
    return max(options)


@given(oracles(largest=2), st.integers(1, 3), st.integers(1, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_history_dependent_policy_does_better(
    oracle: Oracle, updates: int, rounds: int, every_prefix: bool
) -> None:
    solution = solve_minority(make_problem(oracle, rounds, updates), every_prefix=every_prefix)
    searched = [
        search_histories(oracle, updates, rounds, state, every_prefix=every_prefix)
        for state in range(oracle.num_states)
    ]
    assert solution.finish_probs == pytest.approx(searched, abs=1e-12)


def test_completion_by_updates() -> None:
    by_updates = completion_by_updates(TEXT_ORACLE, 6, 14)
    separate = [completion_probs(TEXT_ORACLE, m, 14) for m in range(1, 7)]
    assert pytest.approx(np.array([np.ones(3), *separate]), abs=1e-12) == by_updates.T


@dataclass(frozen=True)
class StoppingTable:
    """One learning query at most, at the first marked (rounds left, oracle state)."""

    marks: FloatArray

    def learn_prob(self, observation: Observation) -> FloatArray:
        marked = self.marks[np.asarray(observation.rounds_left) - 1, observation.oracle_state]
        idle = (np.asarray(observation.learning_queries) > 0) | (
            np.asarray(observation.backlog) == 0
        )
        return np.where(idle, 0.0, marked)


def test_one_update_against_every_deterministic_policy() -> None:
    oracle = make_oracle([[0.6, 0.4], [0.7, 0.3]], [0.35, 0.8])
    problem = make_problem(oracle, 4, 1)
    first = np.array([0.25, 0.75])
    best = max(
        evaluate_horizon_policy(
            problem, StoppingTable(np.reshape(marks, (4, 2))), first=first
        ).covert_finish_prob
        for marks in itertools.product((0.0, 1.0), repeat=8)
    )
    assert first @ completion_probs(oracle, 1, 4) == pytest.approx(best, abs=1e-12)


def test_printed_probabilities() -> None:
    assert completion_probs(TEXT_ORACLE, 16, 45) == pytest.approx([0.409, 0.479, 0.640], abs=5e-4)
    assert completion_probs(TEXT_ORACLE, 16, 45, every_prefix=True) == pytest.approx(
        [0.317, 0.340, 0.374], abs=5e-4
    )
    code = completion_probs(CODE_ORACLE, 16, 45)
    assert (code[0], code[2]) == pytest.approx((0.63, 0.82), abs=5e-3)


@pytest.mark.parametrize(
    ("updates", "expected"), [(16, (70, 79, 99)), (20, (83, 93, 114)), (30, (115, 127, 151))]
)
def test_printed_rounds_needed(updates: int, expected: tuple[int, int, int]) -> None:
    needed = rounds_needed(TEXT_ORACLE, updates, max_rounds=1000)
    assert needed == dict(zip((0.9, 0.95, 0.99), expected, strict=True))


@given(oracles(), st.integers(1, 4), st.integers(1, 9), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_policy_reaches_the_chance_and_keeps_the_minority(
    oracle: Oracle, updates: int, rounds: int, every_prefix: bool
) -> None:
    problem = make_problem(oracle, rounds, updates)
    solution = solve_minority(problem, every_prefix=every_prefix)
    for state in range(oracle.num_states):
        evaluation = evaluate_horizon_policy(
            problem, solution.policy, first=np.eye(oracle.num_states)[state]
        )
        assert evaluation.finish_prob == pytest.approx(solution.finish_probs[state], abs=1e-10)
        assert evaluation.minority_prob == pytest.approx(1.0, abs=1e-12)
        assert evaluation.covert_finish_prob == pytest.approx(evaluation.finish_prob, abs=1e-12)


@pytest.mark.parametrize("every_prefix", [False, True])
def test_simulated_runs(every_prefix: bool) -> None:
    problem = make_problem(TEXT_ORACLE, 45, 16)
    solution = solve_minority(problem, every_prefix=every_prefix)
    sample = simulate_horizon_policy(
        problem, solution.policy, 20_000, generator=np.random.default_rng(5)
    )
    prob = float(compute_stationary_distribution(TEXT_ORACLE) @ solution.finish_probs)
    finished = float((sample.backlog_left == 0).mean())
    assert abs(finished - prob) < 4.0 * np.sqrt(prob * (1.0 - prob) / 20_000)
    sent = sample.actions.cumsum(axis=1)
    rounds = np.arange(1, 46)
    if every_prefix:
        assert np.all(2 * sent < rounds)
    else:
        assert np.all(2 * sent[:, -1] < 45)
        assert np.any(2 * sent >= rounds)  # the looser demand is used


@given(oracles(), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_one_pass_serves_every_number_of_rounds(oracle: Oracle, updates: int) -> None:
    by_rounds = completion_by_rounds(oracle, updates, 15)
    distribution = compute_stationary_distribution(oracle)
    separate = [distribution @ completion_probs(oracle, updates, rounds) for rounds in range(1, 16)]
    assert by_rounds == pytest.approx([0.0, *separate], abs=1e-12)
    assert np.all(np.diff(by_rounds) >= -1e-12)
    for level in (0.3, 0.9):
        reached = np.flatnonzero(by_rounds >= level)
        expected = int(reached[0]) if len(reached) else None
        assert rounds_needed(oracle, updates, (level,), max_rounds=15) == {level: expected}


def test_prefix_minority_is_the_harder_demand() -> None:
    ending = completion_probs(TEXT_ORACLE, 5, 20)
    assert np.all(completion_probs(TEXT_ORACLE, 5, 20, every_prefix=True) < ending)


def test_sure_success_by_hand() -> None:
    # With g = 1 the updates fit exactly if they fit into the budget (N - 1) // 2.
    sure = make_oracle([[1.0]], [1.0])
    assert [minority_budget(rounds) for rounds in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]
    assert completion_by_rounds(sure, 2, 7).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert completion_probs(sure, 2, 5, every_prefix=True).tolist() == [1.0]
    assert rounds_needed(sure, 3, (1.0, 0.5), max_rounds=100) == {1.0: 7, 0.5: 7}


def test_hopeless_states_obfuscate_and_the_budget_is_never_exceeded() -> None:
    solution = solve_minority(make_problem(TEXT_ORACLE, 9, 3))
    learn = solution.policy.learn
    n, _, backlog, budget = np.indices(learn.shape)
    assert learn.any()
    assert not learn[(backlog > n + 1) | (backlog > budget) | (backlog == 0)].any()
    spent = Observation(
        oracle_state=np.arange(3)[:, None],
        backlog=np.arange(4),
        rounds_left=1,
        learning_queries=np.array([4, 5, 6, 9]),
    )
    assert solution.policy.budget == 4
    assert solution.policy.learn_prob(spent).tolist() == [[0.0] * 4] * 3


def test_the_policy_answers_integers_and_arrays_alike() -> None:
    policy = solve_minority(make_problem(TEXT_ORACLE, 9, 3)).policy
    table = policy.learn_prob(
        Observation(np.arange(3)[:, None], np.arange(4), rounds_left=4, learning_queries=2)
    )
    assert table.shape == (3, 4)
    single = policy.learn_prob(Observation(2, 1, rounds_left=4, learning_queries=2))
    assert single.shape == () and single == table[2, 1] == 1.0


def test_refusals() -> None:
    policy = solve_minority(make_problem(TEXT_ORACLE, 9, 3)).policy
    with pytest.raises(InvalidInput, match=r"rounds_left must lie in 1\.\.9 .* got 0"):
        policy.learn_prob(Observation(0, 1))
    with pytest.raises(InvalidInput, match=r"backlog must lie in 0\.\.3 .* got 4"):
        policy.learn_prob(Observation(0, 4, rounds_left=9))
    with pytest.raises(InvalidInput, match=r"oracle_state must lie in 0\.\."):
        policy.learn_prob(Observation(7, 1, rounds_left=1))
    with pytest.raises(InvalidInput, match="rounds must be a whole number of at least 1, got 0"):
        completion_probs(TEXT_ORACLE, 3, 0)
    with pytest.raises(InvalidInput, match="updates must be a whole number of at least 1, got 0"):
        completion_probs(TEXT_ORACLE, 0, 3)
    with pytest.raises(InvalidInput, match=r"finish_probs must lie in \(0, 1\], got 1.5"):
        rounds_needed(TEXT_ORACLE, 3, (1.5,), max_rounds=9)
    with pytest.raises(InvalidInput, match="max_rounds must be a whole number of at least 1"):
        rounds_needed(TEXT_ORACLE, 3, max_rounds=0)
    with pytest.raises(InvalidInput, match="max_rounds must be a whole number of at least 1"):
        completion_by_rounds(TEXT_ORACLE, 3, 0)
    with pytest.raises(InvalidInput, match="at most 1,000,000,000 states, got 150,150,"):
        solve_minority(make_problem(TEXT_ORACLE, 10_000, 1000))


def test_rounds_that_do_not_suffice() -> None:
    assert rounds_needed(TEXT_ORACLE, 16, (0.5, 0.99), max_rounds=60) == {0.5: 46, 0.99: None}
    never = make_oracle([[0.5, 0.5], [0.5, 0.5]], [0.0, 0.0])
    assert rounds_needed(never, 1, (0.1,), max_rounds=20) == {0.1: None}
