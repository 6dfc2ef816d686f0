"""The plots of a report, each from arrays or mappings of numbers.

All have one panel, a legend outside and Okabe and Ito's colours.  A plot is made in three forms:
PNG and SVG on white for use elsewhere, and an SVG for the page whose colours are the page's
variables, so that it follows the light or dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.errors import Missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"
# The page's variables for these colours; its dark scheme lightens some of them.
VARIABLES = {
    INK: "--ink",
    GRID: "--grid",
    BLUE: "--blue",
    VERMILION: "--vermilion",
    GREEN: "--green",
    PURPLE: "--purple",
    ORANGE: "--orange",
}
WIDTH = 5.0  # inches: narrow enough for the text to be legible on a phone
STYLE: Any = {
    "svg.hashsalt": "covertfl",
    "svg.fonttype": "none",
    "font.size": 10,
    "legend.fontsize": 9,
    "axes.titlesize": 10,
    "axes.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.color": GRID,
}
LINES = ((VERMILION, "--"), (GREEN, "-."), (PURPLE, (0, (4, 1, 1, 1, 1, 1))), (ORANGE, ":"))
# Actions are drawn as an image, whose colours are the same on a dark page; those in the legend must
# be too, so this blue is not the page's.
OBFUSCATE, LEARN, FAILED = (0.5, 0.5, 0.5, 0.25), (0.0, 0.451, 0.698, 1.0), (0.902, 0.624, 0, 1.0)
MOST_NAMED_RUNS = 12
MOST_SHAPES = 2000  # cells of a map drawn one by one; larger maps become an image


@dataclass(frozen=True)
class Plot:
    """A plot as PNG on white, and as SVG without a background."""

    png: bytes
    drawing: str

    @property
    def svg(self) -> bytes:
        """Return the plot as SVG on white."""
        paper = r'\g<0>\n <rect width="100%" height="100%" fill="#ffffff"/>'
        return re.sub(r"<svg [^>]*>", paper, self.drawing, count=1).encode()

    def inline(self, name: str) -> str:
        """Return an SVG in the page's colours, with identifiers that begin with a name."""
        return inline_drawing(self.drawing, name)


def inline_drawing(drawing: str, name: str) -> str:
    """Return an SVG for a page: in its colours, with identifiers that begin with a name."""
    text = drawing[drawing.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(f": {colour}(?![0-9a-f])", f": var({variable})", text)
    return text


@contextmanager
def new_axes(height: float, width: float = WIDTH) -> Iterator[Axes]:
    """Create the axes of a plot of some size in inches, in the common style."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing("a report needs matplotlib: pip install 'covertfl[report]'") from error
    with mpl.rc_context(STYLE):
        axes = Figure(figsize=(width, height), layout="constrained").subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        yield axes


def _finish(axes: Axes, handles: Sequence[Any] | None = None) -> Plot:
    """Add the legend below the axes, of `handles` if given, and return the plot."""
    figure: Any = axes.figure
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    if shown:
        figure.legend(handles=shown, loc="outside lower center", ncols=2, frameon=False)
    drawing = save_drawing(axes)
    figure.set_layout_engine("none")  # the layout is done
    return Plot(_save(figure, "png", facecolor="white", dpi=150), drawing)


def save_drawing(axes: Axes) -> str:
    """Return the figure of some axes as SVG without a background."""
    figure: Any = axes.figure
    return _save(figure, "svg", facecolor="none").decode()


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    # Without a date, the same results yield the same bytes.
    metadata = {"Date": None, "Creator": "covertfl"} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def plot_scores(learner: FloatArray, others: Mapping[str, Sequence[float]]) -> Plot:
    """Plot the learner's accuracy, (runs, N), and mean accuracies of eavesdroppers, by round."""
    with new_axes(4.0) as axes:
        _draw_spread(axes, learner, "learner")
        for (label, values), (colour, dash) in zip(others.items(), LINES, strict=False):
            rounds = np.arange(1, len(values) + 1)
            axes.plot(rounds, values, color=colour, linestyle=dash, linewidth=1.8, label=label)
        lengths = [learner.shape[1], *map(len, others.values())]
        _label_rounds(axes, max(lengths))
        axes.set_ylabel("accuracy on validation data")
        return _finish(axes)


def plot_actions(actions: npt.NDArray[np.int_], run_names: Sequence[str]) -> Plot:
    """Plot the action in each round of each run.

    The actions are (runs, N): 0 obfuscate, 1 learn with an update, 2 without one, -1 no round.
    """
    from matplotlib.patches import Patch

    runs, length = actions.shape
    colours = np.array([OBFUSCATE, LEARN, FAILED, (0.0, 0.0, 0.0, 0.0)])
    with new_axes(1.5 + 0.3 * min(max(runs, 2), MOST_NAMED_RUNS)) as axes:
        axes.grid(visible=False)
        extent = (0.5, length + 0.5, runs - 0.5, -0.5)
        axes.imshow(colours[actions], aspect="auto", interpolation="none", extent=extent)
        for edge in range(1, runs if runs <= MOST_NAMED_RUNS else 0):
            axes.axhline(edge - 0.5, color=GRID, linewidth=1.5)
        _label_rounds(axes, length)
        if runs <= MOST_NAMED_RUNS:
            axes.set_yticks(range(runs), run_names)
        axes.set_ylabel("run")
        patches = [
            Patch(facecolor=LEARN, label="learning, updated"),
            Patch(facecolor=FAILED, label="learning, failed"),
            Patch(facecolor=OBFUSCATE, label="obfuscating"),
        ]
        return _finish(axes, patches)


def plot_exposure(exposure: FloatArray) -> Plot:
    """Plot the share of learning queries so far, (runs, N), with a line at one half."""
    with new_axes(3.4) as axes:
        _draw_spread(axes, 100.0 * exposure, "learning queries so far")
        axes.axhline(50.0, color=VERMILION, linestyle="--", linewidth=1.5, label="one half")
        _label_rounds(axes, exposure.shape[1])
        axes.set_ylim(0.0, 103.0)
        axes.set_ylabel("exposure (% of rounds so far)")
        return _finish(axes)


def plot_policy(probs: FloatArray) -> Plot:
    """Plot mean learning probabilities by oracle state and backlog, hatched where unknown."""
    import matplotlib as mpl

    states, width = probs.shape
    with new_axes(2.0 + 0.35 * states) as axes:
        axes.grid(visible=False)
        axes.axvspan(-0.5, width - 0.5, facecolor="none", edgecolor=GRID, hatch="////", linewidth=0)
        image = axes.pcolormesh(
            np.arange(width + 1) - 0.5,
            np.arange(states + 1) - 0.5,
            np.ma.masked_invalid(probs),
            # Few colours: more cannot be distinguished, and each is a shape in the file.
            cmap=mpl.colormaps["cividis"].resampled(20),
            vmin=0.0,
            vmax=1.0,
            edgecolors="none",
            linewidth=0,
            rasterized=probs.size > MOST_SHAPES,
        )
        _label_backlogs(axes, states)
        figure: Any = axes.figure
        bar = figure.colorbar(image, ax=axes, ticks=[0.0, 0.5, 1.0])
        bar.set_label("mean probability of learning")
        bar.outline.set_edgecolor(INK)
        return _finish(axes)


def _label_backlogs(axes: Axes, states: int) -> None:
    ends = {0: "0 (worst)", states - 1: f"{states - 1} (best)"} if states > 1 else {}
    axes.set_yticks(range(states), [ends.get(state, str(state)) for state in range(states)])
    axes.set_ylabel("oracle state")
    axes.set_xlabel("backlog (pending updates)")
    _use_whole_numbers(axes.xaxis)


def plot_backlog(backlog: FloatArray, limit: float | None) -> Plot:
    """Plot the pending updates after each round, (runs, N), and the mean that a limit allows."""
    with new_axes(3.4) as axes:
        _draw_spread(axes, backlog, "backlog")
        if limit is not None:
            label = f"limit on the mean, {limit:.3g}"
            axes.axhline(limit, color=VERMILION, linestyle="--", label=label)
        _label_rounds(axes, backlog.shape[1])
        axes.set_ylim(bottom=0.0)
        axes.set_ylabel("backlog (pending updates)")
        return _finish(axes)


def plot_waits(waits: FloatArray, little: float | None, limit: float | None) -> Plot:
    """Plot how long updates waited, their mean, Little's law and the mean that a limit allows."""
    with new_axes(3.4) as axes:
        width = max(1, int(np.ceil((waits.max() + 1) / 25)))
        edges = np.arange(0, waits.max() + width + 1, width) - 0.5
        axes.hist(waits, bins=edges.tolist(), color=BLUE, alpha=0.6, label="updates")
        marks = (
            ("mean", float(waits.mean()), INK, "-"),
            ("Little's law", little, GREEN, "-."),
            ("limit on the mean", limit, VERMILION, "--"),
        )
        for label, value, colour, dash in marks:
            if value is not None:
                words = f"{label}, {value:.1f}"
                axes.axvline(value, color=colour, linestyle=dash, linewidth=1.8, label=words)
        _use_whole_numbers(axes.yaxis)
        axes.set_xlabel("wait from arrival to update (rounds)")
        axes.set_ylabel("updates")
        return _finish(axes)


def plot_naming_shares(
    shares: Mapping[str, tuple[float, tuple[float, float]]],
    bound: tuple[float, float] | None,
    guess: float,
) -> Plot:
    """Plot the share of runs in which each eavesdropper names the true model.

    Parameters
    ----------
    shares : share and 95% interval by eavesdropper, from top to bottom
    bound : 95% interval of the largest probability by schedule alone (formula F4 of
        docs/paper_map.md)
    guess : probability of naming the true model by a uniform guess
    """
    with new_axes(1.5 + 0.27 * len(shares)) as axes:
        values = 100.0 * np.array([value for value, _ in shares.values()])
        ends = 100.0 * np.array([interval for _, interval in shares.values()])
        rows = np.arange(len(shares))
        axes.hlines(rows, ends[:, 0], ends[:, 1], color=BLUE, linewidth=2.0, label="95% interval")
        axes.plot(values, rows, "o", color=BLUE, markersize=6, label="share of runs", clip_on=False)
        axes.axvline(100.0 * guess, color=INK, linestyle=":", linewidth=1.2, label="uniform guess")
        if bound is not None:
            low, high = (100.0 * end for end in bound)
            label = "upper bound by schedule alone"
            axes.axvspan(low, high, color=VERMILION, alpha=0.4, linewidth=0, label=label)
        axes.set_yticks(rows, list(shares))
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlim(0.0, 100.0)
        axes.set_xlabel("names the true model (% of runs)")
        return _finish(axes)


def _draw_spread(axes: Axes, table: FloatArray, label: str) -> None:
    """Draw the mean over runs by round, within their range."""
    present = ~np.all(np.isnan(table), axis=0)
    if not present.any():
        return
    rounds = np.flatnonzero(present) + 1
    kept = table[:, present]
    several = len(table) > 1
    label = f"{label}, mean" if several else label
    axes.plot(rounds, np.nanmean(kept, axis=0), color=BLUE, label=label)
    if several:
        ends = np.nanmin(kept, axis=0), np.nanmax(kept, axis=0)
        band: Any = {"color": BLUE, "alpha": 0.2, "linewidth": 0, "label": "range over runs"}
        axes.fill_between(rounds, *ends, **band)


def _label_rounds(axes: Axes, length: int) -> None:
    axes.set_xlabel("round")
    axes.set_xlim(0.5, max(length, 1) + 0.5)
    _use_whole_numbers(axes.xaxis)


def _use_whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
