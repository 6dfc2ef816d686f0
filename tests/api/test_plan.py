"""`cf.plan` and what it returns."""

from __future__ import annotations

import json
from typing import Any

import pytest

import covertfl as cf


def test_a_horizon_is_planned() -> None:
    plan = cf.plan("sound/main")
    described = plan.to_dict()
    assert described["completion"]["minority"] == pytest.approx([0.409, 0.479, 0.640], abs=1e-3)
    assert "45 rounds" in plan.advice and "45 rounds" in repr(plan)
    assert "<table>" in plan._repr_html_()
    advice = plan.details.exchangeable.advice
    assert described["exchangeable"]["advice"] == advice
    assert advice.endswith("16 updates with 95% take 115 rounds instead of 68.")
    assert json.dumps(described, allow_nan=False)


@pytest.mark.slow
def test_a_queue_is_planned() -> None:
    plan = cf.plan("sound/queue")
    described = plan.to_dict()
    assert described["least_exposure"] == pytest.approx(0.629, abs=1e-3)
    assert described["stable"] is True
    assert "least exposure 62.9%" in repr(plan)


def test_what_is_asked_for_beside_is_in_the_plan() -> None:
    plan = cf.plan("sound/main", exposure=0.4, epsilon=0.25)
    assert plan.exposure is not None and plan.updates_needed is not None
    assert plan.updates_needed.constant_step == pytest.approx(32.0)
    described = plan.to_dict()
    assert set(described["updates_needed"]) == {"decreasing_step", "constant_step"}
    assert described["exposure"] is not None
    assert "exposure" not in cf.plan("sound/main").to_dict()


@pytest.mark.parametrize("problem", ["sound/main", "sound/queue"])
def test_a_plot_is_a_figure(problem: str) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    plan = cf.plan(problem)
    assert isinstance(plan.plot(), figure.Figure)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"exposure": "half"}, "exposure must be a number"),
        ({"exposure": 2.0}, "must lie"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"epsilon": "small"}, "epsilon must be a number"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.plan("sound/main", **options)
