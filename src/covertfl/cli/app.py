"""The application: its commands and its exit statuses.

Exit status: 0 done, 2 invalid input, 3 no solution, 4 data or a dependency is missing, 130
interrupted.  Results go to standard output, progress and errors to standard error; `--json` prints
one JSON object and nothing else.
"""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer
import typer.core

from covertfl import __version__
from covertfl.cli.audit import audit
from covertfl.cli.demo import demo
from covertfl.cli.deploy_local import deploy_local
from covertfl.cli.embed import embed
from covertfl.cli.export import export
from covertfl.cli.federation import app as federation
from covertfl.cli.fit import fit
from covertfl.cli.output import print_remark
from covertfl.cli.plan import plan
from covertfl.cli.predict import predict
from covertfl.cli.presets import presets
from covertfl.cli.report import report
from covertfl.cli.reproduce import reproduce
from covertfl.cli.solve import solve
from covertfl.cli.train import train
from covertfl.errors import CovertflError, InvalidInput, NoSolution

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

typer.core.HAS_RICH = False  # help is plain text; otherwise its brackets come out as \[default]

app = typer.Typer(
    name="covertfl",
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


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


COMMANDS = (
    *(solve, plan, fit, presets),
    *(embed, train, deploy_local, export, predict),
    *(audit, report, demo, reproduce),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(federation, name="federation")


def main() -> None:
    """Run the command line; every error ends in one sentence and an exit status."""
    try:
        status = app(prog_name="covertfl", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        print(_explain(error), file=sys.stderr)
        sys.exit(InvalidInput.exit_status)
    except CovertflError as error:
        print_remark(str(error))
        sys.exit(error.exit_status)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print_remark(f"{name}{error.strerror or error}")
        sys.exit(InvalidInput.exit_status)
    except RecursionError:
        print_remark("a file that was given is nested too deeply to be read")
        sys.exit(InvalidInput.exit_status)
    except MemoryError:
        print_remark("the problem does not fit into memory")
        sys.exit(NoSolution.exit_status)
    except (KeyboardInterrupt, click.Abort):
        print_remark("interrupted")
        sys.exit(INTERRUPTED)


def _explain(error: click.ClickException) -> str:
    """Return what is wrong with the arguments, in one sentence, and where to look them up."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if message.startswith("Usage:"):  # without a command it is the help itself
        return message
    command = context.command_path if context is not None else "covertfl"
    return f"covertfl: {' '.join(message.split()).rstrip('.')} (see {command} --help)"
