"""Results as dictionaries: plain JSON, the promised keys, the numbers of the objects."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from tests.support.participation import EXAMPLE_LOG
from tests.support.presets import horizon_preset, queue_preset

STRUCTURE = {"monotone_in_backlog", "monotone_in_oracle", "counterexample", "assumptions"}


def describe(result: cf.Solution | cf.Plan | cf.Fit) -> Any:
    """The content as a reader of the JSON gets it; NaN and numpy's types are refused."""
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


def test_a_queue_solution() -> None:
    solution = cf.solve("paper-code/queue")
    content = describe(solution)
    assert content.keys() >= {
        "problem", "method", "privacy_cost", "learning_cost", "learn_fraction", "multiplier",
        "thresholds", "mixing", "capacity", "full_prob", "lost_per_round", "structure", "seconds",
    }  # fmt: skip
    assert (content["problem"], content["method"], content["capacity"]) == ("queue", "exact", 40)
    assert content["privacy_cost"] == solution.privacy_cost and content["seconds"] > 0.0
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
    content = describe(cf.solve(queue_preset("paper-code/queue").with_limit(1e6)))
    assert content["mixing"] is None and content["multiplier"] == 0.0
    assert content["thresholds"] == [[None, None]] * 3
    assert content["learn_fraction"] == 0.0


def test_a_horizon_solution() -> None:
    content = describe(cf.solve("sound/main"))
    assert content.keys() >= {"problem", "expected_cost", "thresholds", "structure", "seconds"}
    assert content["problem"] == "horizon" and len(content["expected_cost"]) == 3
    assert np.shape(content["thresholds"]) == (45, 3)
    assert content["thresholds"][0] == [16, 3, 1] and content["thresholds"][44][0] == 17
    assert content["structure"].keys() >= STRUCTURE | {"monotone_in_rounds"}
    assert content["structure"]["assumptions"] == {"M1": True, "M2": True, "M3": True, "M5": True}


def test_a_horizon_without_thresholds() -> None:
    step = replace(horizon_preset("sound/main"), learning_cost=cf.LearningCost("constant", 9.0))
    content = describe(cf.solve(step))
    assert content["thresholds"] is None
    assert content["structure"]["monotone_in_backlog"] is False
    assert content["structure"]["counterexample"]["text"]


def test_a_horizon_plan_with_an_exposure() -> None:
    fitted = cf.fit(EXAMPLE_LOG, cuts=(8, 15), min_examples=6800)
    fitted = cf.Fit(replace(fitted.details, arrival=None))
    plan = cf.plan(fitted.make_problem(rounds=20, updates=4), exposure=0.2)
    content = describe(plan)
    assert content["completion"].keys() >= {"minority", "prefix_minority"}
    assert len(content["completion"]["minority"]) == 3
    assert np.shape(content["completion"]["minority_interval"]) == (3, 2)
    assert content["rounds_needed"].keys() == {"0.9", "0.95", "0.99"}
    assert content["greedy_learning_queries"] > 4.0
    bound = content["best_eavesdropper"]
    assert bound["interval"][0] <= bound["value"] <= bound["interval"][1]
    assert content["advice"] == plan.advice
    found = plan.exposure
    assert found is not None and content["exposure"] == {
        "target": 0.2,
        "setting": "scale",
        "value": found.value,
        "exposure": found.exposure,
        "privacy_cost": found.privacy_cost,
    }


def test_a_queue_plan() -> None:
    content = describe(cf.plan("paper-code/queue"))
    assert content.keys() >= {
        "stable", "load", "service_capacity", "least_exposure", "privacy_cost_bound", "frontier",
    }  # fmt: skip
    assert content["stable"] is True
    for point in content["frontier"]:
        assert point.keys() >= {"limit", "privacy_cost", "learning_cost", "learn_fraction"}


def test_a_fit() -> None:
    content = describe(cf.fit(EXAMPLE_LOG, cuts=(8, 15), min_examples=6800))
    assert np.shape(content["transition"]) == (3, 3)
    assert np.shape(content["transition_interval"]) == (3, 3, 2)
    assert np.shape(content["success_interval"]) == (3, 2)
    assert content["rounds"] == sum(content["visits"]) == 600
    assert content["arrival"]["arrival_size"] == 4
    assert "sizes" not in content["arrival"]  # they are all the same
    assert content["cuts"] == [8.0, 15.0]
