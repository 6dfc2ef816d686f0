"""Every figure is drawn as it was: size, words, ticks, colours, lines and the numbers they show.

python -m tests.display.test_drawn_figures     # writes down how they are drawn now
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import covertfl as cf
from covertfl.auditing.matrix import draw_matrix
from covertfl.display.curves import plot_training
from covertfl.report.write import write_report
from tests.support.reports import COMMAND, write_runs

STORED = Path(__file__).parent / "stored" / "figures.json"
# What an artist may be asked for.
ASPECTS = """alpha array color facecolor fontsize label linestyle linewidth marker markersize
ncols offsets rotation segments sizes text xydata"""
KEYS = ("names_true", "final_accuracy")
ROWS = [
    {
        "policy": policy,
        "decoy": "public",
        "eavesdroppers": {"largest": dict(zip(KEYS, shares, strict=True))},
    }
    for policy, shares in (("optimal", (0.1, 0.5)), ("greedy", (0.9, 0.8)))
]


def shorten(value: Any) -> str:
    """Describe a value in few letters: of many numbers their first, count, extremes and mean."""
    if isinstance(value, str) or value is None:
        return str(value)
    numbers = np.ma.filled(np.ma.asarray(value, dtype=np.float64), np.nan).ravel()
    if numbers.size > 4:
        known = numbers[np.isfinite(numbers)]
        summary = [*numbers[:4], numbers.size]
        summary += [known.min(), known.max(), known.mean()] if known.size else []
        return "first 4, n, min, max, mean " + " ".join(f"{number:.3g}" for number in summary)
    return " ".join(f"{number:.3g}" for number in numbers)


def describe_artist(artist: Any) -> str:
    found = []
    for aspect in ASPECTS.split():
        ask = getattr(artist, f"get_{aspect}", None)
        try:
            value = None if ask is None else ask()
            if value is not None and not str(value).startswith(("_child", "Cbar")):
                found.append(f"{aspect}: {shorten(value)}")
        except (TypeError, ValueError):
            continue
    return f"{type(artist).__name__} " + ", ".join(found)


def describe_axes(axes: Axes) -> list[str]:
    lines = [
        f"axes x: {axes.get_xlabel()}, {shorten(axes.get_xlim())}, {shorten(axes.get_xticks())}",
        f"axes y: {axes.get_ylabel()}, {shorten(axes.get_ylim())}, {shorten(axes.get_yticks())}",
    ]
    words = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    lines.append("ticks: " + " | ".join(filter(None, words)))
    drawn = (*axes.lines, *axes.collections, *axes.images, *axes.patches, *axes.texts)
    lines += [describe_artist(artist) for artist in drawn]
    lines += [axes.get_title(loc=side) for side in ("left", "center") if axes.get_title(loc=side)]
    return lines


def describe(figure: Figure) -> list[str]:
    figure.canvas.draw()
    lines = [f"size {shorten(figure.get_size_inches())}"]
    for axes in figure.axes:
        lines += describe_axes(axes)
    for legend in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        lines += [f"legend {describe_artist(text)}" for text in legend.get_texts()]
    return lines + [describe_artist(text) for text in figure.texts]


@contextmanager
def watch_saved() -> Iterator[list[list[str]]]:
    """Describe figures when they are saved."""
    saved: list[list[str]] = []
    save = Figure.savefig

    def note(figure: Figure, *arguments: Any, **options: Any) -> None:
        if options.get("format") == "png":
            saved.append(describe(figure))
        save(figure, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", note)
        yield saved


def draw_all(folder: Path) -> dict[str, list[str]]:
    """Draw every kind of figure and return how each is drawn, by name."""
    horizon, queue = cf.load_problem("sound/main"), cf.load_problem("paper-code/queue")
    step = replace(horizon, learning_cost=cf.LearningCost("constant", 9.0))
    drawn = {
        "horizon policy without thresholds": describe(cf.solve(step).plot()),
        "horizon policy": describe(cf.solve(horizon).plot()),
        "queue policy": describe(cf.solve(queue).plot()),
        "search": describe(cf.solve(queue, method="spga", iterations=300, seed=1).plot()),
        "training": describe(plot_training(np.linspace(0, 1, 12).reshape(2, 6), np.ones((2, 6)))),
    }
    for problem in (horizon, queue):
        for name, figure in cf.plan(problem).figures().items():
            drawn[f"plan {name}"] = describe(figure)
    with watch_saved() as saved:
        write_report(write_runs(folder / "runs"), command=COMMAND)
        draw_matrix(ROWS)
    drawn |= {f"saved {number}": lines for number, lines in enumerate(saved)}
    return drawn


def test_every_figure_is_drawn_as_it_was(tmp_path: Path) -> None:
    drawn, stored = draw_all(tmp_path), json.loads(STORED.read_text())
    assert drawn.keys() == stored.keys()
    for name, lines in stored.items():
        assert drawn[name] == lines, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        STORED.write_text(json.dumps(draw_all(Path(folder)), indent=1) + "\n")
