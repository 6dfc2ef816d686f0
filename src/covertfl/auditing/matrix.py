"""Policies x decoys x eavesdroppers: trained, audited and drawn as a heat map."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from covertfl.auditing.folders import audit_folders
from covertfl.auditing.summary import describe_audit
from covertfl.decision.problem import FiniteHorizon
from covertfl.decoys.registry import DECOYS
from covertfl.errors import InvalidInput, Missing
from covertfl.files.atomic import write_atomically
from covertfl.runs.progress import RunProgress
from covertfl.runs.settings import PolicyKind, RunSettings
from covertfl.training import train_all

POLICIES: tuple[PolicyKind, ...] = ("greedy", "optimal", "minority", "random")
QUEUE_POLICIES: tuple[PolicyKind, ...] = ("greedy", "optimal")  # the others need a horizon
PRINTED = ("majority", "minority", "likelihood", "repeat", "alignment", "validation")


def run_matrix(
    settings: RunSettings,
    out: Path,
    *,
    seeds: int,
    policies: Sequence[PolicyKind] | None = None,
    decoys: Sequence[str] = tuple(DECOYS),
    on_progress: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Train and audit every policy with every decoy; finished runs in `out` are kept.

    Parameters
    ----------
    settings : of the runs, but for policy, decoy and seed
    seeds : of each pair
    policies : all that the problem admits where None

    Raises
    ------
    InvalidInput
        for a function, which has one decoy of its own and no accuracy
    Missing
        where matplotlib is not installed
    """
    if settings.sections.task == "function":
        raise InvalidInput(
            f"{settings.name}: task must be one with clients for --matrix, got function, which "
            "has one decoy of its own"
        )
    _require_matplotlib()
    if policies is None:
        policies = POLICIES if isinstance(settings.problem, FiniteHorizon) else QUEUE_POLICIES
    report = on_progress or (lambda _detail, _share: None)
    cells = [(policy, decoy) for policy in policies for decoy in decoys]
    places = [
        (settings.with_condition(policy, decoy).with_seed(settings.seed + number), folder)
        for policy, decoy in cells
        for number in range(seeds)
        for folder in [out / f"{policy}-{decoy}" / f"seed-{number}"]
    ]
    rounds = settings.rounds * len(places)
    done: dict[Path, int] = {}

    def on_round(latest: RunProgress) -> None:
        done[latest.run] = latest.round
        report("training", 0.5 * sum(done.values()) / rounds)

    train_all(places, resume=True, on_round=on_round)
    rows = []
    for number, (policy, decoy) in enumerate(cells):
        report(f"auditing {policy} with {decoy}", 0.5 + 0.5 * number / len(cells))
        # Not the folder as a whole: an earlier matrix of more seeds may have left others in it.
        runs = [path for _, path in places[number * seeds : (number + 1) * seeds]]
        audited = describe_audit(audit_folders(runs))
        rows.append({"policy": policy, "decoy": decoy, **audited})
    picture = out / "matrix.png"
    content = {"seeds": seeds, "rows": rows, "picture": str(picture)}
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(out / "matrix.json", text, mode=0o600)  # exposure by round tells of actions
    write_atomically(picture, draw_matrix(rows))
    return content


def _collect(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[str], Any]:
    """Eavesdroppers, and a table of one figure by row and eavesdropper."""
    names = list(rows[0]["eavesdroppers"])
    table = [
        [row["eavesdroppers"].get(name, {}).get(key, np.nan) for name in names] for row in rows
    ]
    return names, np.array(table, dtype=np.float64)


def _require_matplotlib() -> None:
    """Before the training, which takes minutes."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise Missing("the heat map needs matplotlib: pip install 'covertfl[report]'") from error
    mpl.use("Agg")


def draw_matrix(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Heat maps of the chance to name the true model and of the final accuracy, as PNG."""
    _require_matplotlib()
    import io

    import matplotlib as mpl
    from matplotlib import pyplot as plt

    panels = (
        ("names_true", "chance of naming the true model", 0.0, 1.0),
        ("final_accuracy", "accuracy of what it ends up with", 0.4, 0.85),
    )
    height = 0.32 * len(rows) + 2.6
    with mpl.rc_context({"font.size": 9}):
        figure, axes = plt.subplots(1, 2, figsize=(14.0, height), sharey=True)
        for axis, (key, title, low, high) in zip(axes, panels, strict=True):
            names, values = _collect(rows, key)
            image = axis.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
            for (row, column), value in np.ndenumerate(values):
                if np.isfinite(value):
                    dark = value < (low + high) / 2.0
                    axis.text(
                        column,
                        row,
                        f"{value:.2f}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white" if dark else "black",
                    )
            axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axis.set_title(title)
            axis.set_xlabel("eavesdropper")
            figure.colorbar(image, ax=axis, shrink=0.8)
        labels = [f"{row['policy']}, {row['decoy']} decoy" for row in rows]
        axes[0].set_yticks(range(len(rows)), labels)
        axes[0].set_ylabel("policy and decoy")
        figure.tight_layout()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        plt.close(figure)
    return buffer.getvalue()


def render_matrix(content: Mapping[str, Any]) -> RenderableType:
    """A table of the more telling eavesdroppers: chance of naming the true model."""
    table = Table(
        title="Chance of naming the true model, by policy, decoy and eavesdropper",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("policy", "decoy"):
        table.add_column(column, no_wrap=True)
    for column in ("learner", *PRINTED):
        table.add_column(column, justify="right", no_wrap=True)
    for row in content["rows"]:
        cells = [row["eavesdroppers"].get(name, {}).get("names_true") for name in PRINTED]
        table.add_row(
            row["policy"],
            row["decoy"],
            f"{row['learner']['accuracy']:.3f}",
            *("" if value is None else f"{value:.0%}" for value in cells),
        )
    return table
