"""The command `serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, print_remark, show_progress

if TYPE_CHECKING:
    from covertfl.runs.progress import RunProgress


def serve(
    service: Annotated[
        Path, typer.Argument(metavar="SERVICE.TOML", help="Run file with [queue] and [service].")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the service.")],
    api_only: Annotated[
        bool,
        typer.Option(
            "--api-only", help="Only answer requests: a server app elsewhere plays the rounds."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Retrain a model covertly for as long as requests come.

    Requests to forget data, take in new data, follow a shift or go back to a version come by HTTP
    (`covertfl request`, or the page at the address that is printed) and are served in order.  Each
    releases a version (`covertfl versions`, `covertfl export DIR --version N`).  The token in
    DIR/token opens the service: keep it secret.  SIGTERM and Ctrl-C end it after the round, and the
    same command continues it, also after a crash.  --json prints the last status when it ends.

    Example: covertfl serve service.toml --out services/first
    """
    from covertfl.cli.deploy_local import choose_node_user
    from covertfl.runs.run_file import read_run
    from covertfl.service.serve import serve as run_service
    from covertfl.service.status import describe_status
    from covertfl.service.store import Store

    settings = read_run(service)
    with _show_rounds() as on_round:
        run_service(
            settings,
            out,
            api_only=api_only,
            announce=print_remark,
            on_round=on_round,
            choose_user=choose_node_user,
        )
    if as_json:
        with Store(out) as store:
            print_json({"out": str(out), **describe_status(store)})


@contextmanager
def _show_rounds() -> Iterator[Callable[[RunProgress], None] | None]:
    """Show the latest round on a terminal; a log would only grow with it."""
    if not sys.stderr.isatty():
        yield None
        return
    with show_progress("service") as update:

        def show(progress: RunProgress) -> None:
            update(
                f"round {progress.round}, oracle {progress.oracle_state}, backlog "
                f"{progress.backlog}, exposure {progress.exposure:.0%}, "
                f"learner {progress.score:.3f}",
                0.0,
            )

        yield show
