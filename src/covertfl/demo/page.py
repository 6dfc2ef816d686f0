"""The HTML page of the demonstration: the headline, the table and the accuracy curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.report.page import render_template
from covertfl.report.plots import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    inline_drawing,
    new_axes,
    save_drawing,
)

PANEL_SIZE = {"width": 3.6, "height": 2.4}  # inches; three beside each other, or one on a phone


@dataclass(frozen=True, eq=False)
class Panel:
    """The curves of one condition: accuracies after each round, (runs, N).

    Parameters
    ----------
    row : of the table, with scenario, policy, decoy and rounds
    eavesdropper : the paper's, which counts queries
    aware : one that knows the scheme
    """

    row: Mapping[str, Any]
    learner: FloatArray
    eavesdropper: FloatArray
    aware: FloatArray


def render_page(content: Mapping[str, Any], panels: Sequence[Panel]) -> str:
    """Render the page, complete in itself, from what `run_demo` returns and the panels."""
    drawn = [
        {"row": panel.row, "drawing": _draw_panel(panel, f"panel-{number}")}
        for number, panel in enumerate(panels)
    ]
    return render_template("covertfl.demo", "demo.html", {**content, "panels": drawn})


def _draw_panel(panel: Panel, name: str) -> str:
    """Draw the accuracy of learner and eavesdroppers by round, as SVG in the page's colours."""
    curves: Any = (
        (BLUE, "-", panel.learner),
        (VERMILION, "-", panel.eavesdropper),
        (GREEN, "--", panel.aware),
    )
    with new_axes(**PANEL_SIZE) as axes:
        for colour, style, values in curves:
            rounds = np.arange(1, values.shape[1] + 1)
            axes.plot(rounds, values.mean(axis=0), color=colour, linestyle=style)
            band: Any = {"color": colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), **band)
        axes.axhline(0.5, color=INK, linewidth=1.0, linestyle=":")
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy")
        axes.set_xlim(1, panel.learner.shape[1])
        axes.set_ylim(0.3, 0.9)
        return inline_drawing(save_drawing(axes), name)
