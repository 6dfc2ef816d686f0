"""The commands `federation ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.group import CommandGroup
from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json

app = typer.Typer(
    cls=CommandGroup,
    help="Make and keep what belongs to a federation, not to a single run.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    pass


@app.command()
def init(
    run: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="A run file of the federation.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the federation's secret to this file."
        ),
    ] = Path("federation.json"),
    as_json: JsonOption = False,
) -> None:
    """Make the secret of a federation: the sign flips of its replicas.

    All runs over the same clients must use the same flips, or a second run gives the true models of
    both away.  Name the file in the run file, [federation] secret, and keep it on the server: only
    its owner may read it.  An existing file is never replaced.

    Example: covertfl federation init run.toml -o federation.json
    """
    from covertfl.runs.build import require_torch
    from covertfl.runs.decoys import write_secret
    from covertfl.runs.run_file import read_run
    from covertfl.runs.task import find_task
    from covertfl.tasks.mapped import add_public_map

    require_torch()
    settings = read_run(run)
    task = find_task(settings)
    task = task if task.public_map is not None else add_public_map(task)
    trajectories = write_secret(output, task)
    if as_json:
        print_json({"output": str(output), "trajectories": trajectories})
    else:
        print(
            f"{output}: flips for up to {trajectories} trajectories.  Keep it for all runs of this "
            f'federation: [federation] secret = "{output}".'
        )
        if settings.sections.data.seed is None:
            print(
                f"Set [data] seed = {settings.seed}, too: it keeps who holds what in a simulated "
                "federation while `seed` varies the run."
            )
