"""The report of one or several runs: an HTML page and its plots, from result files alone.

Nothing that solves, trains or attacks is imported: a report can be made wherever the files are.
It shows actions, so it is as private as the records it is made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covertfl import __version__
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.report.cards import list_cards, make_run_row
from covertfl.report.figures import Figure, draw_figures, name_audit_command
from covertfl.report.page import list_differences, list_settings, render_template
from covertfl.report.records import Audit, RunRecords, read_audit, read_run_records
from covertfl.runs.files import find_runs, is_public

PAGE, PLOTS = "report.html", "report"


def write_report(folder: Path, *, command: str, output: Path | None = None) -> Path:
    """Write the report of a run's folder, or of a folder of runs; return the page's path.

    Parameters
    ----------
    folder : where the results are
    command : shown on the page as the one that made it
    output : folder that report.html and the folder report/ are written to; None for `folder`,
        which must then not be a public one: these hold what clients were sent and nothing else

    Raises
    ------
    InvalidInput
        if there is no run, its files were not written by covertfl, or nothing may be written there
    Missing
        if matplotlib or jinja2 is not installed
    """
    output = folder if output is None else output
    if any(map(is_public, (output.resolve(), *output.resolve().parents))):
        raise InvalidInput(
            f"{output} holds what clients were sent and nothing else: name another folder for the "
            "report with -o"
        )
    runs = [read_run_records(path) for path in find_runs(folder)]
    audit = read_audit(folder)
    figures = draw_figures(runs, audit, folder)
    content = _describe(folder, runs, audit, figures, command)
    page = render_template("covertfl.report", "report.html", content)
    _write_files(output, figures, page)
    return output / PAGE


def _write_files(folder: Path, figures: Sequence[Figure], page: str) -> None:
    """Write plots and page, readable by their owner only: they reveal actions."""
    plots = folder / PLOTS
    try:
        plots.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written to: {error.strerror or error}") from error
    for figure in figures:
        if figure.plot is not None:
            write_atomically(plots / f"{figure.name}.png", figure.plot.png, mode=0o600)
            write_atomically(plots / f"{figure.name}.svg", figure.plot.svg, mode=0o600)
    write_atomically(folder / PAGE, page, mode=0o600)


def _describe(
    folder: Path,
    runs: Sequence[RunRecords],
    audit: Audit | None,
    figures: Sequence[Figure],
    command: str,
) -> dict[str, Any]:
    """Return the values that the template names."""
    first = next((run for run in runs if run.settings is not None), runs[0])
    rows = [make_run_row(run) for run in runs]
    return {
        "folder": folder.resolve().name,
        "path": str(folder),
        "audit_command": name_audit_command(folder),
        "runs": rows,
        "first": first,
        "num_queries": sum(run.queries for run in runs),
        "is_public_only": all(run.is_public_only for run in runs),
        "notes": list_notes(runs, audit),
        "cards": list_cards(runs, rows, audit),
        "audit": audit,
        "figures": {figure.name: figure for figure in figures},
        "settings": list_settings(first),
        "versions": first.setting("versions") or {},
        "command": command,
        "version": __version__,
    }


def list_notes(runs: Sequence[RunRecords], audit: Audit | None) -> list[str]:
    """Return reasons to read the page with care."""
    notes = [note for run in runs for note in run.notes]
    for run in runs:
        notes += [f"{run.name}: {warning}." for warning in (run.summary or {}).get("warnings", ())]
    differences = list_differences(runs)
    if differences:
        notes.append(
            f"The runs differ in more than their seeds ({', '.join(differences)}); means over them "
            "may not be meaningful."
        )
    if len({len(run.metrics) for run in runs}) > 1:
        notes.append(
            "The runs have different numbers of rounds; means are over the runs that reached each."
        )
    if audit is not None:
        notes += [f"Audit: {warning}" for warning in audit.get("warnings") or ()]
        if audit["runs"] != len(runs):
            notes.append(
                f"The audit is of another set of runs: it has {audit['runs']}, the folder "
                f"{len(runs)}. Run the audit again."
            )
        elif _is_older(runs, audit):
            notes.append("The audit covers fewer rounds than the runs have. Run the audit again.")
    return notes


def _is_older(runs: Sequence[RunRecords], audit: Audit) -> bool:
    seen = audit["learner"].get("exposure_by_round")
    return bool(seen) and len(seen) < min(len(run.rounds) for run in runs)
