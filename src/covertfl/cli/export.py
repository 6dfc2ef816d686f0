"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json


def export(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="MODEL.SAFETENSORS", help="Write the model to this file."
        ),
    ],
    version: Annotated[
        int | None,
        typer.Option(min=0, help="Of a service: the version to export, not its latest state."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the true model of a run to a file.

    The file says all that is needed to use the model: architecture, encoder of texts,
    standardisation, classes, threshold and results.  A model card in Markdown is written beside it.
    `covertfl predict` uses the model.  Hand it over on a channel that no client can read: sent
    through the federation, it would reveal at once what the whole run has hidden.

    Example: covertfl export runs/first -o model.safetensors
    """
    from covertfl.models.export import export_model

    exported = export_model(run, output, version=version)
    if as_json:
        print_json(exported.to_dict())
    else:
        print(
            f"{output}: the true weights after {exported.rounds} rounds and "
            f"{exported.updates_done} updates; {exported.card}: the model card.  "
            "Keep both off the channel that clients can read."
        )
