"""The common form of a report's plots: one panel, legend outside, Okabe and Ito's colours.

A plot is returned in three forms: PNG and SVG on white for use elsewhere, and an SVG for the page
whose colours are the page's variables, so that it follows the light or dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
def new_axes(height: float) -> Iterator[Axes]:
    """Create the axes of a plot of some height in inches, in the common style."""
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


def finish(axes: Axes, name: str, handles: Sequence[Any] | None = None) -> Plot:
    """Add the legend below the axes, of `handles` if given, and return the plot."""
    figure: Any = axes.figure
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    if shown:
        figure.legend(handles=shown, loc="outside lower center", ncols=2, frameon=False)
    drawing = _save(figure, "svg", facecolor="none").decode()
    figure.set_layout_engine("none")  # the layout is done
    return Plot(
        png=_save(figure, "png", facecolor="white", dpi=150),
        svg=re.sub(r"<svg [^>]*>", _add_paper, drawing, count=1).encode(),
        inline=_adapt(drawing, name),
    )


def _add_paper(opening: re.Match[str]) -> str:
    return f'{opening[0]}\n <rect width="100%" height="100%" fill="#ffffff"/>'


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    # Without a date, the same results yield the same bytes.
    metadata = {"Date": None, "Creator": "covertfl"} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def _adapt(text: str, name: str) -> str:
    """Return an SVG for the page: in its colours, with identifiers unique among its plots."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, variable in VARIABLES.items():
        text = re.sub(f": {colour}(?![0-9a-f])", f": var({variable})", text)
    return text
