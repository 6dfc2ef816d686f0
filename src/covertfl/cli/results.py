"""Commands on results: `audit`, `report` and `demo`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.terminal import JsonOption, print_json, print_result, show_progress, show_rounds
from covertfl.errors import InvalidInput

# Numbers of trajectories of the matrix, and the probability that their runs make all updates.
MATRIX_TRAJECTORIES, COMPLETION = (2, 4), 0.95


class TrainedOn(StrEnum):
    """Who the clients of the runs are that `trained` learns from."""

    public = "public"
    federation = "federation"


RehearsalsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=1000,
        help="Simulated runs of the same settings that a single run is compared with.",
        show_default="20 for one run, 0 for several",
    ),
]
TrajectoriesOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        min=2,
        max=1000,
        help="Number of trajectories that eavesdroppers know of.",
        show_default="that of run.toml",
    ),
]
TrainedOption = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=100_000, help="Simulated runs for `trained` to learn from."
    ),
]
TrainedOnOption = Annotated[
    TrainedOn,
    typer.Option(help="Clients of these runs: rows of the public set, or the federation's own."),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Function that returns the task, for runs whose task was made in Python.",
        show_default=False,
    ),
]
EavesdropperOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Audit this eavesdropper only, or one of your own (module:Class); repeatable.",
        show_default="all that are possible",
    ),
]
MatrixOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN.TOML", help="Train every policy with every decoy, and audit all of them."
    ),
]


def audit(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs, or of their seeds."),
    ] = None,
    task: TaskOption = None,
    eavesdropper: EavesdropperOption = None,
    rehearsals: RehearsalsOption = None,
    trajectories: TrajectoriesOption = None,
    trained: TrainedOption = 0,
    trained_on: TrainedOnOption = TrainedOn.public,
    matrix: MatrixOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the runs of --matrix.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds of --matrix.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Measure what eavesdroppers could learn from finished runs.

    DIR... are runs that differ only in their seeds, or public folders that a client recorded, of
    which the audit shows the trajectories found and what each eavesdropper believes.  With one DIR
    the result is also written to DIR/audit.json, except for a public folder, which holds only what
    clients were sent.

    --task and --eavesdropper run the code of the modules that they name, which may be files in the
    current folder.

    A single run is compared with simulated runs of the same settings, whose results are kept in
    DIR/private/rehearsals.

    Example: covertfl audit runs/many
    """
    if matrix is not None:
        if runs or out is None:
            raise InvalidInput("--matrix needs --out and no folders of runs")
        _audit_matrix(matrix, out, seeds, as_json)
        return
    if not runs:
        raise InvalidInput("give one or more folders of runs, got none")
    from covertfl.api.audit import audit as audit_runs

    with show_progress("audit") as on_progress:
        report = audit_runs(
            *runs,
            task=task,
            eavesdroppers=eavesdropper,
            trajectories=trajectories,
            rehearsals=rehearsals,
            trained=trained,
            trained_on=trained_on.value,
            on_progress=on_progress,
        )
    print_result(report, as_json=as_json)
    # Last, so that the result is printed even if the folder cannot be written to.
    if len(runs) == 1:
        report.save(runs[0])


def _audit_matrix(run: Path, out: Path, seeds: int, as_json: bool) -> None:
    from covertfl.auditing.matrix import render_matrix, run_matrix
    from covertfl.display.tables import print_tables
    from covertfl.runs.settings import read_run

    settings = read_run(run)
    with show_progress("matrix") as on_progress:
        content = run_matrix(settings, out, seeds=seeds, on_progress=on_progress)
    if as_json:
        print_json(content)
    else:
        print_tables(render_matrix(content))
        print(f"Heat map: {content['picture']}")


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
