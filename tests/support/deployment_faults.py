"""Faults of a deployment: nodes and servers that are killed, nodes that must be refused."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flwr.proto.control_pb2 import StopRunRequest

from covertfl.engines.flower.deployment.federation import (
    HOST,
    PAUSE,
    SERVER,
    LocalFederation,
    find_free_ports,
)
from covertfl.engines.flower.deployment.processes import wait_until
from covertfl.engines.flower.deployment.run import LOOK, Deployment
from covertfl.runs.train import RunProgress


def follow(deployment: Deployment, run: int, until: int) -> int:
    """Follow a run until a round has ended; return the last round that was reported."""
    last = [0]

    def note(progress: RunProgress) -> None:
        last[0] = progress.round

    while not deployment.check(run, note) and last[0] < until:
        time.sleep(LOOK)
    return last[0]


def stop_node(federation: LocalFederation, number: int, signal_number: int) -> None:
    """End a node and its client app; SIGTERM lets it say goodbye."""
    for name in (f"node{number}", f"client{number}"):
        federation.processes.end(name, signal_number)


def kill_server(federation: LocalFederation) -> None:
    """End the server app, and the process that runs it, without warning."""
    federation.processes.end(SERVER, signal.SIGKILL)


def restart_server(deployment: Deployment, run: int) -> int:
    """Resume a run whose server app was killed, with a new server app; return the new run."""
    federation = deployment.federation
    with contextlib.suppress(Exception):  # the SuperLink may have noticed
        federation.control.calls.StopRun(StopRunRequest(run_id=run))
    federation.start_server(replace(deployment.server, resume=True, force=False).as_environment())
    return deployment.start()


def try_to_join(federation: LocalFederation, name: str, arguments: Sequence[str]) -> str:
    """Start one more SuperNode that must be refused; return what it logs before it gives up.

    Parameters
    ----------
    name : of the process
    arguments : how it connects
    """
    processes = federation.processes
    processes.start(
        name,
        "flower-supernode",
        [
            *("--superlink", federation.address, *arguments),
            *("--host", HOST, "--port", str(find_free_ports(1)[0]), "--isolation", "process"),
            *("--max-retries", "0"),
        ],
        settings={"pause": PAUSE},
    )
    assert wait_until(lambda: name not in processes.running, 60.0), processes.quote(name)
    return processes.read_log(name)


@contextlib.contextmanager
def freezing(federation: LocalFederation, number: int) -> Iterator[None]:
    """Suspend a node's client app: queries that it gets meanwhile stay without reply."""
    process = federation.processes.running[f"client{number}"]
    os.killpg(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGCONT)
