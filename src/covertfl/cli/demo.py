"""The command `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, show_rounds


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the runs and the page.")
    ] = Path("out/demo"),
    as_json: JsonOption = False,
) -> None:
    """Train a toxicity classifier covertly and show what leaks.

    Trains the paper's two scenarios with several policies and decoys, five seeds each, and shows
    what the paper's eavesdropper and one that knows the scheme end up with; writes a page with the
    curves.

    Example: covertfl demo
    """
    from covertfl.demo.run import run_demo
    from covertfl.display.run_tables import render_demo
    from covertfl.display.tables import print_tables

    with show_rounds("demo") as on_round:
        content = run_demo(out, on_round=on_round)
    if as_json:
        print_json(content)
    else:
        print_tables(render_demo(content))
        print(f"Curves and runs: {content['page']}")
