"""Figures of policy searches, of trained runs and of their audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.auditing.threats import Threat
from covertfl.display.plots import BESIDE, DASHES, PALETTE, annotate, new_figure, tidy
from covertfl.errors import InvalidInput
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.structure import find_queue_thresholds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_training(scores: FloatArray, exposure: FloatArray) -> Figure:
    """Return the true model's score above the exposure, both by round.

    Both are (runs, rounds), NaN where unknown; bands reach from the smallest to the largest run.
    """
    figure = new_figure(7.0, 5.0)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_band(above, scores, PALETTE[1])
    above.set_ylabel("score of the true model")
    above.set_title(f"Training, {len(scores)} run{'s' * (len(scores) != 1)}", loc="left")
    _draw_band(below, 100.0 * exposure, PALETTE[0])
    below.set_ylabel("exposure (% of queries)")
    below.set_ylim(0.0, 100.0)
    below.set_xlabel("round")
    return figure


def _draw_band(axes: Any, values: FloatArray, color: str) -> None:
    tidy(axes)
    is_known = ~np.isnan(values).all(axis=0)
    known, rounds = values[:, is_known], np.flatnonzero(is_known) + 1
    if not len(rounds):
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
        return
    axes.plot(rounds, np.nanmean(known, axis=0), color=color, linewidth=2.0)
    if len(values) > 1:
        low, high = np.nanmin(known, axis=0), np.nanmax(known, axis=0)
        axes.fill_between(rounds, low, high, color=color, alpha=0.2, linewidth=0.0)


def plot_threats(threats: Sequence[Threat]) -> Figure:
    """Return how often each eavesdropper names the true model, with its 95% interval."""
    judged = [threat for threat in threats if threat.names_true is not None]
    if not judged:
        raise InvalidInput("which trajectory is true is not known: there is nothing to draw")
    figure = new_figure(7.0, 0.8 + 0.32 * len(judged))
    axes = figure.subplots()
    tidy(axes)
    for place, threat in enumerate(reversed(judged)):
        assert threat.names_true is not None
        axes.plot(100.0 * threat.names_true, place, "o", color=PALETTE[1])
        if threat.interval is not None:
            low, high = (100.0 * end for end in threat.interval)
            axes.plot([low, high], [place, place], color=PALETTE[1], linewidth=2.0)
    guess = 100.0 * judged[0].guess
    axes.axvline(guess, color=PALETTE[0], linestyle="--", linewidth=1.2)
    annotate(axes, "a guess", (guess, len(judged) - 0.45), (4, 0), color=PALETTE[0])
    axes.set_yticks(range(len(judged)), [threat.name for threat in reversed(judged)])
    axes.set_ylim(-0.6, len(judged) - 0.1)
    axes.set_xlim(-2.0, 102.0)
    axes.set_xlabel("names the true model (% of runs, 95% interval)")
    return figure


def weigh_thresholds(run: SpgaRun) -> FloatArray:
    """Return the mean of theta_1 and theta_2 weighted by h and 1 - h without arrival, (K, W)."""
    theta1, theta2, h = np.moveaxis(run.history.parameters[:, :, :, 0], 1, 0)
    return np.asarray(h * theta1 + (1.0 - h) * theta2)


def plot_convergence(runs: list[SpgaRun], optimum: QueueSolution) -> Figure:
    """Plot thresholds and costs against iterations, mean and spread, with exact values as lines."""
    figure = new_figure(9.0, 6.4)
    panels = figure.subplot_mosaic(
        [["thresholds", "thresholds"], ["privacy", "learning"]], height_ratios=[1.5, 1.0]
    )
    _draw_thresholds(panels["thresholds"], runs, optimum)
    spread = "one run" if len(runs) == 1 else f"mean and spread of {len(runs)} runs"
    title = f"Thresholds of the structured policy gradient ({spread})"
    panels["thresholds"].set_title(title, fontsize=11, loc="left")
    _draw_costs(panels["privacy"], "privacy_cost", runs, optimum)
    _draw_costs(panels["learning"], "learning_cost", runs, optimum)
    return figure


def _draw_costs(axes: Any, key: str, runs: list[SpgaRun], optimum: QueueSolution) -> None:
    costs = np.array([getattr(run.history, key) for run in runs])
    smooth, exact = _smooth(costs.mean(axis=0)), getattr(optimum.evaluation, key)
    axes.plot(smooth, color=PALETTE[1], linewidth=1.4, label="mean over runs")
    axes.plot([0, len(smooth)], [exact, exact], "--", color=PALETTE[0], label="exact optimum")
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"{key.replace('_', ' ')} per round")
    axes.set_ylim(0.0, 1.15 * max(exact, float(np.quantile(smooth, 0.98))))
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _draw_thresholds(axes: Any, runs: list[SpgaRun], optimum: QueueSolution) -> None:
    paths = np.array([weigh_thresholds(run) for run in runs])
    last, num_oracle = paths.shape[1], paths.shape[2]
    for state in range(num_oracle):
        color, dash = PALETTE[state % len(PALETTE)], DASHES[state % len(DASHES)]
        low, middle, high = np.quantile(paths[:, :, state], [0.1, 0.5, 0.9], axis=0)
        mean = paths[:, :, state].mean(axis=0) if len(runs) > 1 else middle
        axes.plot(mean, color=color, linestyle=dash, linewidth=1.8, label=f"oracle state {state}")
        if len(runs) > 1:
            axes.fill_between(np.arange(last), low, high, color=color, alpha=0.15, linewidth=0)
        exact = _find_exact_threshold(optimum, state)
        if exact is not None:
            axes.plot([0, last], [exact, exact], color=color, linewidth=1.0, alpha=0.9)
        else:
            axes.plot([], [], " ", label=f"exact: state {state} never learns")
    axes.plot([], [], color="#555555", linewidth=1.0, label="exact (thin lines)")
    if len(runs) > 1:
        axes.fill_between([], [], [], color="#555555", alpha=0.15, label="10% to 90% of runs")
    axes.axhline(0.0, color="#bbbbbb", linewidth=0.8)
    axes.set_xlabel("iteration")
    axes.set_ylabel("threshold with no arrival (updates)")
    axes.legend(**BESIDE)
    tidy(axes)


def _find_exact_threshold(optimum: QueueSolution, state: int) -> float | None:
    """Return a state's threshold without arrival, None if it never learns."""
    thresholds = find_queue_thresholds(optimum)
    if thresholds is not None:
        column = thresholds[state][0]
        return None if column is None else float(column[1])
    # Not a threshold policy: the first backlog at which it ever learns.
    learns = np.flatnonzero(optimum.policy.table[state, 0] > 0.0)
    return float(learns[0]) if len(learns) else None


def _smooth(values: FloatArray) -> FloatArray:
    """Return a moving average over a hundredth of the values."""
    window = max(1, len(values) // 100)
    kernel = np.ones(window) / window
    padded = np.concatenate([np.full(window - 1, values[0]), values])
    return np.convolve(padded, kernel, mode="valid")
