"""Results as dictionaries: plain JSON, the promised keys, the numbers of the objects."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.decision.problem_file import Evidence, read_preset
from covertfl.display import as_json as results
from covertfl.fitting.log import read_log
from covertfl.fitting.oracle import fit_oracle
from covertfl.planning.exposure import ExposurePlan
from covertfl.planning.horizon import plan_horizon
from covertfl.planning.queue import plan_queue
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from tests.support.example_log import EXAMPLE_LOG

STRUCTURE = {"monotone_in_backlog", "monotone_in_oracle", "counterexample", "assumptions"}


def through_json(content: dict[str, Any]) -> Any:
    """The content as a reader of the JSON gets it; NaN and numpy's types are refused."""
    return json.loads(json.dumps(content, allow_nan=False))


@cache
def solve_code_queue() -> QueueSolution:
    problem = read_preset("paper-code/queue").problem
    assert isinstance(problem, cf.QueueProblem)
    return solve_queue(problem)


@cache
def solve_main() -> HorizonSolution:
    problem = read_preset("sound/main").problem
    assert isinstance(problem, cf.FiniteHorizon)
    return solve_horizon(problem)


def test_a_queue_solution() -> None:
    solution = solve_code_queue()
    content = through_json(results.describe_queue_solution(solution, 0.5))
    assert content.keys() >= {
        "problem", "method", "privacy_cost", "learning_cost", "learn_fraction", "multiplier",
        "thresholds", "mixing", "capacity", "full_prob", "lost_per_round", "structure", "seconds",
    }  # fmt: skip
    assert (content["problem"], content["method"], content["seconds"]) == ("queue", "exact", 0.5)
    assert content["capacity"] == 40
    assert content["privacy_cost"] == solution.evaluation.privacy_cost
    assert content["learning_cost"] == pytest.approx(0.4, rel=1e-9)
    assert content["structure"].keys() >= STRUCTURE
    assert content["structure"]["assumptions"] == {
        "M1": True, "M2": True, "M3": False, "M5": True,
    }  # fmt: skip
    # The optimum randomises in one state, and the thresholds say which.
    mixing = content["mixing"]
    assert mixing.keys() == {"oracle", "arrival", "backlog", "learn_prob"}
    column = content["thresholds"][mixing["oracle"]][mixing["arrival"]]
    assert column == [mixing["backlog"], mixing["backlog"] + 1]
    table = solution.policy.table
    assert table[mixing["oracle"], mixing["arrival"], mixing["backlog"]] == mixing["learn_prob"]
    assert [len(row) for row in content["thresholds"]] == [2, 2, 2]


def test_a_limit_that_does_not_bind_mixes_nothing() -> None:
    solution = solve_queue(solve_code_queue().problem.with_limit(1e6))
    content = through_json(results.describe_queue_solution(solution, 0.0))
    assert content["mixing"] is None and content["multiplier"] == 0.0
    assert content["thresholds"] == [[None, None]] * 3
    assert content["learn_fraction"] == 0.0


def test_a_horizon_solution() -> None:
    content = through_json(results.describe_horizon_solution(solve_main(), 0.5))
    assert content.keys() >= {"problem", "expected_cost", "thresholds", "structure", "seconds"}
    assert content["problem"] == "horizon"
    assert len(content["expected_cost"]) == 3
    assert np.shape(content["thresholds"]) == (45, 3)
    assert content["thresholds"][0] == [16, 3, 1] and content["thresholds"][44][0] == 17
    assert content["structure"].keys() >= STRUCTURE | {"monotone_in_rounds"}
    assert content["structure"]["assumptions"] == {"M1": True, "M2": True, "M3": True, "M5": True}


def test_a_horizon_without_thresholds() -> None:
    problem = replace(
        solve_main().problem,
        learning_cost=replace(solve_main().problem.learning_cost, shape="constant", scale=9.0),
    )
    content = through_json(results.describe_horizon_solution(solve_horizon(problem), 0.0))
    assert content["thresholds"] is None
    assert content["structure"]["monotone_in_backlog"] is False
    assert content["structure"]["counterexample"]["text"]


def test_a_horizon_plan() -> None:
    problem = replace(solve_main().problem, rounds=20, updates=4)
    moves = np.rint(50 * problem.oracle.transition).astype(np.int64)
    trials = np.array([[5, 50], [21, 50], [47, 50]])
    plan = plan_horizon(
        problem, generator=np.random.default_rng(0), evidence=Evidence(moves, trials)
    )
    content = through_json(results.describe_horizon_plan(plan))
    assert content.keys() >= {
        "completion", "rounds_needed", "greedy_learning_queries", "best_eavesdropper",
    }  # fmt: skip
    assert content["completion"].keys() >= {"minority", "prefix_minority"}
    assert len(content["completion"]["minority"]) == 3
    assert np.shape(content["completion"]["minority_interval"]) == (3, 2)
    assert content["rounds_needed"].keys() == {"0.9", "0.95", "0.99"}
    bound = content["best_eavesdropper"]
    assert bound.keys() >= {"value", "interval"}
    assert bound["interval"][0] <= bound["value"] <= bound["interval"][1]
    assert content["advice"] == plan.advice


def test_a_queue_plan() -> None:
    problem = solve_code_queue().problem
    content = through_json(results.describe_queue_plan(plan_queue(problem)))
    assert content.keys() >= {
        "stable", "load", "service_capacity", "least_exposure", "privacy_cost_bound", "frontier",
    }  # fmt: skip
    assert content["stable"] is True
    for point in content["frontier"]:
        assert point.keys() >= {"limit", "privacy_cost", "learning_cost", "learn_fraction"}


def test_a_fit() -> None:
    fitted = fit_oracle(read_log(EXAMPLE_LOG), cuts=(8.0, 15.0), min_examples=6800.0)
    content = through_json(results.describe_fit(fitted))
    assert np.shape(content["transition"]) == (3, 3)
    assert np.shape(content["transition_interval"]) == (3, 3, 2)
    assert np.shape(content["success_interval"]) == (3, 2)
    assert content["rounds"] == sum(content["visits"]) == 600
    assert content["arrival"]["arrival_size"] == 4
    assert "sizes" not in content["arrival"]  # they are all the same
    assert content["cuts"] == [8.0, 15.0]


def test_an_exposure() -> None:
    answer = ExposurePlan(0.4, "scale", 2.0, 0.39, 5.0)
    assert through_json(results.describe_exposure(answer)) == {
        "target": 0.4, "setting": "scale", "value": 2.0, "exposure": 0.39, "privacy_cost": 5.0,
    }  # fmt: skip
