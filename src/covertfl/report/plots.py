"""The plots of a report, each from arrays or mappings of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.report.canvas import (
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    Plot,
    finish,
    new_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ((VERMILION, "--"), (GREEN, "-."), (PURPLE, (0, (4, 1, 1, 1, 1, 1))), (ORANGE, ":"))
# Actions are drawn as an image, whose colours are the same on a dark page; those in the legend must
# be too, so this blue is not the page's.
OBFUSCATE, LEARN, FAILED = (0.5, 0.5, 0.5, 0.25), (0.0, 0.451, 0.698, 1.0), (0.902, 0.624, 0, 1.0)
MOST_NAMED_RUNS = 12
MOST_SHAPES = 2000  # cells of a map drawn one by one; larger maps become an image


def plot_scores(
    learner: FloatArray, others: Mapping[str, Sequence[float]], *, unit: str, name: str
) -> Plot:
    """Plot the learner's score, (runs, N), and mean scores of eavesdroppers, by round."""
    with new_axes(4.0) as axes:
        _draw_spread(axes, learner, BLUE, "learner")
        for (label, values), (colour, dash) in zip(others.items(), LINES, strict=False):
            rounds = np.arange(1, len(values) + 1)
            axes.plot(rounds, values, color=colour, linestyle=dash, linewidth=1.8, label=label)
        lengths = [learner.shape[1], *map(len, others.values())]
        _label_rounds(axes, max(lengths))
        axes.set_ylabel(unit)
        return finish(axes, name)


def plot_actions(actions: npt.NDArray[np.int_], run_names: Sequence[str], *, name: str) -> Plot:
    """Plot the action in each round of each run.

    Parameters
    ----------
    actions : (runs, N) 0 obfuscate, 1 learn with an update, 2 learn without one, -1 no round
    """
    from matplotlib.patches import Patch

    runs, length = actions.shape
    colours = np.array([OBFUSCATE, LEARN, FAILED, (0.0, 0.0, 0.0, 0.0)])
    with new_axes(1.5 + 0.3 * min(max(runs, 2), MOST_NAMED_RUNS)) as axes:
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
            (FAILED, "learning, failed"),
            (OBFUSCATE, "obfuscating"),
        )
        patches = [Patch(facecolor=colour, label=label) for colour, label in kinds]
        return finish(axes, name, patches)


def plot_exposure(exposure: FloatArray, *, name: str) -> Plot:
    """Plot the share of learning queries so far, (runs, N), with a line at one half."""
    with new_axes(3.4) as axes:
        _draw_spread(axes, 100.0 * exposure, BLUE, "learning queries so far")
        axes.axhline(50.0, color=VERMILION, linestyle="--", linewidth=1.5, label="one half")
        _label_rounds(axes, exposure.shape[1])
        axes.set_ylim(0.0, 103.0)
        axes.set_ylabel("exposure (% of rounds so far)")
        return finish(axes, name)


def plot_policy(probs: FloatArray, *, name: str) -> Plot:
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
        return finish(axes, name)


def _label_backlogs(axes: Axes, states: int) -> None:
    from matplotlib.ticker import MaxNLocator

    ends = {0: "0 (worst)", states - 1: f"{states - 1} (best)"} if states > 1 else {}
    axes.set_yticks(range(states), [ends.get(state, str(state)) for state in range(states)])
    axes.set_ylabel("oracle state")
    axes.set_xlabel("backlog (pending updates)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_backlog(backlog: FloatArray, limit: float | None, *, name: str) -> Plot:
    """Plot the pending updates after each round, (runs, N), and the mean that a limit allows."""
    with new_axes(3.4) as axes:
        _draw_spread(axes, backlog, BLUE, "backlog")
        if limit is not None:
            axes.axhline(
                limit, color=VERMILION, linestyle="--", label=f"limit on the mean, {limit:.3g}"
            )
        _label_rounds(axes, backlog.shape[1])
        axes.set_ylim(bottom=0.0)
        axes.set_ylabel("backlog (pending updates)")
        return finish(axes, name)


def plot_waits(waits: FloatArray, little: float | None, limit: float | None, *, name: str) -> Plot:
    """Plot how long updates waited, their mean, Little's law and the mean that a limit allows."""
    from matplotlib.ticker import MaxNLocator

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
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("wait from arrival to update (rounds)")
        axes.set_ylabel("updates")
        return finish(axes, name)


def plot_naming_shares(
    shares: Mapping[str, tuple[float, tuple[float, float]]],
    bound: tuple[float, float] | None,
    guess: float,
    *,
    name: str,
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
            axes.axvspan(
                100.0 * bound[0],
                100.0 * bound[1],
                color=VERMILION,
                alpha=0.4,
                linewidth=0,
                label="upper bound by schedule alone (F4)",
            )
        axes.set_yticks(rows, list(shares))
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlim(0.0, 100.0)
        axes.set_xlabel("names the true model (% of runs)")
        return finish(axes, name)


def _draw_spread(
    axes: Axes, table: FloatArray, colour: str, label: str, *, linestyle: Any = "-"
) -> None:
    """Draw the mean over runs by round, within their range."""
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
            label="range over runs",
        )


def _label_rounds(axes: Axes, length: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.set_xlim(0.5, max(length, 1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
