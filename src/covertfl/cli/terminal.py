"""The terminal's side of commands: groups, options that several have, progress and printing."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.core

from covertfl.errors import CovertflError, InvalidInput

if TYPE_CHECKING:
    from covertfl.api.result import Result
    from covertfl.decision.problem_file import LoadedProblem
    from covertfl.runs.files import RunSummary
    from covertfl.runs.train import RunProgress

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


# Seconds between two lines of progress where standard error is not a terminal.
LINE_SECONDS = 10.0

Update = Callable[[str, float], None]


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(content, allow_nan=False))
    _Answer.is_printed = True


class _Answer:
    """Whether the one JSON object of a command has been printed."""

    is_printed = False


def print_error(sentence: str, status: int) -> None:
    """Print why a command ends: as JSON to standard output with --json, else to standard error.

    An error after the answer goes to standard error, which keeps the answer one JSON object.
    """
    if "--json" in sys.argv[1:] and not _Answer.is_printed:
        print_json({"error": {"message": sentence, "status": status}})
    else:
        print_remark(sentence)


def await_answer() -> None:
    """Begin a command: nothing has been printed yet."""
    _Answer.is_printed = False


@contextmanager
def advise_if_interrupted(sentence: str) -> Iterator[None]:
    """Add to an interruption how to go on; the application prints it."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(sentence)
        raise


def advise_to_resume() -> AbstractContextManager[None]:
    """Add the command that resumes the run to an interruption of this command."""
    kept = [part for part in sys.argv[1:] if part not in ("--force", "--resume")]
    command = shlex.join(["covertfl", *kept, "--resume"])
    return advise_if_interrupted(f"to continue: {command}")


def print_remark(sentence: str) -> None:
    """Print a sentence for people to standard error."""
    print(f"covertfl: {sentence}", file=sys.stderr)


def print_warnings(summaries: Sequence[RunSummary]) -> None:
    """Print the warnings of runs to standard error, each once, with the number of runs."""
    found = Counter(warning for summary in summaries for warning in summary.warnings)
    for warning, number in found.items():
        runs = f" ({number} of {len(summaries)} runs)" if len(summaries) > 1 else ""
        print_remark(f"warning: {warning}{runs}")


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result as one JSON object or as tables."""
    if as_json:
        print_json(result.to_dict())
        return
    from covertfl.display.tables import print_tables

    print_tables(result)


@contextmanager
def show_progress(what: str) -> Iterator[Update]:
    """Show on standard error how far some work is: a bar, or plain lines off a terminal.

    Yields a callback that takes a detail and the share done, 0 if the share is not known.
    """
    with (_show_bar if sys.stderr.isatty() else _print_lines)(what) as update:
        yield update


@contextmanager
def _show_bar(what: str) -> Iterator[Update]:
    """Show a bar with the elapsed time."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def update(detail: str, share: float) -> None:
            total = 1.0 if share > 0.0 else None
            progress.update(task, description=f"{what}: {detail}", total=total, completed=share)

        yield update


@contextmanager
def _print_lines(what: str) -> Iterator[Update]:
    """Print the latest detail and the elapsed time every ten seconds, nothing for short work."""
    latest, is_done, started = [what], threading.Event(), time.monotonic()

    def update(detail: str, share: float) -> None:
        latest[0] = f"{what}: {detail}" + (f", {share:.0%} done" if share > 0.0 else "")

    def print_latest() -> None:
        while not is_done.wait(LINE_SECONDS):
            seconds = time.monotonic() - started
            print(f"{latest[0]} ({seconds:.0f} s)", file=sys.stderr, flush=True)

    printer = threading.Thread(target=print_latest, daemon=True)
    printer.start()
    try:
        yield update
    finally:
        is_done.set()
        printer.join()


@contextmanager
def show_rounds(what: str) -> Iterator[Callable[[RunProgress], None]]:
    """Show the progress of training runs: the latest round, its state and the learner's score.

    Yields a callback that takes the progress of a run.
    """
    with show_progress(what) as update:
        done: dict[object, int] = {}
        counts = {"done": 0, "total": 0}

        def update_round(progress: RunProgress) -> None:
            counts["total"] += progress.rounds * (progress.run not in done)
            counts["done"] += progress.round - done.get(progress.run, 0)
            done[progress.run] = progress.round
            detail = (
                f"seed {progress.seed} round {progress.round}/{progress.rounds}, "
                f"oracle {progress.oracle_state}, backlog {progress.backlog}, "
                f"exposure {progress.exposure:.0%}, learner {progress.score:.3f}"
            )
            update(detail, counts["done"] / max(counts["total"], 1))

        yield update_round
