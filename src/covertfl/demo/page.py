"""The HTML page of the demonstration: the table and the accuracy curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import Missing
from covertfl.report.page import render_template

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind readers can distinguish.
LEARNER, EAVESDROPPER, GUESS = "#0072B2", "#D55E00", "#666666"


@dataclass(frozen=True, eq=False)
class Panel:
    """The curves of one condition: accuracies after each round, (runs, N)."""

    title: str
    learner: FloatArray
    eavesdropper: FloatArray


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
    columns = 3
    lines = -(-len(panels) // columns)
    with mpl.rc_context({"svg.hashsalt": "covertfl", "font.size": 9}):
        figure = Figure(figsize=(10.5, 2.7 * lines + 0.4), layout="constrained")
        axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            _draw_panel(axis, panel)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _draw_panel(axis: Axes, panel: Panel) -> None:
    curves = (
        ("learner", LEARNER, panel.learner),
        ("eavesdropper", EAVESDROPPER, panel.eavesdropper),
    )
    for label, colour, values in curves:
        rounds = np.arange(1, values.shape[1] + 1)
        axis.plot(rounds, values.mean(axis=0), color=colour, label=f"{label}, mean")
        band: Any = {"color": colour, "alpha": 0.2, "linewidth": 0}
        ends = values.min(axis=0), values.max(axis=0)
        axis.fill_between(rounds, *ends, **band, label=f"{label}, range over runs")
    axis.axhline(0.5, color=GUESS, linewidth=0.8, linestyle=":", label="guessing")
    axis.set_title(panel.title)
    axis.set_xlabel("round")
    axis.set_ylabel("accuracy")
    axis.set_ylim(0.3, 0.9)
    axis.tick_params(labelbottom=True)
