"""The eavesdropper that knows problem and policy: literal sums, the bound F4, and known figures.

The figures are those for the transition matrix of the paper's text, costs 1.8/0.8/0.3, 45 rounds,
16 updates, the exact policy and a uniformly distributed first oracle state.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from covertfl.decision.decoy_rule import ONE_DECOY, DecoyRule
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import (
    GreedyPolicy,
    HorizonTable,
    Observation,
    Policy,
    RandomPlacement,
)
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.eavesdroppers.change_point import find_fall_prob
from covertfl.eavesdroppers.eavesdropper import Means, Scheme, softmax
from covertfl.eavesdroppers.likelihood import HiddenDistribution, LikelihoodEavesdropper
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import HorizonSample, simulate_horizon_policy
from covertfl.evaluation.schedule import (
    ScheduleBound,
    action_log_likelihood,
    bound_best_eavesdropper,
    place_queries,
    trajectory_log_probs,
)
from covertfl.intervals import wilson_interval
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.minority import solve_minority
from tests.support.seen_queries import feed, follow_schedule

UNIFORM = np.full(3, 1.0 / 3.0)
NUM_RUNS = 2000


@cache
def main_problem() -> FiniteHorizon:
    problem = read_preset("sound/main").problem
    assert isinstance(problem, FiniteHorizon)
    return problem


def make_policy(kind: str) -> Policy:
    problem = main_problem()
    if kind == "optimal":
        return solve_horizon(problem).policy
    if kind == "minority":
        return solve_minority(problem).policy
    if kind == "random":
        return RandomPlacement(problem.updates)
    if kind == "greedy":
        return GreedyPolicy()
    table = np.random.default_rng(5).random((problem.rounds, 3, problem.updates + 1))
    table[:, :, 0] = 0.0
    return HorizonTable(table)


@cache
def draw_runs() -> HorizonSample:
    return simulate_horizon_policy(
        main_problem(),
        make_policy("optimal"),
        NUM_RUNS,
        generator=np.random.default_rng(2024),
        first=UNIFORM,
    )


@cache
def find_bound() -> ScheduleBound:
    return bound_best_eavesdropper(
        main_problem(),
        make_policy("optimal"),
        num_samples=3000,
        generator=np.random.default_rng(7),
        first=UNIFORM,
    )


@cache
def name_by_likelihood() -> FloatArray:
    """Return 1 where the true hypothesis has the higher likelihood, 0.5 where they tie."""
    problem, policy = main_problem(), make_policy("optimal")
    logs = trajectory_log_probs(problem, policy, draw_runs().actions, first=UNIFORM)
    return 0.5 * (1.0 + np.sign(logs[:, 1] - logs[:, 0]))


def as_seen(actions: FloatArray) -> list[int]:
    """Return the trajectories, numbered in the order of their first queries."""
    order = ["learn" if learns else "obfuscate" for learns in actions]
    names = list(dict.fromkeys(order))
    return [names.index(action) for action in order]


# --- likelihoods ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, UNIFORM, np.array([0.0, 0.0, 1.0])])
@pytest.mark.parametrize("kind", ["optimal", "minority", "random", "greedy", "table"])
def test_sequences_of_full_length_against_the_bound_s_recursion(
    kind: str, first: FloatArray | None
) -> None:
    problem, policy = main_problem(), make_policy(kind)
    drawn = simulate_horizon_policy(
        problem, policy, 4, generator=np.random.default_rng(1), first=first
    ).actions
    for actions in np.concatenate([drawn, ~drawn[:2]]):
        distribution = HiddenDistribution(Scheme(problem, policy, first=first))
        for learns in actions:
            distribution.step(bool(learns))
        (expected,) = action_log_likelihood(problem, policy, actions[np.newaxis], first=first)
        assert distribution.log_likelihood == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("every", [True, False])
def test_queries_placed_at_random_are_equally_likely_wherever_they_are(every: bool) -> None:
    """Also after the last update: learning with nothing owed loses no probability."""
    oracle = Oracle(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([0.4, 0.9]))
    problem = FiniteHorizon(oracle, np.ones(2), LearningCost("linear", 1.0), 6, 1)
    for placed in itertools.combinations(range(6), 3):
        distribution = HiddenDistribution(Scheme(problem, RandomPlacement(3), every))
        for number in range(6):
            distribution.step(number in placed)
        assert distribution.log_likelihood == pytest.approx(-math.log(20))


def make_coin_scheme(probs: list[float], decoys: DecoyRule = ONE_DECOY) -> Scheme:
    """One oracle state, no success: the probability of learning depends on the round alone."""
    oracle = Oracle(np.ones((1, 1)), np.zeros(1))
    problem = FiniteHorizon(oracle, np.ones(1), LearningCost("linear", 1.0), len(probs), 1)
    table = np.zeros((len(probs), 1, 2))
    table[:, 0, 1] = probs[::-1]  # by rounds left
    return Scheme(problem, HorizonTable(table), decoys=decoys)


def test_two_trajectories_worked_by_hand() -> None:
    scheme = make_coin_scheme([0.9, 0.2, 0.6])
    eavesdropper = feed(LikelihoodEavesdropper(Means(scheme=scheme)), follow_schedule([0, 1, 1]))
    first, second = 0.9 * 0.8 * 0.4, 0.1 * 0.2 * 0.6
    assert eavesdropper.belief() == pytest.approx(
        [first / (first + second), second / (first + second)]
    )
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [0.0, 0.0]


def test_three_trajectories_worked_by_hand() -> None:
    """The third one is spared a query once the second cannot be reached any more."""
    scheme = make_coin_scheme([0.2, 0.6, 0.3, 0.5], DecoyRule(2))
    listener = LikelihoodEavesdropper(Means(scheme=scheme))
    eavesdropper = feed(listener, follow_schedule([0, 0, 1, 2]))
    # True 1, lead 0: two of the lead against one in the last round.  True 2, lead 0: two against
    # one learning query that may follow.  Lead 1 or 2 may spare nothing, so 0 is not the true one.
    probs = np.array([0.0, 0.8 * 0.4 * 0.3 * 0.5, 0.8 * 0.4 * 0.7 * 0.5])
    assert eavesdropper.belief() == pytest.approx(probs / probs.sum())


@pytest.mark.parametrize(("count", "least"), [(2, 1), (3, 1), (3, 2), (3, 0)])
@pytest.mark.parametrize("kind", ["optimal", "minority", "greedy", "random"])
def test_several_decoys_against_the_bound_s_recursion(kind: str, count: int, least: int) -> None:
    problem, policy, rule = main_problem(), make_policy(kind), DecoyRule(count, least)
    if kind == "minority":
        policy = solve_minority(problem, decoys=rule).policy
    drawn = simulate_horizon_policy(problem, policy, 3, generator=np.random.default_rng(count))
    placed = place_queries(problem, policy, drawn, rule)
    logs = trajectory_log_probs(problem, policy, placed, decoys=rule)
    for row, expected in zip(placed.tolist(), logs, strict=True):
        names = list(dict.fromkeys(row))
        scheme = Scheme(problem, policy, decoys=rule)
        listener = LikelihoodEavesdropper(Means(scheme=scheme))
        order = [names.index(label) for label in row]
        belief = feed(listener, follow_schedule(order)).belief()
        assert belief == pytest.approx(softmax(expected[names]), abs=1e-9)


class Coin:
    """Learn with a probability of 0.4 in every state."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        shape = np.broadcast(observation.oracle_state, observation.backlog).shape
        return np.full(shape, 0.4)


def test_a_queue_s_decoys_take_turns() -> None:
    """After its first query the lead spares one; 2 has one query, so 0 or 1 is the true one."""
    oracle = Oracle(np.ones((1, 1)), np.ones(1))
    problem = QueueProblem(
        oracle, np.ones(1), LearningCost("linear", 1.0), arrival_prob=0.5, arrival_size=1, limit=9.0
    )
    scheme = Scheme(problem, Coin(), decoys=DecoyRule(2))
    listener = LikelihoodEavesdropper(Means(scheme=scheme))
    eavesdropper = feed(listener, follow_schedule([0, 1, 2, 1]))
    probs = np.array([0.4 * 0.6 * 0.6 * 0.6, 0.6 * 0.4 * 0.6 * 0.4, 0.0])
    assert eavesdropper.belief() == pytest.approx(probs / probs.sum())


def test_queries_that_no_rule_explains_are_judged_by_the_actions() -> None:
    scheme = make_coin_scheme([0.9, 0.2, 0.6, 0.5], DecoyRule(2))
    listener = LikelihoodEavesdropper(Means(scheme=scheme))
    eavesdropper = feed(listener, follow_schedule([0, 1, 2, 2]))
    probs = np.array(
        [0.9 * 0.8 * 0.4 * 0.5 / 2**3, 0.1 * 0.2 * 0.4 * 0.5 / 2**3, 0.1 * 0.8 * 0.6 * 0.5 / 2**2]
    )
    assert eavesdropper.belief() == pytest.approx(probs / probs.sum())


def test_one_trajectory_ties_and_impossible_schedules() -> None:
    coin = Means(scheme=make_coin_scheme([0.5, 0.5]))
    assert feed(LikelihoodEavesdropper(coin), follow_schedule([0])).belief().tolist() == [1.0]
    tied = feed(LikelihoodEavesdropper(coin), follow_schedule([0, 1]))
    assert tied.belief() == pytest.approx([0.5, 0.5])
    assert len(tied.estimate()) == 2
    certain = Means(scheme=make_coin_scheme([1.0, 1.0, 0.0]))
    named = feed(LikelihoodEavesdropper(certain), follow_schedule([0, 0, 1]))
    assert named.belief().tolist() == [1.0, 0.0]
    impossible = feed(LikelihoodEavesdropper(certain), follow_schedule([0, 1, 0]))
    assert impossible.belief().tolist() == [0.5, 0.5]


def test_the_scheme_is_needed() -> None:
    with pytest.raises(InvalidInput, match="needs the scheme"):
        LikelihoodEavesdropper(Means())


# --- success probabilities --------------------------------------------------------------------


def test_the_eavesdropper_is_the_likelihood_ratio() -> None:
    """Fed queries one by one, it agrees with the likelihood ratio of whole sequences."""
    scheme = Scheme(main_problem(), make_policy("optimal"), first=UNIFORM)
    for actions, named in zip(draw_runs().actions[:25], name_by_likelihood(), strict=False):
        order = as_seen(actions)
        belief = feed(LikelihoodEavesdropper(Means(scheme=scheme)), follow_schedule(order)).belief()
        assert belief.sum() == pytest.approx(1.0)
        true = order[int(np.argmax(actions))]
        if named != 0.5:
            assert (int(np.argmax(belief)) == true) == (named == 1.0)


def find_interval(named: FloatArray) -> tuple[float, float]:
    low, high = wilson_interval(float(named.sum()), len(named))
    return float(low), float(high)


def test_it_meets_the_bound() -> None:
    bound, (low, high) = find_bound(), find_interval(name_by_likelihood())
    assert low <= bound.high and bound.low <= high
    assert abs(name_by_likelihood().mean() - bound.value) < 0.02


def test_no_other_eavesdropper_by_schedule_beats_it() -> None:
    actions, bound = draw_runs().actions, find_bound()
    shares = actions.mean(axis=1)
    falls = np.array([find_fall_prob(row) - find_fall_prob(~row) for row in actions])
    rules = {
        "majority": 0.5 * (1.0 + np.sign(shares - 0.5)),
        "minority": 0.5 * (1.0 + np.sign(0.5 - shares)),
        "change-point": 0.5 * (1.0 + np.sign(falls)),
    }
    best = float(name_by_likelihood().mean())
    for name, named in rules.items():
        low, _ = find_interval(named)
        assert low <= bound.high, name
        assert low <= best, name


@pytest.mark.parametrize(
    ("name", "printed"), [("majority", 0.15), ("minority", 0.85), ("likelihood", 0.91)]
)
def test_success_of_naming_the_true_trajectory(name: str, printed: float) -> None:
    """Both figures are from 2000 runs, and the printed one is rounded."""
    shares = draw_runs().actions.mean(axis=1)
    named = {
        "majority": (shares > 0.5).astype(float),
        "minority": (shares < 0.5).astype(float),
        "likelihood": name_by_likelihood(),
    }[name]
    error = 1.96 * math.sqrt(2.0 * printed * (1.0 - printed) / NUM_RUNS)
    assert abs(float(named.mean()) - printed) <= error + 0.005


def test_half_of_the_runs_finish() -> None:
    assert float(np.mean(draw_runs().backlog_left == 0)) == pytest.approx(0.5, abs=0.04)


def test_most_runs_hold_a_repeat() -> None:
    """A learning query that failed, and another one after it: both send the same weights."""
    runs = draw_runs()
    failed = runs.actions & ~runs.successes
    later = runs.actions[:, ::-1].cumsum(axis=1)[:, ::-1] - runs.actions
    share = float(np.mean((failed & (later > 0)).any(axis=1)))
    assert share >= 0.94 - 1.96 * math.sqrt(0.94 * 0.06 / NUM_RUNS)


def test_who_knows_the_first_state_knows_all() -> None:
    """The policy is deterministic; 100% in 2000 runs."""
    runs, problem, policy = draw_runs(), main_problem(), make_policy("optimal")
    named = []
    for state in range(3):
        rows = runs.actions[runs.oracle_states[:, 0] == state]
        logs = trajectory_log_probs(problem, policy, rows, first=np.eye(3)[state])
        named += (logs[:, 1] > logs[:, 0]).tolist()
    assert np.mean(named) > 0.99


def test_an_exchangeable_schedule_says_nothing() -> None:
    problem = read_preset("sound/main").problem
    assert isinstance(problem, FiniteHorizon)
    scheme = Scheme(problem, solve_horizon(problem).policy, exchangeable=True)
    queries = follow_schedule([0, 0, 0, 1, 0, 2, 0, 3])
    eavesdropper = feed(LikelihoodEavesdropper(Means(scheme=scheme)), queries)
    assert eavesdropper.belief().tolist() == [0.25] * 4
