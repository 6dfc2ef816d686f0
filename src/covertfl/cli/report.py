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
    as_json: JsonOption = False,
) -> None:
    """Write an HTML page about a run.

    The page shows curves, exposure, the policy, waiting times, the audit and the settings.  It is
    self-contained; its pictures are also in DIR/report.  Run `covertfl audit DIR` first to include
    the audit.

    Example: covertfl report runs/many
    """
    from covertfl.report.write import write_report

    page = write_report(run, command=f"covertfl report {shlex.quote(str(run))}")
    if as_json:
        print_json({"page": str(page)})
    else:
        print(page)
