"""A run of a built-in task, or of one's own Flower app, in a federation on this machine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from covertfl.engines.flower.deployment.bundle import SERVER_MODULE, build_bundle, write_app
from covertfl.engines.flower.deployment.federation import (
    PAUSE,
    SERVER,
    SUPERLINK,
    LocalFederation,
    LocalNode,
)
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.deployment.server import (
    ROUND_LIMIT,
    ServerNews,
    ServerPlace,
    make_error,
)
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import parse_toml
from covertfl.runs.clients import count_sizes
from covertfl.runs.folder import RunFolder
from covertfl.runs.opening import check_folder
from covertfl.runs.participation import accepts_data, count_batches, count_examples
from covertfl.runs.progress import OnRound, RunProgress
from covertfl.runs.run_file import build_run, format_run
from covertfl.runs.settings import RunSettings
from covertfl.runs.task import find_training_task

EAVESDROPPER = "eavesdropper"
MOST_NODES = 100
NOT_DEPLOYED = ("own", "function")  # tasks that nodes cannot make
# Seconds between two looks at the progress of a run.
LOOK = 0.2
SERVER_CODE = """\
from covertfl.engines.flower.deployment.server import make_app

app = make_app()
"""


@dataclass(frozen=True)
class OwnApp:
    """A Flower app that is run instead of the built-in task's.

    Parameters
    ----------
    project : folder that becomes the bundle, with pyproject.toml
    server : folder with modules that only the server may import; its app finds its run as
        `deployment_server` says
    eavesdropper : client app of the last node, as module:attribute, None to record with the
        bundle's own
    eavesdropper_path : folder that this app is imported from
    """

    project: Path
    server: Path | None = None
    eavesdropper: str | None = None
    eavesdropper_path: Path | None = None


def find_own_app(project: Path, server: Path | None, eavesdropper: str | None) -> OwnApp:
    """One's own app from the command line's words.

    Parameters
    ----------
    eavesdropper : FILE.PY:ATTRIBUTE, None for the bundle's own app with a recorder around it
    """
    for folder in filter(None, (project, server)):
        if not folder.is_dir():
            raise InvalidInput(f"{folder}: no such folder, one of a Flower app is needed")
    if eavesdropper is None:
        return OwnApp(project, server)
    file, _, attribute = eavesdropper.partition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file() or not attribute.isidentifier():
        raise InvalidInput(
            f"--eavesdropper must be FILE.PY:APP, a file and the client app in it, "
            f"got {eavesdropper!r}"
        )
    return OwnApp(project, server, f"{path.stem}:{attribute}", path.parent)


class Deployment:
    """A local federation with the app of a run in it; up inside the context, gone outside.

    Parameters
    ----------
    settings : of the run
    out : folder of the run; what the eavesdropper records goes to its sub-folder eavesdropper
    num_nodes : the last one eavesdrops
    resume, force : go on with the run that is there, or replace it
    timeout : seconds that a round waits for replies
    app : one's own, None for the built-in task
    pause : seconds between two looks for messages, None for Flower's own 3
    eavesdrop : whether the last node records what it receives
    """

    def __init__(
        self,
        settings: RunSettings,
        out: Path,
        *,
        num_nodes: int,
        resume: bool = False,
        force: bool = False,
        timeout: float = ROUND_LIMIT,
        app: OwnApp | None = None,
        pause: float | None = PAUSE,
        eavesdrop: bool = True,
    ) -> None:
        _check(settings, num_nodes, app)
        self.settings, self.out = as_deployed(settings), out.resolve()
        # Before anything is brought up; the server app looks again.
        if app is None:
            check_folder(self.settings, self.out, resume=resume, force=force)
        elif not (resume or force):
            RunFolder(self.out).require_absent()
        self._num_nodes, self._app, self._pause = num_nodes, app, pause
        self._timeout, self._resume, self._force = timeout, resume, force
        self._eavesdrop = eavesdrop
        self.federation: LocalFederation
        self.bundle: bytes
        self._news: ServerNews
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Deployment:
        try:
            self._bring_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _bring_up(self) -> None:
        # Part of the federation's folder, which its keeper removes even if this process is killed.
        whole = Path(tempfile.mkdtemp(prefix="covertfl-"))
        self._stack.callback(shutil.rmtree, whole, ignore_errors=True)
        folder = whole / "server-only"
        folder.mkdir(mode=0o700)
        self._news = ServerNews(folder / "news.jsonl")
        self._place = ServerPlace(
            folder / "run.toml",
            self.out,
            self._resume,
            self._force,
            self._timeout,
            folder / "news.jsonl",
        )
        write_atomically(self._place.run, format_run(self.settings, {}), mode=0o600)
        (folder / f"{SERVER_MODULE}.py").write_text(SERVER_CODE, encoding="utf-8")
        self.bundle = self._build_bundle(folder)
        if self._force:
            shutil.rmtree(self.out / EAVESDROPPER, ignore_errors=True)
        server = self._app.server if self._app is not None else folder
        self.federation = LocalFederation(
            self._make_nodes(),
            server_environment=self._place.as_environment(),
            server_path=[] if server is None else [str(server.resolve())],
            pause=self._pause,
            # torch's optimisers import it when the first is made, which takes seconds.
            preloaded=[] if self._app is None else ["torch._dynamo"],
            folder=whole,
        )
        self._stack.enter_context(self.federation)

    def _build_bundle(self, folder: Path) -> bytes:
        if self._app is not None:
            return build_bundle(self._app.project)
        from covertfl.engines.flower.client_app import format_client_run

        project = folder / "app"
        project.mkdir()
        write_app(project, format_client_run(self.settings))
        return build_bundle(project)

    def _make_nodes(self) -> list[LocalNode]:
        nodes = [LocalNode() for _ in range(self._num_nodes)]
        if not self._eavesdrop:
            return nodes
        records, app = str(self.out / EAVESDROPPER), self._app
        if app is None or app.eavesdropper is None:
            nodes[-1] = LocalNode(record_to=records)
        else:
            path = [] if app.eavesdropper_path is None else [str(app.eavesdropper_path.resolve())]
            nodes[-1] = LocalNode(
                app=app.eavesdropper, path=path, environment={"COVERTFL_RECORDS": records}
            )
        return nodes

    # --- the run ---

    def start(self) -> int:
        """Begin the run; gives its number in the federation."""
        return self.federation.start_run(self.bundle)

    def restart_server(self, run: int) -> int:
        """Go on, with a new server app, with a run whose server app was killed."""
        with contextlib.suppress(Exception):  # the SuperLink may have noticed
            self.federation.stop_run(run)
        self._place = replace(self._place, resume=True, force=False)
        self.federation.start_server(self._place.as_environment())
        return self.start()

    def follow(self, run: int, on_round: OnRound | None = None, *, until: int | None = None) -> int:
        """Wait for the end of the run; gives the number of the last round that was heard of.

        Parameters
        ----------
        tell : told of every round
        until : return after this round

        Raises
        ------
        CovertflError
            where the run fails
        """
        last = 0
        while True:
            status = self.federation.find_status(run)
            for entry in self._news.read_new():
                if "failed" in entry:
                    raise make_error(entry)
                progress = _read_progress(entry["progress"])
                last = progress.round
                if on_round is not None:
                    on_round(progress)
            if until is not None and last >= until:
                return last
            if status.status == "finished":
                self._require_completion(status.outcome, status.details)
                return last
            self._require_processes()
            time.sleep(LOOK)

    def _require_completion(self, outcome: str, details: str) -> None:
        if outcome != "completed":
            quoted = self.federation.processes.quote(SERVER)
            raise DeploymentFailed(f"the run ended as {outcome}: {details} ({quoted})")

    def _require_processes(self) -> None:
        for name in (SUPERLINK, SERVER):
            if not self.federation.processes.is_running(name):
                quoted = self.federation.processes.quote(name)
                raise DeploymentFailed(f"the {name} of the federation has ended: {quoted}")


def deploy(
    settings: RunSettings,
    out: Path,
    *,
    num_nodes: int | None = None,
    resume: bool = False,
    force: bool = False,
    timeout: float = ROUND_LIMIT,
    app: OwnApp | None = None,
    pause: float | None = PAUSE,
    on_round: OnRound | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Bring a federation up, run in it, and take it down; the run is in `out` then.

    Parameters
    ----------
    num_nodes : as many as the run has clients where None
    announce : told in words what is done
    other parameters : as `Deployment` has them
    """
    say = announce or (lambda _sentence: None)
    count = settings.sections.federation.clients if num_nodes is None else num_nodes
    deployment = Deployment(
        settings,
        out,
        num_nodes=count,
        resume=resume,
        force=force,
        timeout=timeout,
        app=app,
        pause=pause,
    )
    with ending_on_signals():
        say(f"bringing up a SuperLink and {count} SuperNodes on loopback, with TLS and node keys")
        with deployment:
            federation = deployment.federation
            say(f"SuperLink at {federation.address}; all {count} nodes are connected")
            run = deployment.start()
            say(f"run {run} has begun")
            deployment.follow(run, on_round)
            say("the run has ended; taking the federation down")


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program in an orderly way, as Ctrl-C does."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_deployed(settings: RunSettings) -> RunSettings:
    """The same run with the engine that it is carried out by, checked anew."""
    engine = settings.sections.engine.model_copy(update={"kind": "flower", "mode": "deployment"})
    sections = settings.sections.model_copy(update={"engine": engine})
    text = format_run(replace(settings, sections=sections), {})
    return build_run(parse_toml(text, settings.name), settings.name, folder=Path())


def _check(settings: RunSettings, num_nodes: int, app: OwnApp | None) -> None:
    clients = settings.sections.federation.clients
    if not 1 <= num_nodes <= min(clients, MOST_NODES):
        raise InvalidInput(
            f"{settings.name}: nodes must be 1..{min(clients, MOST_NODES)} with [federation] "
            f"clients = {clients}, got {num_nodes}"
        )
    # The server app of a project brings a task made in Python along.
    task = settings.sections.task
    if task in NOT_DEPLOYED and not (task == "own" and app is not None):
        raise InvalidInput(
            f"{settings.name}: task = {settings.sections.task} cannot be deployed: "
            "nodes could not make it"
        )


def find_shortage(settings: RunSettings, num_nodes: int | None = None) -> str | None:
    """Why nodes could never bring an accepted round, however much each of them trains.

    Node k is client k of the task and trains on whole batches; the nodes of one's own app hold
    data of their own.

    Parameters
    ----------
    num_nodes : as many as the run has clients where None
    """
    section = settings.sections.federation
    if section.acceptance != "data" or settings.sections.task in NOT_DEPLOYED:
        return None
    num_nodes = section.clients if num_nodes is None else num_nodes
    sizes = count_sizes(find_training_task(settings))
    batches, total = count_batches(sizes, section.batch_size), int(sizes.sum())
    most = int(count_examples(batches, sizes, section.batch_size)[:num_nodes].sum())
    if accepts_data(most, total, section.min_share):
        return None
    return (
        f"{settings.name}: no round can be accepted: {num_nodes} nodes train on "
        f"{most / total:.3f} of the examples of [federation] clients = {section.clients} at most, "
        f"min_share = {section.min_share}; set clients = {num_nodes} and participation up to it, "
        "or take more nodes"
    )


def _read_progress(entry: Mapping[str, Any]) -> RunProgress:
    return RunProgress(**{**entry, "run": Path(entry["run"])})
