"""Schemes, set up in all ways, x eavesdroppers: trained, audited and drawn as a heat map."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from covertfl.arrays import FloatArray
from covertfl.auditing.folders import audit_folders
from covertfl.errors import Missing
from covertfl.files.disk import write_atomically
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import RunProgress
from covertfl.schemes.registry import SCHEMES
from covertfl.schemes.scheme import Variant
from covertfl.training import train_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRINTED = ("majority", "minority", "likelihood", "repeat", "first-moves", "fresh-labels")
# Figure of an eavesdropper and title of its heat map.
PANELS = (
    ("names_true", "share of runs in which it names the true model"),
    ("final_accuracy", "accuracy of its final estimate"),
)


@dataclass(frozen=True, eq=False)
class Cell:
    """One way to set a scheme up: its runs' settings but for the seed, and their folders."""

    variant: Variant
    settings: RunSettings
    folders: Sequence[Path]


def run_matrix(
    settings: RunSettings,
    out: Path,
    *,
    seeds: int,
    names: Collection[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Train and audit every scheme in every way that it lists; finished runs in `out` are kept.

    Parameters
    ----------
    settings : of the runs, except scheme and seed
    seeds : number of runs for each way
    names : of the ways (`Variant.name`); all that the problem admits if None
    on_progress : called with a description and the share that is done

    Returns
    -------
    the content of `--json` and of matrix.json, with one row for each way

    Raises
    ------
    InvalidInput
    Missing
        if matplotlib is not installed
    """
    _require_matplotlib()
    report = on_progress or (lambda _detail, _share: None)
    cells = _list_cells(settings, out, seeds, names)
    _train_cells(cells, report)
    rows = []
    for number, cell in enumerate(cells):
        policy, decoy = cell.variant.policy, cell.variant.decoy
        report(f"auditing {policy} with {decoy}", 0.5 + 0.5 * number / len(cells))
        # Seed by seed: an earlier matrix of more seeds may have left others in the folder.
        found = audit_folders(cell.folders, by_round=False).to_dict()
        rows.append({"policy": policy, "decoy": decoy, **found})
    content = {"seeds": seeds, "rows": rows, "picture": str(out / "matrix.png")}
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(out / "matrix.json", text, mode=0o600)  # exposure by round reveals actions
    write_atomically(out / "matrix.png", draw_matrix(rows))
    return content


def _list_cells(
    settings: RunSettings, out: Path, seeds: int, names: Collection[str] | None
) -> list[Cell]:
    """Return every scheme in every way that the problem admits."""
    cells = []
    for scheme, kind in SCHEMES.items():
        for variant in kind.list_variants(settings.problem):
            if names is not None and variant.name not in names:
                continue
            chosen = settings.with_scheme(scheme, variant.content)
            chosen = chosen if variant.rounds is None else chosen.with_rounds(variant.rounds)
            folders = [out / variant.name / f"seed-{number}" for number in range(seeds)]
            cells.append(Cell(variant, chosen, folders))
    return cells


def _train_cells(cells: Sequence[Cell], report: Callable[[str, float], None]) -> None:
    places = [
        (cell.settings.with_seed(cell.settings.seed + number), folder)
        for cell in cells
        for number, folder in enumerate(cell.folders)
    ]
    num_rounds = sum(settings.rounds for settings, _ in places)
    done: dict[Path, int] = {}

    def on_round(latest: RunProgress) -> None:
        done[latest.run] = latest.round
        report("training", 0.5 * sum(done.values()) / num_rounds)

    train_all(places, resume=True, on_round=on_round)


def _require_matplotlib() -> None:
    """Raise `Missing` without matplotlib; checked before the training, which takes minutes."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise Missing("the heat map needs matplotlib: pip install 'covertfl[report]'") from error
    mpl.use("Agg")


def draw_matrix(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw heat maps of naming the true model and of the final accuracy, as PNG."""
    _require_matplotlib()
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for row in rows for name in row["eavesdroppers"]))
    labels = [f"{row['policy']}, {row['decoy']} decoy" for row in rows]
    with mpl.rc_context({"font.size": 9}):
        size = (4.0 + 0.45 * len(names), 2 * (0.28 * len(rows) + 2.0))
        figure, axes = plt.subplots(2, 1, figsize=size, sharey=True, layout="constrained")
        for axis, (key, title) in zip(axes, PANELS, strict=True):
            values = np.array([_collect(row, key, names) for row in rows], dtype=np.float64)
            low, high = find_colour_ends(values)
            image = axis.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
            _write_values(axis, values, (low + high) / 2.0)
            axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axis.set_yticks(range(len(rows)), labels)
            axis.set_title(title)
            axis.set_xlabel("eavesdropper")
            axis.set_ylabel("policy and decoy")
            figure.colorbar(image, ax=axis, shrink=0.8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        plt.close(figure)
    return buffer.getvalue()


def find_colour_ends(values: FloatArray) -> tuple[float, float]:
    """Return the ends of the colour scale of shares: those of the data, in whole twentieths.

    Values are in 0..1, NaN where unknown; equal ones are given a scale of one twentieth.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 1.0
    low, high = np.floor(20.0 * known.min() + 1e-9), np.ceil(20.0 * known.max() - 1e-9)
    if low == high:
        low, high = (low, high + 1.0) if high < 20.0 else (low - 1.0, high)
    return float(low) / 20.0, float(high) / 20.0


def _collect(row: Mapping[str, Any], key: str, names: Sequence[str]) -> list[float | None]:
    """Return one figure of some eavesdroppers, None where it is unknown."""
    return [row["eavesdroppers"].get(name, {}).get(key) for name in names]


def _write_values(axis: Axes, values: FloatArray, middle: float) -> None:
    """Write the numbers into their cells, white on dark."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            style: Any = {"ha": "center", "va": "center", "fontsize": 7}
            colour = "white" if value < middle else "black"
            axis.text(column, row, f"{value:.2f}", color=colour, **style)


def render_matrix(content: Mapping[str, Any]) -> RenderableType:
    """Return a table of the share of runs in which some eavesdroppers name the true model."""
    table = Table(
        title="Share of runs in which the true model is named, by policy, decoy and eavesdropper",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("policy", "decoy"):
        table.add_column(column, no_wrap=True)
    for column in ("learner", *PRINTED):
        table.add_column(column, justify="right", no_wrap=True)
    for row in content["rows"]:
        cells = _collect(row, "names_true", PRINTED)
        table.add_row(
            row["policy"],
            row["decoy"],
            f"{row['learner']['accuracy']:.3f}",
            *("" if value is None else f"{value:.0%}" for value in cells),
        )
    return table
