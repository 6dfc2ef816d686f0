"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.decision.problem_file import LoadedProblem

ProblemArgument = Annotated[
    Path | None, typer.Argument(metavar="PROBLEM.TOML", help="Problem file.", show_default=False)
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset", metavar="READING/NAME", help="Use a shipped problem instead of a file."
    ),
]
RunFileArgument = Annotated[Path, typer.Argument(metavar="RUN.TOML", help="Run file.")]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Resume the runs in DIR.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the runs in DIR.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables and sentences.")
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="DIR|URL",
        help="Folder or address of the service; otherwise the one started last.",
    ),
]


def read_problem_argument(path: Path | None, preset: str | None) -> LoadedProblem:
    """Return the problem of a file or a preset; raise InvalidInput unless one of them is given."""
    from covertfl.decision.problem_file import read_preset, read_problem

    if (path is None) == (preset is None):
        given = "neither" if path is None else "both"
        raise InvalidInput(f"give either a problem file or --preset READING/NAME, got {given}")
    return read_preset(preset) if preset is not None else read_problem(path or "")


def check_resume_and_force(resume: bool, force: bool) -> None:
    """Raise InvalidInput if a run is to be resumed and replaced."""
    if resume and force:
        raise InvalidInput("--resume continues a run and --force replaces it: give one of them")
