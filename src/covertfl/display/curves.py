"""Figures of trained runs and of their audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.auditing.threats import Threat
from covertfl.display.plots import PALETTE, new_figure, tidy
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_training(scores: FloatArray, exposure: FloatArray) -> Figure:
    """Return the true model's score above the exposure, both by round.

    Parameters
    ----------
    scores, exposure : (runs, rounds), NaN where unknown; lines are means, bands reach from the
        smallest to the largest run
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
    known = values[:, ~np.isnan(values).all(axis=0)]
    rounds = np.flatnonzero(~np.isnan(values).all(axis=0)) + 1
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
    axes.annotate(
        "a guess",
        (guess, len(judged) - 0.45),
        textcoords="offset points",
        xytext=(4, 0),
        color=PALETTE[0],
    )
    axes.set_yticks(range(len(judged)), [threat.name for threat in reversed(judged)])
    axes.set_ylim(-0.6, len(judged) - 0.1)
    axes.set_xlim(-2.0, 102.0)
    axes.set_xlabel("names the true model (% of runs, 95% interval)")
    return figure
