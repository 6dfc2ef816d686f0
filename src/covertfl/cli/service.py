"""Commands on a lasting service: `serve`, `request`, `status` and `versions`."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covertfl.cli.terminal import JsonOption, ServiceOption, print_json, print_remark, show_progress
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.runs.train import RunProgress
    from covertfl.service.client import Service
# Seconds between two looks at a request, and for which a service may be quiet meanwhile.
LOOK_SECONDS, QUIET_SECONDS = 0.5, 60.0
OPEN = ("waiting", "serving")


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
    from covertfl.runs.settings import read_run
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


class Kind(enum.StrEnum):
    """What can be asked for."""

    SHIFT = "shift"
    PURGE = "purge"
    CONTEXT = "context"
    ROLLBACK = "rollback"
    CANCEL = "cancel"


KindArgument = Annotated[Kind, typer.Argument(show_default=False)]
IdArgument = Annotated[int | None, typer.Argument(metavar="[ID]", min=1)]
UpdatesOption = Annotated[
    int | None, typer.Option(help="Updates that are owed; with --patience the most.")
]
PatienceOption = Annotated[
    int | None,
    typer.Option(help="End when the validation loss has not improved for so many updates."),
]
NoteOption = Annotated[str | None, typer.Option(help="Text that is kept with the request.")]
DueOption = Annotated[
    str | None, typer.Option(metavar="DATE", help="Date by which it should be done.")
]
KeyOption = Annotated[
    str | None, typer.Option(help="The same key again is the same request; made up if not given.")
]
RestartOption = Annotated[
    bool, typer.Option("--restart", help="Empty the memory of the server's optimizer (FedSGD).")
]
RowsOption = Annotated[
    Path | None, typer.Option(metavar="FILE.CSV", help="purge: file with a column of row numbers.")
]
ClientsOption = Annotated[
    str | None, typer.Option(metavar="N,N", help="purge: numbers of clients.")
]
ExactOption = Annotated[
    bool, typer.Option("--exact", help="purge: train again as if they had never been there.")
]
ClientOption = Annotated[int | None, typer.Option(help="context: whose rows they become.")]
FileOption = Annotated[
    Path | None,
    typer.Option(metavar="NEW.NPZ", help="context: file with arrays features and labels."),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="context: in place of all rows that the client has.")
]
VersionOption = Annotated[int | None, typer.Option(help="rollback: version to return to.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]


def request(
    kind: KindArgument,
    number: IdArgument = None,
    updates: UpdatesOption = None,
    patience: PatienceOption = None,
    note: NoteOption = None,
    due: DueOption = None,
    key: KeyOption = None,
    restart: RestartOption = False,
    rows: RowsOption = None,
    clients: ClientsOption = None,
    exact: ExactOption = False,
    client: ClientOption = None,
    file: FileOption = None,
    replace: ReplaceOption = False,
    version: VersionOption = None,
    wait: WaitOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running service for retraining, or cancel a request.

    A shift trains on what clients hold now, a purge takes rows or clients out, a context gives a
    client new rows, a rollback returns to a version.  `cancel ID` gives up a request that is not
    being served yet.  The service makes the updates when its policy says so, among decoys.

    Example: covertfl request purge --rows rows.csv --updates 20 --wait
    """
    from covertfl.service.client import find_service

    if (kind is Kind.CANCEL) != (number is not None):
        raise InvalidInput("give the number of a request with cancel, and only there")
    found = find_service(service)
    if number is not None:
        _show(found.cancel(number), as_json=as_json)
        return
    options = {"updates": updates, "patience": patience, "note": note, "due": due, "key": key}
    own = {"client": client, "version": version}
    flags = {"restart": restart or None, "exact": exact or None, "replace": replace or None}
    body = {"kind": kind.value, **options, **own, **flags, **_read_files(rows, clients, file)}
    answer = _ask(found, {name: value for name, value in body.items() if value is not None})
    _show(_await_end(found, answer) if wait else answer, as_json=as_json)


def _read_files(rows: Path | None, clients: str | None, file: Path | None) -> dict[str, Any]:
    """Return what a request says with lists and files."""
    from covertfl.service.client import encode_file, parse_numbers, read_row_numbers

    return {
        "rows": None if rows is None else read_row_numbers(rows),
        "clients": None if clients is None else parse_numbers(clients, "--clients"),
        "data": None if file is None else encode_file(file),
    }


def _ask(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    import secrets

    body.setdefault("key", secrets.token_urlsafe(16))
    answer: dict[str, Any] = service.ask(body)
    return answer


def _await_end(service: Service, answer: dict[str, Any]) -> dict[str, Any]:
    """Return a request when it is done; raise InvalidInput if somebody cancels it."""
    from covertfl.service.client import NoAnswer

    number, most = answer["id"], max(answer["updates_left"], 1)
    heard = time.monotonic()
    with show_progress(f"request {number}") as update:
        while answer["state"] in ("waiting", "serving"):
            left = answer["updates_left"]
            update(f"{answer['state']}, {left} updates left", max(1.0 - left / most, 0.0))
            time.sleep(LOOK_SECONDS)
            try:
                answer = service.get(f"/requests/{number}")
                heard = time.monotonic()
            except NoAnswer:  # it may be starting again
                if time.monotonic() - heard > QUIET_SECONDS:
                    raise
    if answer["state"] == "cancelled":
        raise InvalidInput(f"request {number} was cancelled")
    return answer


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    released = "" if answer["version"] is None else f", version {answer['version']}"
    left = f"{answer['updates_left']} updates left"
    print(f"Request {answer['id']}: {answer['state']}, {left}{released}")


def status(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Show what a running service does: waits, exposure, open requests and warnings.

    Example: covertfl status --service runs/service
    """
    from covertfl.service.client import find_service

    found = find_service(service)
    content = found.get("/status")
    if as_json:
        print_json(content)
        return
    from covertfl.display.service_tables import render_status
    from covertfl.display.tables import print_tables

    requests = found.get("/requests?limit=1000")["requests"]
    waiting = [request for request in reversed(requests) if request["state"] in OPEN]
    print_tables(render_status(content, waiting))


def versions(service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """List the models that a running service has released, and the requests that each contains.

    Example: covertfl versions --service runs/service
    """
    from covertfl.service.client import find_service

    content = find_service(service).get("/versions")
    if as_json:
        print_json(content)
        return
    from covertfl.display.service_tables import render_versions
    from covertfl.display.tables import print_tables

    print_tables(render_versions(content["versions"]))
