"""The planner: printed numbers, the frontier, the inverse question, uncertainty carried through."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.decision.problem_file import Evidence, read_preset
from covertfl.errors import InvalidInput, NoSolution
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.planning.planner import (
    HorizonPlan,
    QueuePlan,
    completion_curve,
    find_limit_for_exposure,
    find_scale_for_exposure,
    plan_horizon,
    plan_queue,
)
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue

SURE = Oracle(np.ones((1, 1)), np.ones(1))


def horizon_preset(name: str) -> FiniteHorizon:
    problem = read_preset(name).problem
    assert isinstance(problem, FiniteHorizon)
    return problem


def queue_preset(name: str) -> QueueProblem:
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem


@cache
def plan_main() -> HorizonPlan:
    return plan_horizon(horizon_preset("sound/main"), generator=np.random.default_rng(0))


@cache
def plan_sound_queue() -> QueuePlan:
    return plan_queue(queue_preset("sound/queue"))


# --- horizon ------------------------------------------------------------------------------------


def test_printed_numbers_of_the_main_experiment() -> None:
    plan = plan_main()
    assert plan.minority == pytest.approx([0.409, 0.479, 0.640], abs=5e-4)
    assert plan.prefix_minority == pytest.approx([0.317, 0.340, 0.374], abs=5e-4)
    assert plan.rounds_needed == {0.9: 70, 0.95: 79, 0.99: 99}
    assert plan.greedy_learning_queries == pytest.approx(39.2, abs=0.05)
    bound = plan.best_eavesdropper
    assert bound.low <= 0.906 <= bound.high
    assert bound.high - bound.low < 0.02
    assert plan.minority_interval is None


def test_advice_of_the_main_experiment() -> None:
    assert plan_main().advice == (
        "16 updates in 45 rounds cannot be both covert and certain: 41 to 64% at best, "
        "depending on the first round; 79 rounds give 95%."
    )


def test_the_seed_decides_the_samples() -> None:
    problem = replace(horizon_preset("sound/main"), rounds=20, updates=4)
    values = [
        plan_horizon(problem, generator=np.random.default_rng(seed)).best_eavesdropper.value
        for seed in (1, 1, 2)
    ]
    assert values[0] == values[1] != values[2]


def small_plan(oracle: Oracle, rounds: int, updates: int) -> HorizonPlan:
    privacy = np.ones(oracle.num_states)
    problem = FiniteHorizon(oracle, privacy, LearningCost("quadratic", 2.0), rounds, updates)
    return plan_horizon(problem, generator=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("oracle", "rounds", "updates", "advice"),
    [
        (
            SURE,
            9,
            4,
            "4 updates in 9 rounds can be covert against an eavesdropper that counts queries: "
            "100% chance to finish at best.",
        ),
        (SURE, 8, 4, "4 updates in 8 rounds cannot be covert: 9 rounds give 95%."),
        (SURE, 1, 1, "1 updates in 1 rounds cannot be covert: 3 rounds give 95%."),
        (
            Oracle(np.ones((1, 1)), np.zeros(1)),
            9,
            4,
            "4 updates in 9 rounds cannot be covert: no number of rounds tried gives 95%.",
        ),
        (
            Oracle(np.ones((1, 1)), np.array([0.5])),
            3,
            1,
            "1 updates in 3 rounds cannot be both covert and certain: 50% at best; "
            "11 rounds give 95%.",
        ),
    ],
)
def test_advice(oracle: Oracle, rounds: int, updates: int, advice: str) -> None:
    """With a sure oracle M updates need 2 M + 1 rounds; with g = 1/2 five tries give 97%."""
    assert small_plan(oracle, rounds, updates).advice == advice


def test_a_greedy_policy_that_never_finishes_has_no_number() -> None:
    assert small_plan(Oracle(np.ones((1, 1)), np.zeros(1)), 5, 2).greedy_learning_queries is None


def test_more_updates_than_could_be_tried_take_no_search() -> None:
    plan = small_plan(SURE, 2, 2000)
    assert plan.rounds_needed == {0.9: None, 0.95: None, 0.99: None}


def test_a_reducible_oracle_is_refused() -> None:
    with pytest.raises(InvalidInput, match="state 1 cannot be reached from state 0"):
        small_plan(Oracle(np.eye(2), np.ones(2)), 5, 2)


def test_the_curve_passes_through_the_rounds_needed() -> None:
    plan = plan_main()
    curve = completion_curve(plan)
    assert np.all(np.diff(curve) >= -1e-12)
    for prob, rounds in plan.rounds_needed.items():
        assert rounds is not None
        assert curve[rounds] >= prob > curve[rounds - 1]
    distribution = np.array([3.0, 2.0, 2.0]) / 7.0
    assert curve[45] == pytest.approx(distribution @ plan.minority, abs=1e-12)


# --- uncertainty --------------------------------------------------------------------------------


def evidence_of(oracle: Oracle, visits: int) -> Evidence:
    """What `visits` rounds in each state would show if they came out exactly as expected."""
    moves = np.rint(visits * oracle.transition).astype(np.int64)
    successes = np.rint(visits * oracle.success).astype(np.int64)
    trials = np.full(oracle.num_states, visits)
    return Evidence(moves, np.stack([successes, trials], axis=1).astype(np.int64))


def interval_with(visits: int) -> np.ndarray:
    problem = replace(horizon_preset("sound/main"), rounds=25, updates=8)
    plan = plan_horizon(
        problem,
        generator=np.random.default_rng(0),
        evidence=evidence_of(problem.oracle, visits),
    )
    assert plan.minority_interval is not None
    assert plan.minority_interval.shape == (3, 2)
    low, high = plan.minority_interval.T
    assert np.all((low >= 0.0) & (high <= 1.0))
    assert np.all((low < plan.minority) & (plan.minority < high))
    return np.asarray(high - low)


def test_the_interval_holds_the_estimate_and_shrinks_with_the_evidence() -> None:
    """A hundred times the rounds make it about ten times as narrow."""
    few, many, most = (interval_with(visits) for visits in (100, 1000, 10_000))
    assert np.all(few > 0.05)
    assert np.all(many < few) and np.all(most < many)
    assert few / most == pytest.approx(10.0, rel=0.4)


# --- queue --------------------------------------------------------------------------------------


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
    with pytest.raises(NoSolution, match="cannot be kept up with"):
        find_limit_for_exposure(overloaded(), 0.9)


def test_a_buffer_that_loses_work_has_a_frontier_all_the_same() -> None:
    plan = plan_queue(replace(overloaded(), capacity=20, overflow_cost=5.0))
    assert not plan.stable
    assert plan.least_limit is not None and len(plan.frontier) >= 10


def test_a_limit_that_cannot_be_met() -> None:
    plan = plan_queue(queue_preset("sound/queue").with_limit(20.0))
    assert plan.advice == (
        "The learning limit of 20 cannot be met: the least is 20.75; at least 62.9% of the queries "
        "must be true."
    )
    assert all(point.limit > 20.75 for point in plan.frontier)


# --- the inverse question -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("sound/queue", 0.8),
        ("paper-code/queue", 0.6),
        ("sound/tracking-before", 0.4),
        ("sound/tracking-after", 0.3),
    ],
)
def test_the_limit_found_gives_the_exposure(name: str, target: float) -> None:
    problem = queue_preset(name)
    answer = find_limit_for_exposure(problem, target)
    assert (answer.target, answer.setting) == (target, "learning_limit")
    again = solve_queue(problem.with_limit(answer.value)).evaluation
    assert again.learn_fraction == pytest.approx(target, abs=1e-5)
    assert answer.exposure == pytest.approx(again.learn_fraction, abs=1e-9)
    assert answer.privacy_cost == pytest.approx(again.privacy_cost, rel=1e-9)


def test_the_privacy_limit_found_gives_the_exposure() -> None:
    problem = mirrored(queue_preset("sound/queue"), 0.77)
    answer = find_limit_for_exposure(problem, 0.75)
    assert answer.setting == "privacy_limit"
    again = solve_queue(problem.with_limit(answer.value)).evaluation
    assert again.learn_fraction == pytest.approx(0.75, abs=1e-5)


def test_a_light_queue_down_to_its_least_exposure() -> None:
    """The best state alone keeps up: loosening the limit stops at 4/19 of the queries."""
    problem = replace(queue_preset("sound/queue"), arrival_prob=0.05, limit=3.0)
    answer = find_limit_for_exposure(problem, 0.212)
    assert answer.exposure == pytest.approx(0.212, abs=1e-5)
    with pytest.raises(NoSolution, match=r"no learning_limit .* 20\.0%: .* more than 21\.1%"):
        find_limit_for_exposure(problem, 0.20)


def test_exposures_that_no_limit_gives() -> None:
    problem = queue_preset("sound/queue")
    with pytest.raises(NoSolution, match=r"62\.0%: a queue that keeps up sends more than 62\.9%"):
        find_limit_for_exposure(problem, 0.62)
    with pytest.raises(NoSolution, match=r"99\.9%: the optimal policies .* from .* to 9\d\.\d%"):
        find_limit_for_exposure(problem, 0.999)
    # A buffer that may lose work has no such floor, but a queue that is never full has a ceiling.
    with pytest.raises(NoSolution, match=r"no learning_limit gives an exposure of 95\.0%"):
        find_limit_for_exposure(queue_preset("sound/tracking-before"), 0.95)


def test_where_bad_rounds_are_cheap_a_looser_limit_means_more_true_queries() -> None:
    problem = replace(
        queue_preset("paper-code/queue"), privacy_cost=np.array([0.01, 0.8, 2.0]), arrival_prob=0.02
    )
    shares = [
        solve_queue(problem.with_limit(limit)).evaluation.learn_fraction for limit in (0.05, 0.4)
    ]
    assert shares[0] < shares[1]
    target = 0.5 * (shares[0] + shares[1])
    for limit in (0.05, 0.4):
        answer = find_limit_for_exposure(problem.with_limit(limit), target)
        assert answer.exposure == pytest.approx(target, abs=1e-5)


@pytest.mark.parametrize("target", [0.1, 0.25, 0.4, 0.6])
def test_the_scale_found_is_the_last_before_the_target(target: float) -> None:
    problem = horizon_preset("sound/main")
    answer = find_scale_for_exposure(problem, target)
    assert (answer.target, answer.setting) == (target, "scale")

    def exposure_at(scale: float) -> float:
        rescaled = replace(problem, learning_cost=replace(problem.learning_cost, scale=scale))
        return evaluate_horizon_policy(rescaled, solve_horizon(rescaled).policy).exposure

    assert answer.exposure == exposure_at(answer.value) <= target
    assert exposure_at(answer.value * (1.0 + 1e-9)) > target


def test_a_table_is_scaled_as_a_whole() -> None:
    problem = replace(
        horizon_preset("sound/main"),
        learning_cost=LearningCost("table", values=tuple(0.6 * y * y for y in range(17))),
    )
    factor = find_scale_for_exposure(problem, 0.4)
    scale = find_scale_for_exposure(horizon_preset("sound/main"), 0.4)
    assert 0.6 * factor.value == pytest.approx(scale.value, rel=1e-6)
    assert factor.exposure == pytest.approx(scale.exposure, abs=1e-9)


def test_exposures_that_no_scale_gives() -> None:
    with pytest.raises(NoSolution, match=r"no scale .* 95\.0%: however dear .* sends 7\d\.\d%"):
        find_scale_for_exposure(horizon_preset("sound/main"), 0.95)


@pytest.mark.parametrize("target", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_shares_that_are_none(target: float) -> None:
    with pytest.raises(InvalidInput, match="exposure must lie strictly between 0 and 1, got"):
        find_limit_for_exposure(queue_preset("sound/queue"), target)
    with pytest.raises(InvalidInput, match="exposure must lie strictly between 0 and 1, got"):
        find_scale_for_exposure(horizon_preset("sound/main"), target)
