"""A federation on this machine: a SuperLink and SuperNodes on loopback, with TLS and node keys.

Every connection is encrypted with a certificate made for this federation, every node proves with a
registered key who it is, and apps are started by a SuperExec that shares a secret with its
SuperLink or SuperNode.  All files are in a folder for their owner only, which is removed at the
end; all processes are children of one keeper and end with it.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covertfl.engines.flower.deployment.certificates import (
    OWNER_ONLY,
    NodeKey,
    ServerCertificate,
    make_node_key,
    make_server_certificate,
)
from covertfl.engines.flower.deployment.processes import DeploymentFailed, KeptProcesses, wait_until
from covertfl.files.atomic import write_atomically

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

HOST = "127.0.0.1"
# Seconds that a SuperLink has to answer, and nodes to connect.
UP_LIMIT = 60.0
# Seconds between two looks for messages.  Flower's own pause is 3.
PAUSE = 0.2
SUPERLINK, SERVER = "superlink", "server"


@dataclass(frozen=True)
class LocalNode:
    """A node of a local federation.

    Parameters
    ----------
    config : what its client app finds in `context.node_config`
    app : reference of the client app that it runs instead of the bundle's, None for the bundle's
    record_to : folder into which it records what the bundle's app receives, None for a node that
        does not eavesdrop
    path : folders that its client app may import from
    environment : that its client app has
    """

    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    app: str | None = None
    record_to: str | None = None
    path: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Parameters
    ----------
    status : pending, starting, running or finished
    outcome : of a finished run: completed, failed or stopped
    details : why it failed
    """

    status: str
    outcome: str
    details: str


class LocalFederation:
    """A SuperLink and its nodes; a context that is up inside and gone outside.

    Parameters
    ----------
    nodes : numbered from 0
    server_environment : that the server app has, and no node
    server_path : folders that the server app may import from, and no node
    pause : seconds between two looks for messages, None for Flower's own 3
    preloaded : modules that apps need and that take long to import
    folder : existing, for its owner only, removed at the end; None to make one
    """

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        *,
        server_environment: Mapping[str, str] | None = None,
        server_path: Sequence[str] = (),
        pause: float | None = PAUSE,
        preloaded: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self._server_environment = dict(server_environment or {})
        self._server_path = tuple(server_path)
        self._pause, self._preloaded = pause, tuple(preloaded)
        self._stack = contextlib.ExitStack()
        self._ports: list[int] = []
        # mkdtemp: for its owner only
        self.folder = Path(tempfile.mkdtemp(prefix="covertfl-")) if folder is None else folder
        self.processes: KeptProcesses
        self.certificate: ServerCertificate
        self.keys: list[NodeKey] = []
        self.node_ids: list[int] = []
        self._control: ControlHttpClient

    @property
    def address(self) -> str:
        """Where nodes and the command line reach the SuperLink."""
        return f"{HOST}:{self._ports[0]}"

    # --- up and down ---

    def __enter__(self) -> Self:
        try:
            self._bring_up()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _bring_up(self) -> None:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes = KeptProcesses(self.folder, self._preloaded)
        self._stack.callback(self.processes.close)
        self.certificate = make_server_certificate(self.folder, address=HOST)
        self.keys = [make_node_key(self.folder, f"node{n}") for n in range(len(self.nodes))]
        self._write_secrets()
        self._ports = find_free_ports(1 + len(self.nodes))
        self.start_superlink()
        self._control = self._stack.enter_context(open_control(self.address, self.certificate))
        self.node_ids = [self.register(key) for key in self.keys]
        self.start_server()
        for number in range(len(self.nodes)):
            self.start_node(number)
        self.wait_for_nodes(len(self.nodes))

    def _write_secrets(self) -> None:
        for name in (SERVER, *(f"node{n}" for n in range(len(self.nodes)))):
            content = secrets.token_bytes(32)
            write_atomically(self.folder / f"{name}.secret", content, mode=OWNER_ONLY)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        arguments = [
            *("--host", HOST, "--port", str(self._ports[0])),
            *("--ssl-ca-certfile", str(self.certificate.authority)),
            *("--ssl-certfile", str(self.certificate.certificate)),
            *("--ssl-keyfile", str(self.certificate.key)),
            *("--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.folder / f"{SERVER}.secret")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]
        self.processes.start(SUPERLINK, "flower-superlink", arguments)

        def is_settled() -> bool:
            return not self.processes.is_running(SUPERLINK) or _answers(self._ports[0])

        if not wait_until(is_settled, UP_LIMIT) or not self.processes.is_running(SUPERLINK):
            raise DeploymentFailed(
                f"the SuperLink did not come up: {self.processes.quote(SUPERLINK)}"
            )

    def start_server(self, environment: Mapping[str, str] | None = None) -> None:
        """Start who runs server apps; a run that is begun then goes to it.

        Parameters
        ----------
        environment : that the server app has from now on, None for the same as before
        """
        if environment is not None:
            self._server_environment = dict(environment)
        self.processes.start(
            SERVER,
            "flower-superexec",
            settings={
                "address": self.address,
                "authority": str(self.certificate.authority),
                "secret": str(self.folder / f"{SERVER}.secret"),
                "pause": self._pause,
                "app": None,
                "record_to": None,
            },
            environment={**self._hasten(), **self._server_environment},
            path=self._server_path,
        )

    def start_node(self, number: int) -> None:
        """Start a SuperNode and who runs its client app."""
        node, port = self.nodes[number], self._ports[1 + number]
        secret = str(self.folder / f"node{number}.secret")
        self.processes.start(
            f"node{number}",
            "flower-supernode",
            [
                *("--superlink", self.address, *self.connect_arguments(number)),
                *("--node-config", _format_config(self.find_config(number))),
                *("--host", HOST, "--port", str(port)),
                *("--isolation", "process", "--superexec-auth-secret-file", secret),
            ],
            settings={"pause": self._pause},
        )
        self.processes.start(
            f"client{number}",
            "flower-superexec",
            settings={
                "address": f"{HOST}:{port}",
                "authority": None,  # both ends are on this machine and share a secret
                "secret": secret,
                "pause": self._pause,
                "app": node.app,
                "record_to": node.record_to,
            },
            environment={**self._hasten(), **node.environment},
            path=node.path,
        )

    def _hasten(self) -> dict[str, str]:
        return {} if self._pause is None else {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

    def find_config(self, number: int) -> dict[str, str | int | float | bool]:
        """What a node's client app finds in `context.node_config`."""
        node = self.nodes[number]
        return {"partition-id": number, "num-partitions": len(self.nodes), **node.config}

    def connect_arguments(self, number: int) -> list[str]:
        """How a node connects: with the authority's certificate and its own key."""
        return [
            *("--root-certificates", str(self.certificate.authority)),
            *("--auth-supernode-private-key", str(self.keys[number].private)),
        ]

    # --- nodes ---

    def register(self, key: NodeKey) -> int:
        """Let a key in; gives the node's number in the federation."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        reply = self._control.RegisterNode(RegisterNodeRequest(public_key=key.content))
        return int(reply.node_id)

    def list_connected(self) -> list[int]:
        """Nodes that are connected, by their numbers from 0."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self._control.ListNodes(ListNodesRequest()).nodes_info
        online = {int(node.node_id) for node in found if node.status == "online"}
        return [number for number, node in enumerate(self.node_ids) if node in online]

    def wait_for_nodes(self, count: int, limit: float = UP_LIMIT) -> None:
        """Wait until so many nodes are connected."""
        names = [f"node{number}" for number in range(len(self.nodes))]

        def is_settled() -> bool:
            if not all(self.processes.is_running(name) for name in names):
                return True
            return len(self.list_connected()) >= count

        if not wait_until(is_settled, limit) or len(self.list_connected()) < count:
            missing = set(range(len(self.nodes))) - set(self.list_connected())
            first = names[min(missing)]
            raise DeploymentFailed(f"{first} did not connect: {self.processes.quote(first)}")

    def try_to_join(self, name: str, arguments: Sequence[str], limit: float = UP_LIMIT) -> str:
        """Start one more SuperNode that does not belong here; gives what it says when it gives up.

        Parameters
        ----------
        name : of the process
        arguments : how it connects
        """
        port = find_free_ports(1)[0]
        self.processes.start(
            name,
            "flower-supernode",
            [
                *("--superlink", self.address, *arguments),
                *("--host", HOST, "--port", str(port), "--isolation", "process"),
                *("--max-retries", "0"),
            ],
            settings={"pause": self._pause},
        )
        if not wait_until(lambda: not self.processes.is_running(name), limit):
            raise DeploymentFailed(f"{name} was not refused: {self.processes.quote(name)}")
        return self.processes.read_log(name)

    def kill_node(self, number: int) -> None:
        """End a node and its client app without warning."""
        for name in (f"node{number}", f"client{number}"):
            self.processes.end(name, signal.SIGKILL)

    def stop_node(self, number: int) -> None:
        """End a node, which says goodbye."""
        for name in (f"node{number}", f"client{number}"):
            self.processes.end(name)

    def kill_server(self) -> None:
        """End the server app, and who runs it, without warning."""
        self.processes.end(SERVER, signal.SIGKILL)

    # --- runs ---

    def start_run(self, bundle: bytes) -> int:
        """Hand an app to the federation and begin a run of it; gives the run's number."""
        import hashlib

        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        reply = self._control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        return int(reply.run_id)

    def stop_run(self, run: int) -> None:
        """Let go of a run, so that nodes forget what they were asked in it."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._control.StopRun(StopRunRequest(run_id=run))

    def find_status(self, run: int) -> RunStatus:
        """How a run stands."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self._control.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
        return RunStatus(found.status.status, found.status.sub_status, found.status.details)


@contextlib.contextmanager
def open_control(address: str, certificate: ServerCertificate) -> Iterator[ControlHttpClient]:
    """A connection to a SuperLink's control interface."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=certificate.authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    finally:
        client.close()


def find_free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind((HOST, 0))
        return [int(free.getsockname()[1]) for free in sockets]


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False


def _format_config(config: Mapping[str, Any]) -> str:
    """A node's configuration as its command takes it."""
    import json

    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
