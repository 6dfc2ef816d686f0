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
    as_json: JsonOption = False,
) -> None:
    """Write the true model of a run to a file.

    The file holds one tensor for each parameter, by name, and the public map of a run whose inputs
    pass one (replicas need it).  Hand it over on a channel that no client
    can read: sent through the federation, in a query or any other message, it would reveal at once
    what the whole run has hidden.

    Example: covertfl export runs/first -o model.safetensors
    """
    from covertfl.models.export import export_model

    exported = export_model(run, output)
    if as_json:
        print_json(exported.to_dict())
    else:
        print(
            f"{output}: the true weights after {exported.rounds} rounds and "
            f"{exported.updates_done} updates.  Keep it off the channel that clients can read."
        )
        if exported.inputs is not None:
            print(
                "Inputs pass the public map first: it is in the file as public_map.mean, "
                "public_map.basis and public_map.scale; x -> ((x - mean) @ basis) * scale."
            )
