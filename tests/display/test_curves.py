"""Pictures of searches: labelled axes and the numbers they claim to show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.display.curves import plot_convergence, weigh_thresholds
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.result import SpgaRun
from tests.support.paper_queues import reference_queue

pytest.importorskip("matplotlib")


@cache
def searched() -> tuple[list[SpgaRun], QueueSolution]:
    found: Any = cf.solve(reference_queue(), "spga", iterations=200, seed=1, runs=5)
    return list(found.details.runs), solve_queue(reference_queue())


def test_effective_threshold_is_the_weighted_mean() -> None:
    run = searched()[0][0]
    parameters = run.history.parameters
    found = weigh_thresholds(run)
    assert found.shape == (200, 3)
    theta1, theta2, h = parameters[17, :, 2, 0]
    assert found[17, 2] == pytest.approx(h * theta1 + (1 - h) * theta2)


def test_convergence_shows_means_and_exact_values() -> None:
    runs, optimum = searched()
    figure = plot_convergence(runs, optimum)
    thresholds, privacy, learning = figure.axes
    assert "5 runs" in thresholds.get_title(loc="left")
    for axes in figure.axes:
        assert axes.get_xlabel() == "iteration"
        assert axes.get_legend() is not None
    assert thresholds.get_ylabel() == "threshold with no arrival (updates)"
    assert privacy.get_ylabel() == "privacy cost per round"
    assert learning.get_ylabel() == "learning cost per round"
    legend = thresholds.get_legend()
    assert legend is not None
    figure.canvas.draw()
    assert legend.get_window_extent().x0 >= thresholds.get_window_extent().x1  # covers no line
    assert "10% to 90% of runs" in [text.get_text() for text in legend.get_texts()]
    mean = np.mean([weigh_thresholds(run) for run in runs], axis=0)
    drawn = {line.get_label(): line.get_ydata() for line in thresholds.get_lines()}
    for state in range(3):
        assert drawn[f"oracle state {state}"] == pytest.approx(mean[:, state])
    exact = {line.get_label(): line.get_ydata() for line in learning.get_lines()}["exact optimum"]
    assert exact == pytest.approx([optimum.evaluation.learning_cost] * 2)
    assert learning.get_ylim()[1] > optimum.evaluation.learning_cost  # the line can be seen


def test_a_state_that_never_learns_is_named() -> None:
    """Without a threshold there is no thin line, so the legend has the words."""
    runs, optimum = searched()
    table = optimum.policy.table.copy()
    table[0, 0] = 0.0
    never = replace(optimum, policy=replace(optimum.policy, table=table))
    for exact, words in ((never, ["exact: state 0 never learns"]), (optimum, [])):
        axes = plot_convergence(runs[:1], exact).axes[0]
        legend = axes.get_legend()
        assert legend is not None
        texts = [text.get_text() for text in legend.get_texts()]
        assert [text for text in texts if "never" in text] == words
        if words:
            assert texts[:2] == ["oracle state 0", *words]


def test_one_run_has_no_spread() -> None:
    runs, optimum = searched()
    axes = plot_convergence(runs[:1], optimum).axes[0]
    assert "one run" in axes.get_title(loc="left")
    assert not axes.collections
