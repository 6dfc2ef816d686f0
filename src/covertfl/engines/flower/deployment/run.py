"""A run of a built-in task, or of a user's Flower app, in a federation on this machine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Self

import httpx

from covertfl.engines.flower.client_app import format_client_run
from covertfl.engines.flower.deployment.bundle import (
    RECORDS,
    SERVER_MODULE,
    OwnApp,
    build_bundle,
    write_app,
)
from covertfl.engines.flower.deployment.checks import (
    as_deployed,
    check_deployable,
    count_model_bytes,
    holding_run,
)
from covertfl.engines.flower.deployment.federation import (
    SERVER,
    SUPERLINK,
    LocalFederation,
    LocalNode,
)
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.deployment.rights import check_user
from covertfl.engines.flower.deployment.scratch import make_scratch_folder, remove_abandoned_folders
from covertfl.engines.flower.deployment.server import ProgressReader, ServerSettings
from covertfl.engines.flower.strategy import TIMEOUT
from covertfl.files.disk import write_atomically
from covertfl.processes import handling_signals
from covertfl.runs.folder import RunFolder
from covertfl.runs.settings import RunSettings, format_run
from covertfl.runs.train import OnRound, check_folder, require_no_service

EAVESDROPPER = "eavesdropper"
# Seconds between two looks at the progress of a run.
LOOK = 0.2
NodeUser = str | Callable[[RunSettings, Path], str | None] | None
SERVER_CODE = "from covertfl.engines.flower.deployment.server import app as app\n"


class Deployment:
    """A local federation with the app of a run, which exists inside the context.

    Parameters
    ----------
    out : folder of the run; its subfolder eavesdropper gets the eavesdropper's records
    num_nodes : the last of them eavesdrops
    resume, force : resume the run in `out`, or replace it
    timeout : seconds that a round waits for replies
    app : the user's own, None for the built-in task
    node_user : who runs the client apps, if root starts them; None for the owner, or what chooses
        one for a run and its folder that have been checked
    server_code : module of the server app
    """

    def __init__(
        self,
        settings: RunSettings,
        out: Path,
        *,
        num_nodes: int,
        resume: bool = False,
        force: bool = False,
        timeout: float = TIMEOUT,
        app: OwnApp | None = None,
        node_user: NodeUser = None,
        server_code: str = SERVER_CODE,
    ) -> None:
        self._server_code = server_code
        check_deployable(settings, num_nodes, has_own_app=app is not None)
        self._settings, self._out = as_deployed(settings), out.resolve()
        # Before anything is started; the server app checks again.
        if app is None:
            check_folder(self._settings, self._out, resume=resume, force=force)
        elif force:
            RunFolder(self._out).require_replaceable()
        elif not resume:
            RunFolder(self._out).require_absent()
        self._num_nodes, self._app = num_nodes, app
        if isinstance(node_user, str):
            check_user(node_user, list_needed(self._out))
        self._node_user = node_user(settings, self._out) if callable(node_user) else node_user
        self.server = ServerSettings(Path("run.toml"), self._out, resume, force, timeout)
        self._stack = contextlib.ExitStack()
        self._progress: ProgressReader
        self.federation: LocalFederation
        self.bundle: bytes

    def __enter__(self) -> Self:
        with self._stack:  # closes it if an exception is raised
            self._start_federation()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _start_federation(self) -> None:
        with holding_run(self._out) as is_there:
            if self.server.force and is_there:
                shutil.rmtree(self._out / EAVESDROPPER, ignore_errors=True)
        remove_abandoned_folders()
        # The federation's supervisor removes it even if this process is killed.
        whole, held = make_scratch_folder()
        self._stack.enter_context(held)
        self._stack.callback(shutil.rmtree, whole, ignore_errors=True)
        folder = whole / "server-only"
        folder.mkdir(mode=0o700)
        self._write_server(folder)
        self.bundle = self._build_bundle(folder)
        path = self._app.server if self._app is not None else folder
        self.federation = LocalFederation(
            self._make_nodes(),
            whole,
            bundle=self.bundle,
            node_user=self._node_user,
            model_bytes=count_model_bytes(self._settings) if self._app is None else None,
            server_environment=self.server.as_environment(),
            server_path=[] if path is None else [str(path.resolve())],
            # torch's optimisers import it when the first is made, which takes seconds.
            preloaded=[] if self._app is None else ["torch._dynamo"],
        )
        self._stack.enter_context(self.federation)

    def _write_server(self, folder: Path) -> None:
        """Write what only the server may read."""
        run, progress = folder / self.server.run.name, folder / "progress.jsonl"
        self.server = replace(self.server, run=run, progress=progress)
        self._progress = ProgressReader(progress)
        write_atomically(run, format_run(self._settings, {}), mode=0o600)
        (folder / f"{SERVER_MODULE}.py").write_text(self._server_code, encoding="utf-8")

    def _build_bundle(self, folder: Path) -> bytes:
        if self._app is not None:
            return build_bundle(self._app.project)
        project = folder / "app"
        project.mkdir()
        write_app(project, format_client_run(self._settings))
        return build_bundle(project)

    def _make_nodes(self) -> list[LocalNode]:
        records, app = str(self._out / EAVESDROPPER), self._app
        if app is None or app.eavesdropper is None:
            last = LocalNode(record_to=records)
        else:
            last = LocalNode(
                app=app.eavesdropper,
                path=[str(app.eavesdropper_path.resolve())],
                environment={RECORDS: records},
            )
        return [*(LocalNode() for _ in range(self._num_nodes - 1)), last]

    def start(self) -> int:
        """Start the run and return its ID in the federation."""
        return self.federation.start_run()

    def follow(self, run: int, on_round: OnRound | None = None) -> None:
        """Wait for the end of the run; see `check`."""
        while not self.check(run, on_round):
            time.sleep(LOOK)

    def check(self, run: int, on_round: OnRound | None = None) -> bool:
        """Report rounds that have ended since the last call; return whether the run has ended.

        Raises
        ------
        CovertflError
            if the run has failed
        """
        self._require_running()
        self.federation.disconnect_ended()
        try:
            status = self.federation.control.find_status(run)
        except httpx.HTTPError as error:
            raise DeploymentFailed(f"the SuperLink does not answer: {error}") from error
        for progress in self._progress.read_new():
            if on_round is not None:
                on_round(progress)
        if status.status == "finished":
            if status.sub_status != "completed":
                quoted = self.federation.processes.quote(SERVER)
                raise DeploymentFailed(
                    f"the run ended as {status.sub_status}: {status.details} ({quoted})"
                )
            return True
        return False

    def _require_running(self) -> None:
        """Raise DeploymentFailed if the federation has lost what no run can do without."""
        processes = self.federation.processes
        for name in (SUPERLINK, SERVER):
            if name not in processes.running:
                quoted = processes.quote(name)
                raise DeploymentFailed(f"the {name} of the federation has ended: {quoted}")


def list_needed(out: Path) -> list[Path]:
    """Return the folders that the user who runs client apps must reach."""
    path = out.resolve()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return [existing, Path(tempfile.gettempdir())]


def deploy(
    settings: RunSettings,
    out: Path,
    *,
    num_nodes: int | None = None,
    resume: bool = False,
    force: bool = False,
    timeout: float = TIMEOUT,
    app: OwnApp | None = None,
    node_user: NodeUser = None,
    on_round: OnRound | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Start a federation, run in it, and end it; the run is in `out` afterwards.

    Parameters
    ----------
    num_nodes : None for as many as the run has clients
    on_round : called with the progress after every round
    announce : called with a sentence about each step
    other parameters : as in `Deployment`
    """
    require_no_service(settings)
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
        node_user=node_user,
    )
    with handling_signals(_end_program, signal.SIGTERM, signal.SIGHUP):
        say(f"starting a SuperLink and {count} SuperNodes on loopback, with TLS and node keys")
        with deployment:
            say(f"SuperLink at {deployment.federation.address}; all {count} nodes are connected")
            run = deployment.start()
            say(f"run {run} has started")
            deployment.follow(run, on_round)
            say("the run has ended; stopping the federation")


def _end_program(number: int) -> NoReturn:
    """End the program in an orderly way, as Ctrl-C does."""
    raise SystemExit(128 + number)
