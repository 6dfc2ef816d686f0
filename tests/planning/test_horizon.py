"""Plans of a horizon: published numbers, advice, uncertainty of a fitted oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.decision.problem_file import Evidence
from covertfl.errors import InvalidInput
from covertfl.planning import horizon
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve, plan_horizon
from tests.support.presets import horizon_preset

SURE = Oracle(np.ones((1, 1)), np.ones(1))


@cache
def plan_main() -> HorizonPlan:
    return plan_horizon(horizon_preset("sound/main"), generator=np.random.default_rng(0))


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


@pytest.mark.slow
def test_more_updates_than_could_be_tried_take_no_search() -> None:
    plan = small_plan(SURE, 2, 2000)
    assert plan.rounds_needed == {0.9: None, 0.95: None, 0.99: None}


def test_successes_too_rare_for_any_round_take_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[float] = []

    def search(*given: Any, **_others: Any) -> dict[float, int | None]:
        searched.extend(given[2])
        return {}

    monkeypatch.setattr(horizon, "rounds_needed", search)
    plan = small_plan(Oracle(np.ones((1, 1)), np.array([1e-4])), 60, 20)
    assert not searched
    assert plan.rounds_needed == {0.9: None, 0.95: None, 0.99: None}
    # 0.0151 of 20 updates a round, 1200 rounds: 0.9 cannot be excluded, 0.95 can.
    small_plan(Oracle(np.ones((1, 1)), np.array([0.0151])), 60, 20)
    assert searched == [0.9]


def test_a_reducible_oracle_is_refused() -> None:
    with pytest.raises(InvalidInput, match="state 1 cannot be reached from state 0"):
        small_plan(Oracle(np.eye(2), np.ones(2)), 5, 2)


def test_the_curve_passes_through_the_rounds_needed() -> None:
    plan = plan_main()
    curve = compute_completion_curve(plan)
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
        problem, generator=np.random.default_rng(0), evidence=evidence_of(problem.oracle, visits)
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
