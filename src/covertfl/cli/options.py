"""The command line's groups, and options that several commands have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.core

from covertfl.errors import CovertflError, InvalidInput

if TYPE_CHECKING:
    from covertfl.decision.problem_file import LoadedProblem

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
LONGEST_SUMMARY = 1000  # characters: help wraps summaries and cuts none off


class Interrupted(CovertflError):
    """A command that the user has ended with Ctrl-C."""

    exit_status = INTERRUPTED


class CommandGroup(typer.core.TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the first sentence of each, wrapped."""
        rows = [
            (name, command.get_short_help_str(LONGEST_SUMMARY))
            for name, command in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command; typer would end an interrupted one without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            advice = getattr(interruption, "__notes__", [])
            raise Interrupted("; ".join(["interrupted", *advice])) from interruption

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with the name that was probably meant."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = suggest(args[0], self.commands)
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def suggest(typed: str, known: Iterable[str]) -> str:
    """Return ". Did you mean ...?" with the nearest known name, empty if none is near."""
    near = difflib.get_close_matches(typed, list(known), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""


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
