"""What the processes of a local federation do: SuperLink, SuperNode, and SuperExec for the apps.

SuperLink and SuperNodes are Flower's own, started with `--isolation process`; apps are run beside
them by a SuperExec that forks instead of starting a new Python for every message.  Some things are
changed in the memory of these processes and nowhere else:

- a gate stands in front of the SuperLink, which takes messages only from their senders;
- apps are loaded from the bundle that the owner has built, and from no other;
- the output of a server app, and the reason of its failure, are not sent to the SuperLink;
- the pauses between two requests for messages, which Flower fixes at three seconds, are shortened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

from flwr.clientapp.client_app import LoadClientAppError
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_ref import load_app
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from covertfl.engines.flower.deployment.bundle import RECORDS
from covertfl.engines.flower.deployment.gate import Gate, require_own_messages
from covertfl.engines.flower.deployment.rights import become_user
from covertfl.engines.flower.deployment.server import NEWS, reporting_failures
from covertfl.processes import fork_and_run

Settings = Mapping[str, Any]


class ShortPauses:
    """The module `time` with pauses limited to some seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def sleep(self, seconds: float) -> None:
        """Pause, but no longer than the limit."""
        time.sleep(min(seconds, self._limit))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def shorten_pauses(limit: float, *modules: ModuleType) -> None:
    """Limit the pauses of some of Flower's modules in this process, in seconds."""
    for module in modules:
        vars(module)["time"] = ShortPauses(limit)
    # The wait before another request for a part of a message that has not arrived yet.
    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = pull.__kwdefaults__ or {}
        defaults["initial_backoff"] = limit / 2


def _watch_parent() -> None:
    """End this process if the supervisor is killed."""
    from flwr.supercore.app_utils import start_parent_process_monitor

    start_parent_process_monitor(os.getppid())


def run_superlink(settings: Settings) -> None:
    """Run Flower's SuperLink behind a gate.

    Parameters
    ----------
    settings : `token`, the file with the owner's token, and `limit`, the largest size of other
        callers' requests in bytes
    """
    from flwr.superlink import main
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    vars(fleet_handlers)["push_messages"] = require_own_messages(fleet_handlers.push_messages)
    create_app, token = main.create_app, Path(settings["token"]).read_text("ascii")

    def create_gate(*arguments: Any, **keywords: Any) -> Gate:
        return Gate(create_app(*arguments, **keywords), token=token, limit=settings["limit"])

    vars(main)["create_app"] = create_gate
    _watch_parent()
    flower_superlink()


def run_supernode(settings: Settings) -> None:
    """Run Flower's SuperNode, which requests messages every `pause` seconds."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    _watch_parent()
    shorten_pauses(settings["pause"], start_client_internal)
    flower_supernode()


def run_superexec(settings: Settings) -> None:
    """Run Flower's SuperExec with an executor that forks.

    Parameters
    ----------
    settings : `address`, `secret` (file), `authority` (file, None for plain text on loopback),
        `pause`, `bundle`, the SHA-256 of the owner's bundle, `app`, the client app to run instead
        of the bundle's (None for the bundle's), `record_to`, the folder into which the bundle's
        app is recorded (None for no records), and `user`, who runs client apps (None for this one)
    """
    from flwr.supercore.auth import load_superexec_auth_secret
    from flwr.supercore.superexec import run_superexec as superexec

    executor = ForkingExecutor(settings)
    vars(superexec)["get_executor"] = lambda *_arguments, **_keywords: executor
    superexec.run_superexec(
        runtime_api_address=settings["address"],
        insecure=settings["authority"] is None,
        root_certificates_path=settings["authority"],
        superexec_auth_secret=load_superexec_auth_secret(settings["secret"]),
        parent_pid=os.getppid(),
    )


class ForkingExecutor(SubprocessExecutor):
    """An executor that runs every task in a fork of this process, with all modules imported."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a task."""
        fork_and_run(lambda: _run_task(spec, self._settings))
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Reap tasks that have ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass


def _run_task(spec: ExecutionSpec, settings: Settings) -> None:
    """Run a task in this process, which must not run its parent's exit handlers."""
    from flwr.supercore.exit import exit_handler

    exit_handler.registered_exit_handlers.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    RUNS[spec.task_type](spec, settings)


def _list_arguments(spec: ExecutionSpec) -> dict[str, Any]:
    """Return the arguments that Flower's functions for client and server apps share."""
    path = spec.root_certificates_path
    return {
        "runtime_api_address": spec.runtime_api_address,
        "token": spec.token,
        "insecure": spec.insecure,
        "certificates": None if path is None else Path(path).read_bytes(),
        "parent_pid": spec.parent_pid,
    }


class RefusedBundle(Exception):
    """A bundle that the owner of the federation has not built."""


def accept_only(digest: str, runtime: ModuleType) -> None:
    """Let one of Flower's modules use the bundle with this SHA-256 and no other.

    Parameters
    ----------
    runtime : module that runs client or server apps; its function `fab_from_proto` is replaced
    """
    read = runtime.fab_from_proto

    def read_checked(proto: Any) -> Any:
        bundle = read(proto)
        if not bundle.hash_str == hashlib.sha256(bundle.content).hexdigest() == digest:
            raise RefusedBundle("the bundle is not the one that the federation was started for")
        return bundle

    vars(runtime)["fab_from_proto"] = read_checked


def _run_client(spec: ExecutionSpec, settings: Settings) -> None:
    from flwr.supernode.runtime import run_clientapp as runtime

    shorten_pauses(settings["pause"])
    accept_only(settings["bundle"], runtime)
    arguments = _list_arguments(spec)
    if settings["user"] is not None:
        become_user(settings["user"], _list_own_folders(settings))
        # Flower's own watch takes a parent that may not be signalled for one that has ended.
        arguments["parent_pid"] = None
    _change_app(runtime, settings["app"], settings["record_to"])
    runtime.run_clientapp(**arguments)


def _list_own_folders(settings: Settings) -> list[Path]:
    """Return the folders that a client app writes to."""
    found = (os.environ["FLWR_HOME"], settings["record_to"], os.environ.get(RECORDS))
    return [Path(folder) for folder in found if folder]


def _change_app(runtime: ModuleType, reference: str | None, record_to: str | None) -> None:
    """Replace or record the bundle's client app, as the owner of the machine can.

    The bundle is loaded first, so that another app can import it.
    """
    load_bundled = runtime.get_load_client_app_fn

    def find_loader(**keywords: Any) -> Callable[[str, str, str], Any]:
        load = load_bundled(**keywords)

        def load_other(bundle: str, version: str, digest: str) -> Any:
            bundled = load(bundle, version, digest)
            if record_to is not None:
                from covertfl.engines.flower.eavesdropper_app import make_eavesdropper_app

                return make_eavesdropper_app(bundled, Path(record_to))
            assert reference is not None
            return load_app(reference, LoadClientAppError, project_dir=sys.path[0])

        return load_other

    if reference is not None or record_to is not None:
        vars(runtime)["get_load_client_app_fn"] = find_loader


def _run_server(spec: ExecutionSpec, settings: Settings) -> None:
    from flwr.superlink.grid import http_grid

    # A function of the same name hides the module in its package.
    runtime = import_module("flwr.superlink.runtime.run_serverapp")
    shorten_pauses(settings["pause"], http_grid)
    accept_only(settings["bundle"], runtime)
    _hide_failures(runtime)
    # The queue is never written to: the server's output stays in its own log.
    runtime.run_serverapp(log_queue=Queue(), **_list_arguments(spec))


def _hide_failures(runtime: ModuleType) -> None:
    """Report why a server app has failed to its owner only."""
    run, path = runtime.run_, os.environ.get(NEWS)

    def run_app(**keywords: Any) -> Any:
        with reporting_failures(Path(path) if path else None):
            return run(**keywords)

    vars(runtime)["run_"] = run_app


RUNS: dict[TaskType, Callable[[ExecutionSpec, Settings], None]] = {
    TaskType.CLIENT_APP: _run_client,
    TaskType.SERVER_APP: _run_server,
}
ROLES: dict[str, Callable[[Settings], None]] = {
    "flower-superlink": run_superlink,
    "flower-supernode": run_supernode,
    "flower-superexec": run_superexec,
}
