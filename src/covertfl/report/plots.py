"""The plots of a report: one panel each, legends outside, Okabe and Ito's colours.

A plot is kept three times: PNG and SVG on white for use elsewhere, and an SVG for the page whose
colours are the page's own variables, so that it follows its light or dark scheme.
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
# What the page calls these colours; it may lighten them where it is dark.
VARIABLES = {
    INK: "--ink",
    GRID: "--grid",
    BLUE: "--blue",
    VERMILION: "--vermilion",
    GREEN: "--green",
    PURPLE: "--purple",
    ORANGE: "--orange",
}
LINES = ((VERMILION, "--"), (GREEN, "-."), (PURPLE, (0, (4, 1, 1, 1, 1, 1))), (ORANGE, ":"))
# Actions are drawn as an image, which keeps its colours on a dark page; they do so in the legend as
# well, for this blue is not the page's.
OBFUSCATE, LEARN, FAILED = (0.5, 0.5, 0.5, 0.25), (0.0, 0.451, 0.698, 1.0), (0.902, 0.624, 0, 1.0)
WIDTH = 5.0  # inches: narrow enough for letters to stay legible on a phone
MOST_NAMED_RUNS = 12
MOST_SHAPES = 2000  # cells of a map that are drawn one by one; more become an image
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


@dataclass(frozen=True)
class Plot:
    """A plot as bytes.

    Parameters
    ----------
    png, svg : on white
    inline : SVG in the page's colours, without its own background
    """

    png: bytes
    svg: bytes
    inline: str


@contextmanager
def _new_axes(height: float) -> Iterator[Axes]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing("a report needs matplotlib: pip install 'covertfl[report]'") from error
    with mpl.rc_context(STYLE):
        axes = Figure(figsize=(WIDTH, height), layout="constrained").subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        yield axes


def _finish(axes: Axes, name: str, handles: Sequence[Any] | None = None) -> Plot:
    """Add the legend, of `handles` where they are given, below the axes, and keep the plot."""
    figure: Any = axes.figure
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    if shown:
        figure.legend(handles=shown, loc="outside lower center", ncols=2, frameon=False)
    drawing = _save(figure, "svg", facecolor="none").decode()
    figure.set_layout_engine("none")  # it is laid out by now
    return Plot(
        png=_save(figure, "png", facecolor="white", dpi=150),
        svg=re.sub(r"<svg [^>]*>", _add_paper, drawing, count=1).encode(),
        inline=_adapt(drawing, name),
    )


def _add_paper(opening: re.Match[str]) -> str:
    return f'{opening[0]}\n <rect width="100%" height="100%" fill="#ffffff"/>'


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    # Without a date the same results give the same bytes.
    metadata = {"Date": None, "Creator": "covertfl"} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def _adapt(text: str, name: str) -> str:
    """An SVG for the page: its colours, and names of its own among the page's other plots."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(f": {colour}(?![0-9a-f])", f": var({variable})", text)
    return text


def _draw_spread(
    axes: Axes, table: FloatArray, colour: str, label: str, *, linestyle: Any = "-"
) -> None:
    """Mean over runs by round, in the range from the least to the most."""
    present = ~np.all(np.isnan(table), axis=0)
    if not present.any():
        return
    rounds = np.flatnonzero(present) + 1
    kept = table[:, present]
    several = len(table) > 1
    label = f"{label}, mean" if several else label
    axes.plot(rounds, np.nanmean(kept, axis=0), color=colour, linestyle=linestyle, label=label)
    if several:
        axes.fill_between(
            rounds,
            np.nanmin(kept, axis=0),
            np.nanmax(kept, axis=0),
            color=colour,
            alpha=0.2,
            linewidth=0,
            label="least to most over runs",
        )


def _label_rounds(axes: Axes, length: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.set_xlim(0.5, max(length, 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_scores(
    learner: FloatArray, others: Mapping[str, Sequence[float]], *, unit: str, name: str
) -> Plot:
    """Score of the learner, (runs, N), and the mean scores of some others, by round."""
    with _new_axes(4.0) as axes:
        _draw_spread(axes, learner, BLUE, "learner")
        for (label, values), (colour, dash) in zip(others.items(), LINES, strict=False):
            rounds = np.arange(1, len(values) + 1)
            axes.plot(rounds, values, color=colour, linestyle=dash, linewidth=1.8, label=label)
        lengths = [learner.shape[1], *map(len, others.values())]
        _label_rounds(axes, max(lengths))
        axes.set_ylabel(unit)
        return _finish(axes, name)


def plot_actions(actions: npt.NDArray[np.int_], run_names: Sequence[str], *, name: str) -> Plot:
    """What was done in each round of each run.

    Parameters
    ----------
    actions : (runs, N) 0 obfuscate, 1 learn with an update, 2 learn in vain, -1 no round
    """
    from matplotlib.patches import Patch

    runs, length = actions.shape
    colours = np.array([OBFUSCATE, LEARN, FAILED, (0.0, 0.0, 0.0, 0.0)])
    with _new_axes(1.5 + 0.3 * min(max(runs, 2), MOST_NAMED_RUNS)) as axes:
        axes.grid(visible=False)
        axes.imshow(
            colours[actions],
            aspect="auto",
            interpolation="none",
            extent=(0.5, length + 0.5, runs - 0.5, -0.5),
        )
        for edge in range(1, runs if runs <= MOST_NAMED_RUNS else 0):
            axes.axhline(edge - 0.5, color=GRID, linewidth=1.5)
        _label_rounds(axes, length)
        if runs <= MOST_NAMED_RUNS:
            axes.set_yticks(range(runs), run_names)
        axes.set_ylabel("run")
        kinds = (
            (LEARN, "learning, updated"),
            (FAILED, "learning, in vain"),
            (OBFUSCATE, "obfuscating"),
        )
        patches = [Patch(facecolor=colour, label=label) for colour, label in kinds]
        return _finish(axes, name, patches)


def plot_exposure(exposure: FloatArray, *, name: str) -> Plot:
    """Share of learning queries so far, (runs, N), with the line at one half."""
    with _new_axes(3.4) as axes:
        _draw_spread(axes, 100.0 * exposure, BLUE, "learning queries so far")
        axes.axhline(50.0, color=VERMILION, linestyle="--", linewidth=1.5, label="one half")
        _label_rounds(axes, exposure.shape[1])
        axes.set_ylim(0.0, 103.0)
        axes.set_ylabel("exposure (% of rounds so far)")
        return _finish(axes, name)


def plot_policy(probs: FloatArray, *, name: str) -> Plot:
    """Mean chance of learning by oracle state and backlog; hatched where never seen."""
    import matplotlib as mpl

    states, width = probs.shape
    with _new_axes(2.0 + 0.35 * states) as axes:
        axes.grid(visible=False)
        axes.axvspan(-0.5, width - 0.5, facecolor="none", edgecolor=GRID, hatch="////", linewidth=0)
        image = axes.pcolormesh(
            np.arange(width + 1) - 0.5,
            np.arange(states + 1) - 0.5,
            np.ma.masked_invalid(probs),
            # Few colours: more cannot be told apart, and each is a shape in the file.
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
        bar.set_label("mean chance of learning")
        bar.outline.set_edgecolor(INK)
        return _finish(axes, name)


def _label_backlogs(axes: Axes, states: int) -> None:
    from matplotlib.ticker import MaxNLocator

    ends = {0: "0 (worst)", states - 1: f"{states - 1} (best)"} if states > 1 else {}
    axes.set_yticks(range(states), [ends.get(state, str(state)) for state in range(states)])
    axes.set_ylabel("oracle state")
    axes.set_xlabel("backlog (updates owed)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_backlog(backlog: FloatArray, limit: float | None, *, name: str) -> Plot:
    """Updates owed after each round, (runs, N), with the mean that a limit allows."""
    with _new_axes(3.4) as axes:
        _draw_spread(axes, backlog, BLUE, "backlog")
        if limit is not None:
            axes.axhline(
                limit, color=VERMILION, linestyle="--", label=f"limit on the mean, {limit:.3g}"
            )
        _label_rounds(axes, backlog.shape[1])
        axes.set_ylim(bottom=0.0)
        axes.set_ylabel("backlog (updates owed)")
        return _finish(axes, name)


def plot_waits(waits: FloatArray, little: float | None, limit: float | None, *, name: str) -> Plot:
    """How long updates waited, with the mean, Little's law and the mean that a limit allows."""
    from matplotlib.ticker import MaxNLocator

    with _new_axes(3.4) as axes:
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
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("wait from coming to done (rounds)")
        axes.set_ylabel("updates")
        return _finish(axes, name)


def plot_success_probs(
    probs: Mapping[str, tuple[float, tuple[float, float]]],
    bound: tuple[float, float] | None,
    guess: float,
    *,
    name: str,
) -> Plot:
    """Chance of naming the true model with its interval, by eavesdropper, the first on top."""
    with _new_axes(1.5 + 0.27 * len(probs)) as axes:
        values = 100.0 * np.array([value for value, _ in probs.values()])
        ends = 100.0 * np.array([interval for _, interval in probs.values()])
        rows = np.arange(len(probs))
        axes.hlines(rows, ends[:, 0], ends[:, 1], color=BLUE, linewidth=2.0, label="95% interval")
        axes.plot(values, rows, "o", color=BLUE, markersize=6, label="share of runs", clip_on=False)
        axes.axvline(100.0 * guess, color=INK, linestyle=":", linewidth=1.2, label="a guess")
        if bound is not None:
            axes.axvspan(
                100.0 * bound[0],
                100.0 * bound[1],
                color=VERMILION,
                alpha=0.4,
                linewidth=0,
                label="most by schedule alone (F4)",
            )
        axes.set_yticks(rows, list(probs))
        axes.set_ylim(len(probs) - 0.5, -0.5)
        axes.set_xlim(0.0, 100.0)
        axes.set_xlabel("names the true model (% of runs)")
        return _finish(axes, name)
