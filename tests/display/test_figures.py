"""Pictures of policies and plans: the numbers they show, and files of the right kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.planning.horizon import compute_completion_curve
from covertfl.planning.trajectories import accepted_by_rounds
from tests.support.commands import Run, refuse
from tests.support.paper_queues import uneven_queue
from tests.support.presets import horizon_preset, queue_preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib")


@cache
def plan(name: str, **changes: Any) -> cf.Plan:
    load: Any = queue_preset if name.endswith("queue") else horizon_preset
    return cf.plan(replace(load(name), **changes))


def plan_horizon() -> tuple[Any, dict[str, Figure]]:
    found = plan("sound/main", rounds=25, updates=6)
    return found.details, found.figures()


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")]
)
def test_files_begin_as_their_kind_does(
    tmp_path: Path, run: Run, suffix: str, start: bytes
) -> None:
    for name in (f"picture{suffix}", f"LOUD{suffix.upper()}"):
        picture = tmp_path / name
        assert run("solve", "--preset", "sound/main", "--plot", picture, "--json").status == 0
        assert picture.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["picture.bmp", "picture", "picture.png.txt", ".png"])
def test_other_kinds_are_refused_and_nothing_is_written(
    tmp_path: Path, run: Run, name: str
) -> None:
    said = refuse(run("solve", "--preset", "sound/main", "--plot", tmp_path / name), 2)
    assert "must end in .png, .svg, .pdf" in said
    assert list(tmp_path.iterdir()) == []


def test_the_policy_is_drawn_as_it_is() -> None:
    """The upper panels show the probability of learning, the lowest the share of each backlog."""
    problem = queue_preset("paper-code/queue")
    solution = cf.solve(problem)
    upper, lower, rounds = solution.plot().axes[:3]
    for arrival, axes in enumerate((upper, lower)):
        drawn = np.asarray(axes.images[0].get_array())
        assert np.array_equal(drawn, solution.policy.table[:, arrival, : drawn.shape[1]])
    shares = [bar.get_bbox().height for bar in rounds.patches]  # type: ignore[attr-defined]
    assert isinstance(solution.policy, cf.QueueTable)
    mass = 100.0 * cf.evaluate_queue_policy(problem, solution.policy).mass.sum(axis=(0, 1))
    assert shares == pytest.approx(mass[: len(shares)])
    assert sum(shares) >= 95.0


def test_the_policy_has_a_panel_for_each_frequent_size() -> None:
    *panels, backlogs = cf.solve(uneven_queue()).plot().axes[:4]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert [title.split(", ")[1] for title in titles] == [
        "no arrival in this round",
        "arrival of 1 in this round",
        "arrival of 4 in this round",
    ]
    assert backlogs.get_xlabel() == "backlog (updates)"
    sizes = {size: 0.001 * size for size in range(1, 10)}
    many = cf.solve(replace(uneven_queue(), arrival_sizes=sizes, limit=9.0)).plot()
    assert len([axes for axes in many.axes if axes.images]) == 6


def test_thresholds_are_drawn_as_they_are() -> None:
    solution = cf.solve("sound/main")
    thresholds = np.array(solution.to_dict()["thresholds"])
    axes = solution.plot().axes[0]
    lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) == 45]
    assert len(lines) == 3
    for state, line in enumerate(lines):
        assert np.array_equal(line.get_xdata(), np.arange(1, 46))
        assert np.array_equal(line.get_ydata(), thresholds[:, state])


def test_a_policy_without_thresholds_is_drawn_as_a_table() -> None:
    step = replace(horizon_preset("sound/main"), learning_cost=cf.LearningCost("constant", 9.0))
    figure = cf.solve(step).plot()
    assert len(figure.axes) == 3
    assert figure.axes[-1].get_xlabel() == "rounds left"
    assert all(axes.get_ylabel() == "backlog (updates)" for axes in figure.axes)


@pytest.mark.parametrize("num_states", [1, 12])
def test_few_and_many_states(num_states: int) -> None:
    uniform = np.full((num_states, num_states), 1.0 / num_states)
    oracle = cf.Oracle(uniform, np.linspace(0.2, 0.9, num_states))
    privacy = np.linspace(2.0, 1.0, num_states)
    horizon = cf.FiniteHorizon(oracle, privacy, cf.LearningCost("quadratic", 0.6), 9, 3)
    cost = cf.LearningCost("linear", 0.6, "always")
    queue = cf.QueueProblem(oracle, privacy, cost, 0.05, 2, 8.0, capacity=12, overflow_cost=1.0)
    for problem in (horizon, queue):
        cf.solve(problem).plot().draw_without_rendering()


# --- plans --------------------------------------------------------------------------------------


def test_completion_is_drawn_as_it_is() -> None:
    found, figures = plan_horizon()
    assert list(figures) == ["completion", "thresholds", "exchangeable"]
    line = figures["completion"].axes[0].lines[0]
    assert line.get_ydata() == pytest.approx(100.0 * compute_completion_curve(found))


@pytest.mark.parametrize("rounds", [2, 25, 90])
def test_completion_fits_its_axes(rounds: int) -> None:
    """Nothing that is written crosses an edge of the axes or of the figure."""
    figure = plan("sound/main", rounds=rounds, updates=6).figures()["completion"]
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
    found, figures = plan_horizon()
    (axes,) = figures["exchangeable"].axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}
    for price in found.exchangeable.prices[1:]:
        drawn = lines[f"K = {price.trajectories}: {price.rounds_needed[0.95]} rounds for 95%"]
        accepted = price.trajectories * found.problem.updates
        curve = accepted_by_rounds(found.problem.oracle, accepted, len(drawn) - 1)
        assert drawn == pytest.approx(100.0 * curve)
    minority = lines[f"minority: {found.rounds_needed[0.95]} rounds for 95%"]
    assert minority == pytest.approx(100.0 * compute_completion_curve(found))


def test_the_frontier_is_drawn_as_it_is() -> None:
    found = plan("paper-code/queue")
    costs, shares = found.plot().axes
    frontier = found.to_dict()["frontier"]
    assert np.array_equal(costs.lines[0].get_ydata(), [each["privacy_cost"] for each in frontier])
    percent = [100.0 * each["learn_fraction"] for each in frontier]
    assert shares.lines[0].get_ydata() == pytest.approx(percent)


def test_a_queue_without_a_frontier_has_no_figure() -> None:
    flood = plan("sound/queue", arrival_prob=1.0)
    assert flood.figures() == {}
    with pytest.raises(cf.InvalidInput, match="no frontier to draw"):
        flood.plot()
