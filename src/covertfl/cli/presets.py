"""The command `presets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json

if TYPE_CHECKING:
    pass


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="READING/NAME", help="Print the file of this one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the shipped problems, or print one of them.

    READING is the reading of the paper (sound, paper-text or paper-code), NAME the problem.

    Example: covertfl presets sound/queue > problem.toml
    """
    from covertfl.decision.problem_file import list_presets, read_preset_text

    if name is not None:
        text = read_preset_text(name)
        if as_json:
            import tomllib

            print_json(tomllib.loads(text))
        else:
            print(text, end="")
    elif as_json:
        print_json({"presets": list_presets()})
    else:
        print("\n".join(list_presets()))
