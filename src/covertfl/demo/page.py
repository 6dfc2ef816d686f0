"""The HTML page of the demonstration: the table and the accuracy curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import Missing
from covertfl.report.page import render_template

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind readers can distinguish.
LEARNER, EAVESDROPPER, AWARE, GUESS = "#0072B2", "#D55E00", "#009E73", "#666666"

GRID_COLUMNS = 12  # a line of one to four panels divides them


@dataclass(frozen=True, eq=False)
class Panel:
    """The curves of one condition: accuracies after each round, (runs, N).

    Parameters
    ----------
    eavesdropper : the paper's, which counts queries
    aware : one that knows the scheme
    """

    title: str
    learner: FloatArray
    eavesdropper: FloatArray
    aware: FloatArray


def render_page(rows: Sequence[Mapping[str, Any]], panels: Sequence[Panel]) -> str:
    """Render the page, complete in itself, from the rows of its table and its panels."""
    curves = _draw_curves(panels)
    return render_template("covertfl.demo", "demo.html", {"rows": rows, "curves": curves})


def _draw_curves(panels: Sequence[Panel]) -> str:
    """Draw the accuracy of learner and eavesdropper by round, one panel per condition, as SVG."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing("the page needs matplotlib: pip install 'covertfl[report]'") from error
    lines = _arrange(panels)
    with mpl.rc_context({"svg.hashsalt": "covertfl", "font.size": 9}):
        figure = Figure(figsize=(10.5, 2.7 * len(lines) + 0.4), layout="constrained")
        grid = figure.add_gridspec(len(lines), GRID_COLUMNS)
        for number, line in enumerate(lines):
            width = GRID_COLUMNS // len(line)
            for place, panel in enumerate(line):
                axis = figure.add_subplot(grid[number, width * place : width * (place + 1)])
                _draw_panel(axis, panel)
                axis.set_ylabel("accuracy" if place == 0 else "")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _arrange(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Return the panels in lines of about three; none stands alone below a full line."""
    count = max(1, round(len(panels) / 3))
    ends = [len(panels) * number // count for number in range(count + 1)]
    return [panels[start:end] for start, end in pairwise(ends)]


def _draw_panel(axis: Axes, panel: Panel) -> None:
    curves = (
        ("learner", LEARNER, "-", panel.learner),
        ("eavesdropper that counts queries", EAVESDROPPER, "-", panel.eavesdropper),
        ("eavesdropper that knows the scheme", AWARE, "--", panel.aware),
    )
    for label, colour, style, values in curves:
        rounds = np.arange(1, values.shape[1] + 1)
        axis.plot(rounds, values.mean(axis=0), color=colour, linestyle=style, label=label)
        band: Any = {"color": colour, "alpha": 0.15, "linewidth": 0}
        axis.fill_between(rounds, values.min(axis=0), values.max(axis=0), **band)
    axis.axhline(0.5, color=GUESS, linewidth=0.8, linestyle=":", label="guessing")
    axis.set_title(panel.title)
    axis.set_xlabel("round")
    axis.set_xlim(1, panel.learner.shape[1])
    axis.set_ylim(0.3, 0.9)
