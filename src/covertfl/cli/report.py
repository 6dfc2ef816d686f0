"""The command `report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, or of its seeds.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Write the page and its pictures here.",
            show_default="DIR",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an HTML page about a run.

    The page shows curves, exposure, the policy, waiting times, the audit and the settings.  It is
    self-contained; its pictures are also in DIR/report.  Run `covertfl audit DIR` first to include
    the audit.  A public folder, such as DIR/public, holds what clients were sent and nothing else:
    the report of one needs -o.

    Example: covertfl report runs/many
    """
    from covertfl.report.write import write_report

    command = ["covertfl", "report", str(run), *([] if output is None else ["-o", str(output)])]
    page = write_report(run, command=shlex.join(command), output=output)
    if as_json:
        print_json({"page": str(page)})
    else:
        print(page)
