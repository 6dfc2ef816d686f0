"""Formula F4: likelihoods against hidden paths, closed forms, enumeration against sampling."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.decoy_rule import DecoyRule
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import GreedyPolicy, Observation, Policy, RandomPlacement
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from covertfl.evaluation import schedule as schedule_bound
from covertfl.evaluation.horizon import simulate_horizon_policy
from covertfl.evaluation.schedule import (
    action_log_likelihood,
    bound_best_eavesdropper,
    exchangeable_bound,
    place_queries,
    trajectory_log_probs,
)
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.minority import solve_minority

pytestmark = pytest.mark.slow


def make_oracle(transition: list[list[float]], success: list[float]) -> Oracle:
    return Oracle(np.array(transition), np.array(success))


TEXT_ORACLE = make_oracle([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]], [0.1, 0.43, 0.95])


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
    logs = action_log_likelihood(problem, policy, sequences, first=first)
    assert np.exp(logs) == pytest.approx(literal, abs=1e-12)
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
    logs = action_log_likelihood(problem, Coin(0.3), actions)
    sent = actions.sum(axis=1)
    assert logs == pytest.approx(sent * math.log(0.3) + (3000 - sent) * math.log(0.7), rel=1e-10)


def test_impossible_sequences() -> None:
    problem = make_problem(4, 1, make_oracle([[1.0]], [1.0]))
    sequences = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    logs = action_log_likelihood(problem, GreedyPolicy(), sequences)
    assert logs.tolist() == [0.0, -np.inf, -np.inf]
    both = trajectory_log_probs(problem, GreedyPolicy(), sequences)
    assert both.tolist() == [[-np.inf, 0.0], [-np.inf] * 2, [0.0, -np.inf]]


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(20, 5)
    policy = solve_horizon(problem).policy
    actions = np.random.default_rng(0).random((50, 20)) < 0.3
    at_once = action_log_likelihood(problem, policy, actions)
    monkeypatch.setattr(schedule_bound, "BATCH_ENTRIES", 7 * 18)
    np.testing.assert_allclose(action_log_likelihood(problem, policy, actions), at_once, rtol=1e-12)
    assert action_log_likelihood(problem, policy, actions[:0]).shape == (0,)


Role = tuple[str, int]


def literal_schedules(
    problem: FiniteHorizon, policy: Policy, rule: DecoyRule, first: FloatArray
) -> dict[tuple[Role, ...], float]:
    """Play every hidden path with the rule for decoys as docs/decoys.md words it."""
    oracle, found = problem.oracle, dict[tuple[Role, ...], float]()

    def learns_again(left: int, backlog: int, k: int) -> bool:
        return any(
            float(policy.learn_prob(Observation(o, backlog, 0, n, k))) > 0.0
            for n in range(1, left)
            for o in range(oracle.num_states)
        )

    def choose(left: int, backlog: int, roles: tuple[Role, ...]) -> Role:
        k, n = roles.count(("true", 0)), roles.count(("lead", 0))
        served = len(roles) - k - n
        if served == (rule.num_decoys - 1) * rule.least_queries:
            return ("lead", 0)
        most = left - 1 if learns_again(left, backlog, k) else 0
        if hasattr(policy, "budget"):
            most = min(most, policy.budget - k)
        is_sure = n > k + most or n + left < k
        return ("other", served // rule.least_queries) if is_sure else ("lead", 0)

    def play(left: int, state: int, backlog: int, roles: tuple[Role, ...], prob: float) -> None:
        if left == 0 or prob == 0.0:
            found[roles] = found.get(roles, 0.0) + prob
            return
        k = roles.count(("true", 0))
        p = float(policy.learn_prob(Observation(state, backlog, 0, left, k)))
        g = float(oracle.success[state]) if backlog else 0.0
        decoy = choose(left, backlog, roles)
        for after, step in enumerate(oracle.transition[state].tolist()):
            here = prob * step
            play(left - 1, after, backlog, (*roles, decoy), here * (1.0 - p))
            play(left - 1, after, backlog, (*roles, ("true", 0)), here * p * (1.0 - g))
            play(left - 1, after, backlog - 1, (*roles, ("true", 0)), here * p * g)

    for state, weight in enumerate(first.tolist()):
        play(problem.rounds, state, problem.updates, (), weight)
    return found


def literal_success(schedules: dict[tuple[Role, ...], float], num_decoys: int) -> float:
    """Name the likeliest trajectory of each sequence, all namings of the labels equally likely."""
    joint: dict[tuple[int, ...], list[float]] = {}
    for roles, prob in schedules.items():
        names: dict[Role, int] = {role: n for n, role in enumerate(dict.fromkeys(roles))}
        probs = joint.setdefault(tuple(names[role] for role in roles), [0.0] * (num_decoys + 1))
        if ("true", 0) in names:
            probs[names["true", 0]] += prob
        else:
            for label in range(len(names), num_decoys + 1):
                probs[label] += prob / (num_decoys + 1 - len(names))
    return sum(max(probs) for probs in joint.values())


RULES = [(1, 1), (2, 0), (2, 1), (2, 2), (3, 1), (3, 2)]


@pytest.mark.parametrize(("num_decoys", "least"), RULES)
@pytest.mark.parametrize("kind", ["table", "optimal", "minority", "greedy", "random"])
def test_several_decoys_against_every_hidden_path(kind: str, num_decoys: int, least: int) -> None:
    rule = DecoyRule(num_decoys, least)
    problem, table, first = random_case(num_decoys + 10 * least, 5)
    policies: dict[str, Policy] = {
        "table": table,
        "optimal": solve_horizon(problem).policy,
        "minority": solve_minority(problem, decoys=rule).policy,
        "greedy": GreedyPolicy(),
        "random": RandomPlacement(2),
    }
    policy = policies[kind]
    literal = literal_success(literal_schedules(problem, policy, rule, first), num_decoys)
    bound = bound_best_eavesdropper(
        problem, policy, num_samples=2, generator=np.random.default_rng(0), first=first, decoys=rule
    )
    assert bound.exact and bound.value == pytest.approx(literal, abs=1e-12)


@pytest.mark.parametrize("kind", ["optimal", "minority"])
def test_sampling_agrees_with_enumeration_for_several_decoys(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, problem = DecoyRule(2, 1), make_problem(7, 2)
    policy: Policy = solve_horizon(problem).policy
    if kind == "minority":
        policy = solve_minority(problem, decoys=rule).policy
    generator = np.random.default_rng(3)
    exact = bound_best_eavesdropper(
        problem, policy, num_samples=2, generator=generator, decoys=rule
    )
    monkeypatch.setattr(schedule_bound, "MAX_ENUMERATED", 0)
    sampled = bound_best_eavesdropper(
        problem, policy, num_samples=4000, generator=generator, decoys=rule
    )
    assert exact.exact and not sampled.exact
    assert sampled.low <= exact.value <= sampled.high


def test_placed_queries_have_the_distribution_of_the_rule() -> None:
    rule, problem = DecoyRule(3, 1), make_problem(6, 2)
    policy, first = solve_horizon(problem).policy, np.full(3, 1.0 / 3.0)
    literal = literal_schedules(problem, policy, rule, first)
    sample = simulate_horizon_policy(
        problem, policy, 20_000, generator=np.random.default_rng(5), first=first
    )
    placed = place_queries(problem, policy, sample, rule)
    roles = {0: ("true", 0), 1: ("lead", 0), 2: ("other", 0), 3: ("other", 1)}
    found: dict[tuple[Role, ...], int] = {}
    for row in placed.tolist():
        key = tuple(roles[label] for label in row)
        found[key] = found.get(key, 0) + 1
    assert set(found) <= {key for key, prob in literal.items() if prob > 0.0}
    for key, prob in literal.items():
        assert abs(found.get(key, 0) / 20_000 - prob) < 5.0 * math.sqrt(prob / 20_000) + 1e-12


@pytest.mark.parametrize("num_decoys", [1, 2, 4])
def test_a_round_that_tells_nothing_leaves_a_guess(num_decoys: int) -> None:
    """The truth with probability 1/K, else a lead that may be any decoy: exchangeable."""
    bound = bound_best_eavesdropper(
        make_problem(1, 1),
        Coin(1.0 / (num_decoys + 1)),
        num_samples=2,
        generator=np.random.default_rng(0),
        decoys=DecoyRule(num_decoys),
    )
    assert bound.value == pytest.approx(exchangeable_bound(num_decoys + 1))


def name_by_count(placed: IntArray, num_decoys: int) -> FloatArray:
    """Return 1 where (6) names the true trajectory, 0.5 in a tie."""
    counts = np.stack([(placed == label).sum(axis=1) for label in range(num_decoys + 1)])
    lead = counts[1:].max(axis=0)
    return np.asarray(0.5 * ((counts[0] > lead).astype(float) + (counts[0] >= lead)))


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("kind", ["optimal", "greedy", "coin"])
def test_several_decoys_are_named_in_the_same_runs_as_one(kind: str, least: int) -> None:
    problem = make_problem(45, 16)
    policies: dict[str, Policy] = {
        "optimal": solve_horizon(problem).policy,
        "greedy": GreedyPolicy(),
        "coin": Coin(0.48),
    }
    policy = policies[kind]
    sample = simulate_horizon_policy(problem, policy, 2000, generator=np.random.default_rng(7))
    alone = name_by_count(place_queries(problem, policy, sample, DecoyRule()), 1)
    assert 0.02 < alone.mean() < 0.98
    for count in (2, 3, 5):
        placed = place_queries(problem, policy, sample, DecoyRule(count, least))
        assert np.array_equal(name_by_count(placed, count), alone)
        assert np.array_equal(placed == 0, sample.actions)
        others = np.stack([(placed == label).sum(axis=1) for label in range(2, count + 1)])
        assert others.max() == least  # some runs serve them, none more than it should
    even = 1 + np.random.default_rng(8).integers(3, size=sample.actions.shape)
    assert name_by_count(np.where(sample.actions, 0, even), 3).mean() > alone.mean() + 0.02


@pytest.mark.parametrize(("count", "least"), [(1, 1), (2, 1), (3, 1), (3, 4), (5, 2)])
@pytest.mark.parametrize("every_prefix", [False, True])
def test_minority_is_never_named_whatever_the_decoys(
    count: int, least: int, every_prefix: bool
) -> None:
    problem, rule = make_problem(45, 16), DecoyRule(count, least)
    policy = solve_minority(problem, every_prefix=every_prefix, decoys=rule).policy
    sample = simulate_horizon_policy(problem, policy, 2000, generator=np.random.default_rng(9))
    placed = place_queries(problem, policy, sample, rule)
    counts = np.stack([np.cumsum(placed == label, axis=1) for label in range(count + 1)])
    ahead = counts[0] < counts[1:].max(axis=0)
    assert np.all(ahead if every_prefix else ahead[:, -1])
    assert np.all(counts[2:, :, -1] == least)  # every reserve is served by the end


def test_exchangeable_trajectories() -> None:
    assert [exchangeable_bound(k) for k in (1, 2, 4)] == [1.0, 0.5, 0.25]
    with pytest.raises(InvalidInput, match="num_trajectories must be a whole number of at least 1"):
        exchangeable_bound(0)


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
        action_log_likelihood(problem, Coin(0.5), [[0, 1, 0]])
    with pytest.raises(InvalidInput, match="must be 0"):
        action_log_likelihood(problem, Coin(0.5), [[0, 1, 0, 2]])
