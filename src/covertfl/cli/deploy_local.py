"""The command `deploy-local`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.terminal import (
    ForceOption,
    JsonOption,
    OutOption,
    ResumeOption,
    RunFileArgument,
    advise_to_resume,
    check_resume_and_force,
    print_json,
    print_remark,
    print_warnings,
    show_rounds,
)
from covertfl.errors import InvalidInput, Missing

if TYPE_CHECKING:
    from covertfl.runs.settings import RunSettings

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


NodeUserOption = Annotated[
    str | None,
    typer.Option(
        metavar="USER", help="As root: who runs client apps (default: nobody, or root with --app)."
    ),
]


def deploy_local(
    run: RunFileArgument,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of SuperNodes (default: one for each client).")
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
    node_user: NodeUserOption = None,
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
    from covertfl.runs.settings import read_run

    check_resume_and_force(resume, force)
    if project is None and (server is not None or eavesdropper is not None):
        raise InvalidInput("--server and --eavesdropper go with --app, got no --app")
    settings = read_run(run)
    _require_flower()
    from covertfl.engines.flower.deployment.bundle import find_own_app
    from covertfl.engines.flower.deployment.checks import find_shortage
    from covertfl.engines.flower.deployment.run import deploy

    shortage = find_shortage(settings, nodes) if project is None else None
    if shortage is not None:
        print_remark(f"warning: {shortage}")
    with advise_to_resume(), show_rounds("deployment") as on_round:
        deploy(
            settings,
            out,
            num_nodes=nodes,
            resume=resume,
            force=force,
            timeout=timeout,
            app=None if project is None else find_own_app(project, server, eavesdropper),
            node_user=node_user or (None if project is not None else choose_node_user),
            on_round=on_round,
            announce=print_remark if sys.stderr.isatty() else None,
        )
    _print_deployment(out, as_json)


def _require_flower() -> None:
    """Raise Missing, naming the extra to install, if PyTorch or Flower is not installed."""
    from importlib.util import find_spec

    from covertfl.runs.train import require_torch

    require_torch()
    if find_spec("flwr") is None:
        raise Missing("a federation needs Flower: pip install 'covertfl[flower]'")


def choose_node_user(settings: RunSettings, out: Path) -> str | None:
    """Return who runs the client apps of a built-in task, whose data they must be able to read."""
    from covertfl.engines.flower.deployment.rights import choose_user
    from covertfl.engines.flower.deployment.run import list_needed

    named = (settings.sections.data.path, os.environ.get("COVERTFL_DATA"))
    data = [Path(path) for path in named if path is not None and Path(path).exists()]
    if settings.sections.task == "mnist" and not data:
        data = [Path.home()]  # images are cached there
    return choose_user([*list_needed(out), *data], print_remark)


def _print_deployment(out: Path, as_json: bool) -> None:
    from covertfl.display.run_tables import render_training
    from covertfl.display.tables import print_tables
    from covertfl.engines.flower.deployment.run import EAVESDROPPER
    from covertfl.runs.files import read_summary

    summary, records = read_summary(out), out / EAVESDROPPER
    print_warnings([summary])
    if as_json:
        print_json({"out": str(out), "eavesdropper": str(records), "runs": [summary]})
    else:
        print_tables(render_training([summary]))
        print(f"What the eavesdropping node was sent: {records}; next: covertfl audit {records}")
