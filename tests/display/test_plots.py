"""Pictures of policies: labelled axes, the numbers they show, and files of the right kind."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import covertfl as cf
from covertfl.display import plots
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from tests.support.paper_queues import uneven_queue
from tests.support.presets import horizon_preset, queue_preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib")


@cache
def solved_queue() -> QueueSolution:
    return solve_queue(queue_preset("paper-code/queue"))


@cache
def solved_horizon() -> HorizonSolution:
    return solve_horizon(horizon_preset("sound/main"))


def draw(name: str) -> Figure:
    if name == "queue policy":
        return plots.plot_queue_policy(solved_queue())
    return plots.plot_horizon_policy(solved_horizon())


PICTURES = ("queue policy", "horizon policy")


@pytest.mark.parametrize("name", PICTURES)
def test_every_axis_has_a_label(name: str) -> None:
    figure = draw(name)
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert panels
    for axes in panels:
        assert axes.get_ylabel()
    # Panels one above the other share the axis of the lowest.
    assert panels[-1].get_xlabel()


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")]
)
def test_files_begin_as_their_kind_does(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"picture{suffix}"
    plots.save_figure(draw("horizon policy"), path)
    assert path.read_bytes().startswith(start)
    upper = tmp_path / f"LOUD{suffix.upper()}"
    plots.save_figure(draw("horizon policy"), upper)
    assert upper.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["picture.bmp", "picture", "picture.png.txt", ".png"])
def test_other_kinds_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(cf.InvalidInput, match=r"must end in \.png, \.svg, \.pdf"):
        plots.save_figure(draw("horizon policy"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_is_drawn_as_it_is() -> None:
    """The upper panels show the probability of learning, the lowest the share of each backlog."""
    solution = solved_queue()
    upper, lower, rounds = plots.plot_queue_policy(solution).axes[:3]
    for arrival, axes in enumerate((upper, lower)):
        drawn = np.asarray(axes.images[0].get_array())
        assert np.array_equal(drawn, solution.policy.table[:, arrival, : drawn.shape[1]])
    shares = [bar.get_bbox().height for bar in rounds.patches]  # type: ignore[attr-defined]
    mass = 100.0 * solution.evaluation.mass.sum(axis=(0, 1))
    assert shares == pytest.approx(mass[: len(shares)])
    assert sum(shares) >= 95.0


def test_the_policy_has_a_panel_for_each_frequent_size() -> None:
    solution = solve_queue(uneven_queue())
    *panels, backlogs = plots.plot_queue_policy(solution).axes[:4]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert [title.split(", ")[1] for title in titles] == [
        "no arrival in this round",
        "arrival of 1 in this round",
        "arrival of 4 in this round",
    ]
    assert backlogs.get_xlabel() == "backlog (updates)"
    sizes = {size: 0.001 * size for size in range(1, 10)}
    many = solve_queue(replace(uneven_queue(), arrival_sizes=sizes, limit=9.0))
    figure = plots.plot_queue_policy(many)
    assert len([axes for axes in figure.axes if axes.images]) == plots.MOST_ARRIVALS


def test_thresholds_are_drawn_as_they_are() -> None:
    solution = solved_horizon()
    axes = plots.plot_horizon_policy(solution).axes[0]
    assert solution.thresholds is not None
    lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 45]
    assert len(lines) == 3
    for state, line in enumerate(lines):
        assert np.array_equal(line.get_xdata(), np.arange(1, 46))
        assert np.array_equal(line.get_ydata(), solution.thresholds[:, state])


def test_a_policy_without_thresholds_is_drawn_as_a_table() -> None:
    step = replace(horizon_preset("sound/main"), learning_cost=cf.LearningCost("constant", 9.0))
    figure = plots.plot_horizon_policy(solve_horizon(step))
    assert len(figure.axes) == 3
    assert figure.axes[-1].get_xlabel() == "rounds left"
    assert all(axes.get_ylabel() == "backlog (updates)" for axes in figure.axes)


@pytest.mark.parametrize("num_states", [1, 12])
def test_few_and_many_states(tmp_path: Path, num_states: int) -> None:
    from covertfl.decision.oracle import Oracle

    uniform = np.full((num_states, num_states), 1.0 / num_states)
    oracle = Oracle(uniform, np.linspace(0.2, 0.9, num_states))
    privacy = np.linspace(2.0, 1.0, num_states)
    horizon = cf.FiniteHorizon(oracle, privacy, cf.LearningCost("quadratic", 0.6), 9, 3)
    plots.save_figure(plots.plot_horizon_policy(solve_horizon(horizon)), tmp_path / "a.png")
    cost = cf.LearningCost("linear", 0.6, "always")
    queue = cf.QueueProblem(oracle, privacy, cost, 0.05, 2, 8.0, capacity=12, overflow_cost=1.0)
    plots.save_figure(plots.plot_queue_policy(solve_queue(queue)), tmp_path / "b.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_matplotlib_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for name in PICTURES:
        with pytest.raises(cf.Missing, match=r"pip install 'covertfl\[report\]'"):
            draw(name)
