"""The application: its commands and its exit statuses.

Exit status: 0 done, 2 invalid input, 3 no solution, 4 data or a dependency is missing, 130
interrupted.  Results go to standard output, progress and errors to standard error; `--json` prints
one JSON object to standard output and nothing else, the result or {"error": {"message", "status"}}.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import click
import typer
import typer.core
from typer._completion_classes import completion_init
from typer._completion_shared import Shells, get_completion_script, install

from covertfl import __version__
from covertfl.cli.deploy_local import deploy_local
from covertfl.cli.problems import fit, plan, presets, solve
from covertfl.cli.results import audit, demo, report
from covertfl.cli.runs import embed, export, federation, predict, train
from covertfl.cli.service import request, serve, status as show_status, versions
from covertfl.cli.terminal import INTERRUPTED, CommandGroup, await_answer, print_error, suggest
from covertfl.errors import CovertflError, InvalidInput, NoSolution

PROGRAM = "covertfl"
COMPLETE = "_COVERTFL_COMPLETE"  # set by the shell's completion script

typer.core.HAS_RICH = False  # help is plain text; otherwise its brackets come out as \[default]

app = typer.Typer(
    name=PROGRAM,
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Covert federated learning: when to send the true model, when a decoy, and what leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"covertfl {__version__}")
        raise typer.Exit


def _show_completion(shell: Shells | None) -> None:
    if shell is not None:
        script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE, shell=shell.value)
        print(script)
        raise typer.Exit


def _install_completion(shell: Shells | None) -> None:
    if shell is not None:
        name, path = install(shell=shell.value, prog_name=PROGRAM, complete_var=COMPLETE)
        print(f"Completion for {name} is in {path}; it works in the next shell that is started.")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    show_completion: Annotated[
        Shells | None,
        typer.Option(
            callback=_show_completion, is_eager=True, help="Print a shell's completion script."
        ),
    ] = None,
    install_completion: Annotated[
        Shells | None,
        typer.Option(
            callback=_install_completion,
            is_eager=True,
            help="Install completion of commands and options for a shell.",
        ),
    ] = None,
) -> None:
    pass


COMMANDS = (
    *(solve, plan, fit, presets),
    *(embed, train, deploy_local, serve, export, predict),
    *(request, show_status, versions),
    *(audit, report, demo),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(federation, name="federation")


def main() -> None:
    """Run the command line."""
    if COMPLETE in os.environ:
        completion_init()
    run_app(app, PROGRAM)


def run_app(commands: typer.Typer, program: str) -> NoReturn:
    """Run commands; every error ends in one sentence and an exit status."""
    await_answer()
    try:
        status = commands(prog_name=program, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        _end(_explain(error, program), InvalidInput.exit_status)
    except CovertflError as error:
        _end(str(error), error.exit_status)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _end(f"{name}{error.strerror or error}", InvalidInput.exit_status)
    except RecursionError:
        _end("a file that was given is nested too deeply to be read", InvalidInput.exit_status)
    except MemoryError:
        _end("the problem does not fit into memory", NoSolution.exit_status)
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", INTERRUPTED)


def _end(sentence: str, status: int) -> NoReturn:
    """Print why the command ends, and exit."""
    if sentence.startswith("Usage:"):  # without a command: the help itself
        print(sentence, file=sys.stderr)
    else:
        print_error(sentence, status)
    sys.exit(status)


def _explain(error: click.ClickException, program: str) -> str:
    """Return what is wrong with the arguments, in one sentence, and where to look them up."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage:"):
        return message
    if isinstance(error, click.NoSuchOption):
        message = error.message.rstrip(".") + suggest(error.option_name, error.possibilities or [])
    command = context.command_path if context is not None else program
    return f"{' '.join(message.split()).rstrip('.')} (see {command} --help)"
