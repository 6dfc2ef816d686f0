"""Pictures of plans: labelled axes and the numbers they show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import covertfl as cf
from covertfl.display.plots import plot_completion, plot_exchangeable, plot_frontier, plot_plan
from covertfl.planning.exchangeable import accepted_by_rounds
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve, plan_horizon
from covertfl.planning.queue import QueuePlan, plan_queue
from tests.support.presets import horizon_preset, queue_preset

pytest.importorskip("matplotlib")


@cache
def planned_queue() -> QueuePlan:
    return plan_queue(queue_preset("paper-code/queue"))


@cache
def planned_horizon() -> HorizonPlan:
    problem = replace(horizon_preset("sound/main"), rounds=25, updates=6)
    return plan_horizon(problem, generator=np.random.default_rng(0))


def test_every_figure_of_a_plan_has_labels() -> None:
    horizon, queue = plot_plan(planned_horizon()), plot_plan(planned_queue())
    assert list(horizon) == ["completion.png", "thresholds.png", "exchangeable.png"]
    assert list(queue) == ["frontier.png"]
    for figure in (*horizon.values(), *queue.values()):
        for axes in figure.axes:
            assert axes.get_xlabel() and axes.get_ylabel()


def test_completion_is_drawn_as_it_is() -> None:
    plan = planned_horizon()
    line = plot_completion(plan).axes[0].lines[0]
    assert line.get_ydata() == pytest.approx(100.0 * compute_completion_curve(plan))


@pytest.mark.parametrize("rounds", [2, 25, 90])
def test_completion_fits_its_axes(rounds: int) -> None:
    """Nothing that is written crosses an edge of the axes or of the figure."""
    plan = planned_horizon()
    figure = plot_completion(replace(plan, problem=replace(plan.problem, rounds=rounds)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend, panel = axes.get_legend(), axes.get_window_extent()
    assert legend is not None and not axes.texts
    words = [text.get_text() for text in legend.get_texts()]
    assert any(text.startswith(f"this problem: {rounds} rounds") for text in words)
    assert legend.get_window_extent().x0 >= panel.x1
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    for line in axes.lines:
        across, up = (np.asarray(values, dtype=float) for values in line.get_data())
        assert across.min() >= axes.get_xlim()[0] and across.max() <= axes.get_xlim()[1]
        assert up.max() <= axes.get_ylim()[1]


def test_exchangeable_trajectories_are_drawn_beside_the_minority() -> None:
    plan = planned_horizon()
    (axes,) = plot_exchangeable(plan).axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
    for price in plan.exchangeable.prices[1:]:
        drawn = lines[f"K = {price.trajectories}: {price.rounds_needed[0.95]} rounds for 95%"]
        accepted = price.trajectories * plan.problem.updates
        curve = accepted_by_rounds(plan.problem.oracle, accepted, len(drawn) - 1)
        assert drawn == pytest.approx(100.0 * curve)
    minority = lines[f"minority: {plan.rounds_needed[0.95]} rounds for 95%"]
    assert minority == pytest.approx(100.0 * compute_completion_curve(plan))


def test_the_frontier_is_drawn_as_it_is() -> None:
    plan = planned_queue()
    costs, shares = plot_frontier(plan).axes
    assert np.array_equal(
        costs.lines[0].get_ydata(), [point.privacy_cost for point in plan.frontier]
    )
    assert shares.lines[0].get_ydata() == pytest.approx(
        [100.0 * point.learn_fraction for point in plan.frontier]
    )


def test_what_cannot_be_drawn_is_refused() -> None:
    flood = plan_queue(replace(queue_preset("sound/queue"), arrival_prob=1.0))
    assert plot_plan(flood) == {}
    with pytest.raises(cf.InvalidInput, match="no frontier to draw"):
        plot_frontier(flood)
