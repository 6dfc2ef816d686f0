"""Plans of a horizon: published numbers, advice, uncertainty of a fitted oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.arrays import FloatArray
from covertfl.planning import horizon
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve
from tests.support.presets import horizon_preset

SURE = cf.Oracle(np.ones((1, 1)), np.ones(1))


def plan(problem: Any, *, seed: int = 0) -> HorizonPlan:
    found = cf.plan(problem, seed=seed).details
    assert isinstance(found, HorizonPlan)
    return found


@cache
def plan_main() -> HorizonPlan:
    return plan("sound/main")


def test_printed_numbers_of_the_main_experiment() -> None:
    found = plan_main()
    assert found.minority == pytest.approx([0.409, 0.479, 0.640], abs=5e-4)
    assert found.prefix_minority == pytest.approx([0.317, 0.340, 0.374], abs=5e-4)
    assert found.rounds_needed == {0.9: 70, 0.95: 79, 0.99: 99}
    assert found.greedy_learning_queries == pytest.approx(39.2, abs=0.05)
    bound = found.best_eavesdropper
    assert bound.low <= 0.906 <= bound.high
    assert bound.high - bound.low < 0.02
    assert found.minority_interval is None


def test_the_seed_decides_the_samples() -> None:
    problem = replace(horizon_preset("sound/main"), rounds=20, updates=4)
    values = [plan(problem, seed=seed).best_eavesdropper.value for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


def small_plan(oracle: cf.Oracle, rounds: int, updates: int) -> HorizonPlan:
    privacy = np.ones(oracle.num_states)
    cost = cf.LearningCost("quadratic", 2.0)
    return plan(cf.FiniteHorizon(oracle, privacy, cost, rounds, updates))


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
            cf.Oracle(np.ones((1, 1)), np.zeros(1)),
            9,
            4,
            "4 updates in 9 rounds cannot be covert: no number of rounds tried gives 95%.",
        ),
        (
            cf.Oracle(np.ones((1, 1)), np.array([0.5])),
            3,
            1,
            "1 updates in 3 rounds cannot be both covert and certain: 50% at best; "
            "11 rounds give 95%.",
        ),
    ],
)
def test_advice(oracle: cf.Oracle, rounds: int, updates: int, advice: str) -> None:
    """With a sure oracle M updates need 2 M + 1 rounds; with g = 1/2 five tries give 97%."""
    assert small_plan(oracle, rounds, updates).advice == advice


def test_a_greedy_policy_that_never_finishes_has_no_number() -> None:
    assert small_plan(cf.Oracle(np.ones((1, 1)), np.zeros(1)), 5, 2).greedy_learning_queries is None


@pytest.mark.slow
def test_more_updates_than_could_be_tried_take_no_search() -> None:
    found = small_plan(SURE, 2, 2000)
    assert found.rounds_needed == {0.9: None, 0.95: None, 0.99: None}


def test_successes_too_rare_for_any_round_take_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[float] = []

    def search(*given: Any, **_others: Any) -> dict[float, int | None]:
        searched.extend(given[2])
        return {}

    monkeypatch.setattr(horizon, "rounds_needed", search)
    found = small_plan(cf.Oracle(np.ones((1, 1)), np.array([1e-4])), 60, 20)
    assert not searched
    assert found.rounds_needed == {0.9: None, 0.95: None, 0.99: None}
    # 0.0151 of 20 updates a round, 1200 rounds: 0.9 cannot be excluded, 0.95 can.
    small_plan(cf.Oracle(np.ones((1, 1)), np.array([0.0151])), 60, 20)
    assert searched == [0.9]


def test_a_reducible_oracle_is_refused() -> None:
    with pytest.raises(cf.InvalidInput, match="state 1 cannot be reached from state 0"):
        small_plan(cf.Oracle(np.eye(2), np.ones(2)), 5, 2)


def test_the_curve_passes_through_the_rounds_needed() -> None:
    found = plan_main()
    curve = compute_completion_curve(found)
    assert np.all(np.diff(curve) >= -1e-12)
    for prob, rounds in found.rounds_needed.items():
        assert rounds is not None
        assert curve[rounds] >= prob > curve[rounds - 1]
    distribution = np.array([3.0, 2.0, 2.0]) / 7.0
    assert curve[45] == pytest.approx(distribution @ found.minority, abs=1e-12)


# --- uncertainty --------------------------------------------------------------------------------


def measure_interval(visits: int, path: Path) -> FloatArray:
    """Plan with what `visits` rounds in each state would show, came they out as expected."""
    problem = cf.load_problem("sound/main")
    oracle = problem.oracle
    moves = np.rint(visits * oracle.transition).astype(int).tolist()
    outcomes = [[round(visits * prob), visits] for prob in oracle.success]
    path.write_text(
        f"[oracle]\ntransition = {oracle.transition.tolist()}\n"
        f"success = {oracle.success.tolist()}\n"
        '[cost]\nprivacy = [1.8, 0.8, 0.3]\nlearning = { shape = "quadratic", scale = 0.6 }\n'
        "[horizon]\nrounds = 25\nupdates = 8\n"
        f"[evidence]\ntransition_counts = {moves}\nsuccess_counts = {outcomes}\n"
    )
    found = plan(path)
    assert found.minority_interval is not None
    assert found.minority_interval.shape == (3, 2)
    low, high = found.minority_interval.T
    assert np.all((low >= 0.0) & (high <= 1.0))
    assert np.all((low < found.minority) & (found.minority < high))
    return np.asarray(high - low)


def test_the_interval_holds_the_estimate_and_shrinks_with_the_evidence(tmp_path: Path) -> None:
    """A hundred times the rounds make it about ten times as narrow."""
    few, many, most = (
        measure_interval(visits, tmp_path / "problem.toml") for visits in (100, 1000, 10_000)
    )
    assert np.all(few > 0.05)
    assert np.all(many < few) and np.all(most < many)
    assert few / most == pytest.approx(10.0, rel=0.4)
