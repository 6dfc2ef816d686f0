"""Bounds on the noise: formulas F1, F2 and F5 evaluated one by one, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.decision.noise import NoiseChoice, Step
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.errors import InvalidInput
from covertfl.planning.noise import plan_noise
from covertfl.solvers.minority import completion_probs
from tests.support.presets import horizon_preset

SUCCESS = ((0.05, 0.2, 0.6), (0.1, 0.43, 0.95), (0.4, 0.8, 1.0))
PROBLEM = horizon_preset("sound/main")
CHOICE = NoiseChoice((0.5, 0.8, 1.1), SUCCESS, gap=0.9, smoothness=1.5, epsilon=0.4)


def finish(success: tuple[float, ...], updates: int) -> float:
    """Evaluate formula F5 by itself."""
    oracle = replace(PROBLEM.oracle, success=np.array(success))
    probs = completion_probs(oracle, updates, PROBLEM.rounds)
    return float(compute_stationary_distribution(oracle) @ probs)


@pytest.mark.parametrize("step", ["constant", "decreasing"])
def test_each_level_against_the_formulas(step: Step) -> None:
    epsilon = 0.4 if step == "constant" else 0.9
    choice = replace(CHOICE, step=step, epsilon=epsilon)
    plan = plan_noise(PROBLEM, choice)
    assert [level.sigma for level in plan.levels] == list(choice.levels)
    for level in plan.levels:
        noise = 1.5 * level.sigma**2
        needed = 2.0 * 0.9 * noise / epsilon**2
        if step == "decreasing":
            needed = math.exp((0.9 + math.pi**2 * noise / 12.0) / epsilon) - 1.0
        assert level.updates == math.ceil(needed)
        assert level.completion == pytest.approx(finish(level.success, math.ceil(needed)))
        most = max(m for m in range(1, 23) if finish(level.success, m) >= 0.9)
        reached = math.sqrt(2.0 * 0.9 * noise / most)
        if step == "decreasing":
            reached = (0.9 + math.pi**2 * noise / 12.0) / math.log(most + 1)
        assert level.smallest_epsilon == pytest.approx(reached)
    assert plan.best_completion is max(plan.levels, key=lambda level: level.completion)
    assert plan.best_epsilon is min(plan.levels, key=lambda level: level.smallest_epsilon or 9.0)


def test_neither_the_tightest_nor_the_loosest_bound_need_be_best() -> None:
    success = ((0.02, 0.05, 0.1), (0.3, 0.6, 0.95), (0.32, 0.62, 0.96))
    plan = plan_noise(PROBLEM, replace(CHOICE, success=success, levels=(0.5, 0.7, 1.1)))
    assert plan.best_completion is plan.levels[1]
    assert plan.advice == (
        "sigma = 0.7 is best for epsilon = 0.4 in 45 rounds: 9 updates, finished with a "
        f"probability of {plan.levels[1].completion:.1%}."
    )


def test_goals_out_of_reach() -> None:
    plan = plan_noise(PROBLEM, replace(CHOICE, epsilon=1e-3))
    assert plan.best_completion is None and plan.best_epsilon is not None
    assert plan.advice == "No bound on the noise reaches epsilon = 0.001 covertly in 45 rounds."
    beyond = plan_noise(PROBLEM, replace(CHOICE, epsilon=1e-3, step="decreasing"))
    assert [level.updates for level in beyond.levels] == [None] * 3
    never = plan_noise(PROBLEM, replace(CHOICE, success=((0.0,) * 3,) * 3))
    assert never.best_epsilon is None and never.levels[0].smallest_epsilon is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"levels": (0.5, 0.4, 1.1)}, "levels must be numbers that increase"),
        ({"levels": (), "success": ()}, "levels must be numbers that increase"),
        ({"levels": (0.3, 0.4, 1e200)}, r"levels\[2\] must be at most 1e\+100, got 1e\+200"),
        ({"levels": (0.0, 0.4, 1.1)}, r"levels\[0\] must be a finite number above 0"),
        ({"success": SUCCESS[:2]}, "success must have 3 rows of one length"),
        ({"success": SUCCESS[::-1]}, "success must not fall from one level to the next"),
        ({"success": ((0.1, 0.2, 1.6),) * 3}, "success must hold probabilities"),
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0"),
        ({"confidence": 1.0}, "confidence must lie between 0 and 1"),
    ],
)
def test_wrong_choices_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        replace(CHOICE, **change)


def test_the_oracle_states_must_be_those_of_the_problem() -> None:
    two = replace(CHOICE, success=((0.1, 0.2),) * 3)
    with pytest.raises(InvalidInput, match="success must have 3 probabilities in each row"):
        plan_noise(PROBLEM, two)
