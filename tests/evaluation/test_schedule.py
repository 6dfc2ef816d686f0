"""Formula F4: likelihoods against hidden paths, closed forms, enumeration against sampling."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import GreedyPolicy, Observation, Policy, RandomPlacement
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from covertfl.evaluation import schedule as schedule_bound
from covertfl.evaluation.schedule import (
    bound_best_eavesdropper,
    guessing_bound,
    trajectory_log_probs,
)
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.minority import solve_minority
from tests.support.paper_queues import TEXT_ORACLE

pytestmark = pytest.mark.slow


def make_oracle(transition: list[list[float]], success: list[float]) -> Oracle:
    return Oracle(np.array(transition), np.array(success))


def make_problem(rounds: int, updates: int, oracle: Oracle = TEXT_ORACLE) -> FiniteHorizon:
    costs = np.linspace(1.8, 0.3, oracle.num_states)
    if oracle.num_states == 3:
        costs = np.array([1.8, 0.8, 0.3])
    return FiniteHorizon(oracle, costs, LearningCost("quadratic", 0.6), rounds, updates)


@dataclass(frozen=True)
class Coin:
    """Learn with the same probability in every state."""

    prob: float

    def learn_prob(self, observation: Observation) -> FloatArray:
        return np.full(np.shape(observation.oracle_state), self.prob)


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


def random_case(seed: int, rounds: int) -> tuple[FiniteHorizon, FullTable, FloatArray]:
    generator = np.random.default_rng(seed)
    transition = generator.dirichlet(np.ones(2), size=2)
    oracle = Oracle(transition / transition.sum(axis=1, keepdims=True), generator.random(2))
    table = np.clip(generator.uniform(-0.2, 1.2, (rounds, 2, 3, rounds + 1)), 0.0, 1.0)
    return make_problem(rounds, 2, oracle), FullTable(table), generator.dirichlet(np.ones(2))


def literal_prob(
    problem: FiniteHorizon, policy: Policy, actions: IntArray, first: FloatArray
) -> float:
    """Sum over every hidden path of oracle states and successes."""
    oracle, total = problem.oracle, 0.0
    for states in itertools.product(range(oracle.num_states), repeat=problem.rounds):
        for luck in itertools.product((0, 1), repeat=problem.rounds):
            prob, backlog, sent = float(first[states[0]]), problem.updates, 0
            for t, (o, u, s) in enumerate(zip(states, actions, luck, strict=True)):
                if t:
                    prob *= float(oracle.transition[states[t - 1], o])
                p = float(policy.learn_prob(Observation(o, backlog, 0, problem.rounds - t, sent)))
                prob *= p if u else 1.0 - p
                g = float(oracle.success[o])
                prob *= g if s else 1.0 - g
                backlog -= u and s and backlog > 0
                sent += u
            total += prob
    return total


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_likelihoods_and_bound_against_every_hidden_path(seed: int, rounds: int) -> None:
    problem, policy, first = random_case(seed, rounds)
    sequences = np.array(list(itertools.product((0, 1), repeat=rounds)))
    literal = np.array([literal_prob(problem, policy, row, first) for row in sequences])
    logs = trajectory_log_probs(problem, policy, sequences, first=first)
    assert np.exp(logs[:, 0]) == pytest.approx(literal, abs=1e-12)
    assert np.exp(logs[:, 1]) == pytest.approx(literal[::-1], abs=1e-12)
    best_guess = 0.5 * np.maximum(literal, literal[::-1]).sum()  # (1 + TV)/2, by its meaning
    bound = bound_best_eavesdropper(
        problem, policy, num_samples=2, generator=np.random.default_rng(0), first=first
    )
    assert bound.value == bound.low == bound.high == pytest.approx(best_guess, abs=1e-12)
    assert bound.exact and bound.num_samples == 2**rounds


@pytest.mark.parametrize("make_policy", ["optimal", "minority", "random", "coin"])
def test_sampling_agrees_with_enumeration(
    make_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(11, 4)
    policies: dict[str, Policy] = {
        "optimal": solve_horizon(problem).policy,
        "minority": solve_minority(problem).policy,
        "random": RandomPlacement(4),
        "coin": Coin(0.4),
    }
    policy = policies[make_policy]
    exact = bound_best_eavesdropper(
        problem, policy, num_samples=2, generator=np.random.default_rng(0)
    )
    monkeypatch.setattr(schedule_bound, "MAX_ENUMERATED", 0)
    sampled = [
        bound_best_eavesdropper(
            problem, policy, num_samples=1500, generator=np.random.default_rng(seed)
        )
        for seed in range(20)
    ]
    assert exact.exact and not any(bound.exact for bound in sampled)
    assert all(0.5 <= bound.low <= bound.value <= bound.high <= 1.0 for bound in sampled)
    assert sum(bound.low <= exact.value <= bound.high for bound in sampled) >= 17
    assert np.mean([bound.value for bound in sampled]) == pytest.approx(exact.value, abs=0.01)


def test_independent_coins_in_closed_form() -> None:
    n, p = 45, 0.45
    best_guess = 0.5 * sum(
        math.comb(n, k) * max(p**k * (1 - p) ** (n - k), p ** (n - k) * (1 - p) ** k)
        for k in range(n + 1)
    )
    bound = bound_best_eavesdropper(
        make_problem(n, 16), Coin(p), num_samples=4000, generator=np.random.default_rng(1)
    )
    assert not bound.exact
    assert bound.low <= best_guess <= bound.high
    assert bound.high - bound.low < 0.02


@pytest.mark.parametrize("rounds", [6, 45])
def test_a_fair_coin_gives_nothing_away(rounds: int) -> None:
    bound = bound_best_eavesdropper(
        make_problem(rounds, 4), Coin(0.5), num_samples=500, generator=np.random.default_rng(1)
    )
    assert bound.value == pytest.approx(0.5, abs=1e-12)
    assert bound.low == pytest.approx(0.5, abs=1e-12)
    assert bound.high < 0.505


@pytest.mark.parametrize("rounds", [6, 45])
def test_always_learning_gives_all_away(rounds: int) -> None:
    bound = bound_best_eavesdropper(
        make_problem(rounds, 4), Coin(1.0), num_samples=500, generator=np.random.default_rng(1)
    )
    assert (bound.value, bound.high) == (1.0, 1.0)
    # 500 equal terms do not prove the rest: 0.025^(1/500) = 0.99265 of them at least are equal.
    assert bound.low == (1.0 if bound.exact else pytest.approx(0.5 * (1.0 + 0.025 ** (1 / 500))))


def test_the_papers_policy_is_named_nine_times_in_ten() -> None:
    problem = make_problem(45, 16)
    policy = solve_horizon(problem).policy
    bound = bound_best_eavesdropper(
        problem,
        policy,
        num_samples=4000,
        generator=np.random.default_rng(2),
        first=np.full(3, 1.0 / 3.0),
    )
    assert bound.value == pytest.approx(0.91, abs=0.01)
    assert 0.0 < bound.high - bound.low < 0.01
    known = bound_best_eavesdropper(
        problem, policy, num_samples=500, generator=np.random.default_rng(2), first=[0.0, 0.0, 1.0]
    )
    assert known.value > 0.995


def test_long_sequences_do_not_underflow() -> None:
    problem = make_problem(3000, 2)
    actions = np.random.default_rng(0).random((3, 3000)) < 0.5
    logs = trajectory_log_probs(problem, Coin(0.3), actions)
    sent = actions.sum(axis=1)
    expected = sent * math.log(0.3) + (3000 - sent) * math.log(0.7)
    assert logs[:, 0] == pytest.approx(expected, rel=1e-10)


def test_impossible_sequences() -> None:
    problem = make_problem(4, 1, make_oracle([[1.0]], [1.0]))
    sequences = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    logs = trajectory_log_probs(problem, GreedyPolicy(), sequences)
    assert logs.tolist() == [[0.0, -np.inf], [-np.inf] * 2, [-np.inf, 0.0]]


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(20, 5)
    policy = solve_horizon(problem).policy
    actions = np.random.default_rng(0).random((50, 20)) < 0.3
    at_once = trajectory_log_probs(problem, policy, actions)
    monkeypatch.setattr(schedule_bound, "BATCH_ENTRIES", 7 * 18)
    np.testing.assert_allclose(trajectory_log_probs(problem, policy, actions), at_once, rtol=1e-12)
    assert trajectory_log_probs(problem, policy, actions[:0]).shape == (0, 2)


def test_exchangeable_trajectories() -> None:
    assert [guessing_bound(k) for k in (1, 2, 4)] == [1.0, 0.5, 0.25]
    with pytest.raises(InvalidInput, match="num_trajectories must be a whole number of at least 1"):
        guessing_bound(0)


def test_refusals() -> None:
    problem = make_problem(4, 1)
    good: dict[str, Any] = {"num_samples": 10, "generator": np.random.default_rng(0)}
    changes: list[tuple[dict[str, Any], str]] = [
        *(({"num_samples": wrong}, "num_samples must be a") for wrong in (1, "10", 2.5, None)),
        ({"generator": None}, "generator must be of type Generator, got None"),
        ({"policy": None}, "policy must have a method learn_prob, got None"),
        ({"problem": None}, "problem must be of type FiniteHorizon, got None"),
    ]
    for change, sentence in changes:
        arguments: dict[str, Any] = {"problem": problem, "policy": Coin(0.5)} | good | change
        with pytest.raises(InvalidInput, match=sentence):
            bound_best_eavesdropper(**arguments)
    with pytest.raises(InvalidInput, match="rows of 4 actions"):
        trajectory_log_probs(problem, Coin(0.5), [[0, 1, 0]])
    with pytest.raises(InvalidInput, match="must be 0"):
        trajectory_log_probs(problem, Coin(0.5), [[0, 1, 0, 2]])
