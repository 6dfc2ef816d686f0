"""The commands that train: `train`, `deploy-local`, `export` and `embed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from covertfl.cli.options import ForceOption, JsonOption, ResumeOption, RunFileArgument
from covertfl.cli.output import print_json, print_remark, print_result, show_progress, show_rounds
from covertfl.errors import InvalidInput, Missing

OutOption = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")]
AppOption = Annotated[
    Path | None,
    typer.Option(
        "--app",
        metavar="FOLDER",
        help="Your own Flower app instead of the task's; it is sent to the nodes.",
    ),
]
ServerOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Modules of your server app; never sent to the nodes."),
]
EavesdropperOption = Annotated[
    str | None,
    typer.Option(metavar="FILE.PY:APP", help="Client app of the last node, the eavesdropper."),
]


def train(
    run: RunFileArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the run.")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Number of runs, in DIR/seed-0, DIR/seed-1 ...; without it, one run in DIR.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda, instead of the run file's device.")
    ] = None,
    resume: ResumeOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model covertly, as a run file describes.

    In each round clients are sent the true weights or a decoy's, as the policy decides.
    DIR/public holds what clients were sent, DIR/private what was done: never share the second.
    A run that was interrupted continues with --resume, with the same results.

    Example: covertfl train run.toml --out runs/first --seeds 10
    """
    from covertfl.api.run import TrainingResult
    from covertfl.runs.run_file import read_run
    from covertfl.training import train as train_runs

    _check_resume_and_force(resume, force)
    settings = read_run(run)
    if device is not None:
        settings = settings.with_device(device)
    with show_rounds("training") as on_round:
        summaries = train_runs(
            settings, out, seeds=seeds, resume=resume, force=force, on_round=on_round
        )
    print_result(TrainingResult(out, tuple(summaries)), as_json=as_json)


def _check_resume_and_force(resume: bool, force: bool) -> None:
    if resume and force:
        raise InvalidInput("--resume continues a run and --force replaces it: give one of them")


def deploy_local(
    run: RunFileArgument,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of SuperNodes (default: one for each client)."),
    ] = None,
    out: OutOption = Path("out/deployment"),
    resume: ResumeOption = False,
    force: ForceOption = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a round waits for replies.")
    ] = 120.0,
    project: AppOption = None,
    server: ServerOption = None,
    eavesdropper: EavesdropperOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train on a Flower federation on this machine.

    Starts a SuperLink and SuperNodes on the loopback interface, with TLS and node keys, and stops
    them at the end.  The last node takes part like the others and also records what it is sent, in
    DIR/eavesdropper, for `covertfl audit`.

    A node holds the data of one client: a run file for four nodes has clients = 4 and, for example,
    participation = [1, 2, 4] in [federation].  With too few nodes no round can be accepted.

    Example: covertfl deploy-local run.toml --nodes 4 --out runs/deployed
    """
    from covertfl.runs.run_file import read_run

    _check_resume_and_force(resume, force)
    if project is None and (server is not None or eavesdropper is not None):
        raise InvalidInput("--server and --eavesdropper go with --app, got no --app")
    settings = read_run(run)
    _require_flower()
    from covertfl.engines.flower.deployment.checks import find_shortage
    from covertfl.engines.flower.deployment.own_app import find_own_app
    from covertfl.engines.flower.deployment.run import deploy

    shortage = find_shortage(settings, nodes) if project is None else None
    if shortage is not None:
        print_remark(f"warning: {shortage}")
    with show_rounds("deployment") as on_round:
        deploy(
            settings,
            out,
            num_nodes=nodes,
            resume=resume,
            force=force,
            timeout=timeout,
            app=None if project is None else find_own_app(project, server, eavesdropper),
            on_round=on_round,
            announce=print_remark if sys.stderr.isatty() else None,
        )
    _print_deployment(out, as_json)


def _require_flower() -> None:
    """Raise Missing, naming the extra to install, if PyTorch or Flower is not installed."""
    from importlib.util import find_spec

    from covertfl.runs.build import require_torch

    require_torch()
    if find_spec("flwr") is None:
        raise Missing("a federation needs Flower: pip install 'covertfl[flower]'")


def _print_deployment(out: Path, as_json: bool) -> None:
    from covertfl.display.run_tables import render_training
    from covertfl.display.tables import print_tables
    from covertfl.engines.flower.deployment.run import EAVESDROPPER
    from covertfl.runs.summary import read_summary

    summary, records = read_summary(out), out / EAVESDROPPER
    if as_json:
        print_json({"out": str(out), "eavesdropper": str(records), "runs": [summary]})
    else:
        print_tables(render_training([summary]))
        print(f"What the eavesdropping node was sent: {records}; next: covertfl audit {records}")


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

    The file holds one tensor for each parameter, by name.  Hand it over on a channel that no client
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


def embed(
    texts: Annotated[Path, typer.Argument(metavar="FILE", help="Texts, .csv or .parquet.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.NPZ", help="Write vectors to this file.")
    ],
    text: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the texts.")] = "text",
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the labels.")] = "label",
    as_json: JsonOption = False,
) -> None:
    """Turn labelled texts into vectors to train on.

    FILE is a .csv or .parquet file.  A run file with task = "embeddings" trains on the vectors.

    Example: covertfl embed comments.csv -o mine.npz --text comment --label toxic
    """
    from covertfl.tasks.text import write_embeddings

    with show_progress("embedding") as on_progress:
        read = write_embeddings(texts, output, text, label, on_progress=on_progress)
    counts = {name: int((read.labels == number).sum()) for number, name in enumerate(read.classes)}
    if as_json:
        print_json({"output": str(output), "rows": len(read.labels), "classes": counts})
    else:
        classes = ", ".join(f"{count:,} of class {name}" for name, count in counts.items())
        print(f"{output}: {len(read.labels):,} texts as vectors; {classes}")
