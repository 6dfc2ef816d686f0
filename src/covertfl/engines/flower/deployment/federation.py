"""A federation on this machine: a SuperLink and SuperNodes on loopback, with TLS and node keys.

Every connection is encrypted with a certificate made for this federation, every node identifies
itself with a registered key, apps are started by a SuperExec that shares a secret with its
SuperLink or SuperNode, and only its owner, who has a token, can control it.  All files are in a
folder that only its owner can read and that is removed at the end; all processes are children of
one supervisor and end with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from covertfl.engines.flower.deployment.certificates import (
    OWNER_ONLY,
    NodeKey,
    ServerCertificate,
    make_node_key,
    make_server_certificate,
)
from covertfl.engines.flower.deployment.gate import find_request_limit
from covertfl.engines.flower.deployment.processes import (
    DeploymentFailed,
    SupervisedProcesses,
    wait_until,
)
from covertfl.files.disk import write_atomically

HOST = "127.0.0.1"
# Seconds that a SuperLink has to answer, and nodes to connect.
UP_LIMIT = 60.0
# Seconds between two requests for messages, and for tasks.  Flower's own pauses are 3 and 1.
PAUSE = 0.2
SHORT_POLLS = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
SUPERLINK, SERVER, CONTROL = "superlink", "server", "control"


@dataclass(frozen=True)
class LocalNode:
    """A node of a local federation.

    Parameters
    ----------
    app : reference of the client app that it runs instead of the bundle's, None for the bundle's
    record_to : folder into which it records what the bundle's app receives, None for a node that
        does not eavesdrop
    path : folders that its client app may import from
    environment : environment variables of its client app
    """

    app: str | None = None
    record_to: str | None = None
    path: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class LocalFederation:
    """A SuperLink and its nodes, which run inside the context.

    Parameters
    ----------
    nodes : numbered from 0
    folder : existing, readable by its owner only; removed at the end
    bundle : the only one that is executed
    node_user : who runs the client apps, None for the owner; see `rights`
    model_bytes : size of the model's arrays, which limits requests; None if it is not known
    server_environment : environment variables of the server app, which no node has
    server_path : folders that the server app may import from, and no node
    preloaded : modules that apps need and that take long to import
    """

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        folder: Path,
        *,
        bundle: bytes = b"",
        node_user: str | None = None,
        model_bytes: int | None = None,
        server_environment: Mapping[str, str] | None = None,
        server_path: Sequence[str] = (),
        preloaded: Sequence[str] = (),
    ) -> None:
        self.nodes, self.folder, self.bundle = tuple(nodes), folder, bundle
        self._node_user, self._limit = node_user, find_request_limit(model_bytes)
        self._server_environment = dict(server_environment or {})
        self._server_path, self._preloaded = tuple(server_path), tuple(preloaded)
        self._stack = contextlib.ExitStack()
        self._ports: list[int] = []
        self._node_ids: list[int] = []
        self._disconnected: set[int] = set()
        self.keys: list[NodeKey] = []
        self.certificate: ServerCertificate
        self.processes: SupervisedProcesses
        self.control: ControlClient

    @property
    def address(self) -> str:
        """Address of the SuperLink, for nodes and the command line."""
        return f"{HOST}:{self._ports[0]}"

    def __enter__(self) -> Self:
        with self._stack:  # closes it if an exception is raised
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        if self._node_user is not None:
            self.folder.chmod(0o711)  # to be searched, not listed; what is in it has its own mode
        self.processes = SupervisedProcesses(self.folder, self._preloaded)
        self._stack.callback(self.processes.close)
        self.certificate = make_server_certificate(self.folder, address=HOST)
        self.keys = [make_node_key(self.folder, f"node{n}") for n in range(len(self.nodes))]
        self._write_secrets()
        self._ports = find_free_ports(1 + len(self.nodes))
        self._start_superlink()
        token = self._find_secret(CONTROL).read_text("ascii")
        self.control = ControlClient(self.address, self.certificate, token)
        self._stack.callback(self.control.calls.close)
        self._node_ids = [self.control.register(key) for key in self.keys]
        self._disconnected = set(range(len(self.nodes)))
        self.start_server(self._server_environment)
        for number in range(len(self.nodes)):
            self.start_node(number)
        self._wait_for_nodes()

    def _write_secrets(self) -> None:
        for name in (SERVER, *(f"node{n}" for n in range(len(self.nodes)))):
            write_atomically(self._find_secret(name), secrets.token_bytes(32), mode=OWNER_ONLY)
        write_atomically(self._find_secret(CONTROL), secrets.token_hex(32), mode=OWNER_ONLY)

    def _find_secret(self, name: str) -> Path:
        return self.folder / f"{name}.secret"

    def _start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        arguments = [
            *("--host", HOST, "--port", str(self._ports[0])),
            *("--ssl-ca-certfile", str(self.certificate.authority)),
            *("--ssl-certfile", str(self.certificate.certificate)),
            *("--ssl-keyfile", str(self.certificate.key)),
            *("--isolation", "process"),
            *("--superexec-auth-secret-file", str(self._find_secret(SERVER))),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]
        settings = {"token": str(self._find_secret(CONTROL)), "limit": self._limit}
        self.processes.start(SUPERLINK, "flower-superlink", arguments, settings=settings)

        def is_settled() -> bool:
            return SUPERLINK not in self.processes.running or _is_listening(self._ports[0])

        if not wait_until(is_settled, UP_LIMIT) or SUPERLINK not in self.processes.running:
            raise DeploymentFailed(
                f"the SuperLink did not start: {self.processes.quote(SUPERLINK)}"
            )

    def start_server(self, environment: Mapping[str, str]) -> None:
        """Start the SuperExec that runs server apps, with environment variables of theirs."""
        server = LocalNode(path=self._server_path, environment=environment)
        authority = str(self.certificate.authority)
        self._start_superexec(SERVER, self.address, authority, SERVER, server)

    def start_node(self, number: int) -> None:
        """Start a SuperNode and the SuperExec that runs its client app."""
        self.disconnect_ended()  # or the SuperLink would refuse it as connected already
        self._disconnected.discard(number)
        node, port = self.nodes[number], self._ports[1 + number]
        secret = str(self._find_secret(f"node{number}"))
        self.processes.start(
            f"node{number}",
            "flower-supernode",
            [
                *("--superlink", self.address),
                *("--root-certificates", str(self.certificate.authority)),
                *("--auth-supernode-private-key", str(self.keys[number].private)),
                *("--node-config", self._format_config(number)),
                *("--host", HOST, "--port", str(port)),
                *("--isolation", "process", "--superexec-auth-secret-file", secret),
            ],
            settings={"pause": PAUSE},
        )
        # Both ends are on this machine and share a secret, so that no certificate is needed.
        self._start_superexec(f"client{number}", f"{HOST}:{port}", None, f"node{number}", node)

    def _start_superexec(
        self, name: str, address: str, authority: str | None, shares: str, node: LocalNode
    ) -> None:
        """Start the SuperExec of a node's app, or of the server's.

        Parameters
        ----------
        shares : name of the process with which it shares a secret
        """
        self.processes.start(
            name,
            "flower-superexec",
            settings={
                "address": address,
                "authority": authority,
                "secret": str(self._find_secret(shares)),
                "pause": PAUSE,
                "bundle": hashlib.sha256(self.bundle).hexdigest(),
                "app": node.app,
                "record_to": node.record_to,
                "user": self._node_user if name != SERVER else None,
            },
            environment={**SHORT_POLLS, **node.environment},
            path=node.path,
        )

    def _format_config(self, number: int) -> str:
        """Return what a node's client app finds in `context.node_config`, as an argument."""
        config = {"partition-id": number, "num-partitions": len(self.nodes)}
        return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())

    def list_connected(self) -> list[int]:
        """Return the nodes that are connected, by their numbers from 0."""
        self.disconnect_ended()
        online = self.control.list_online()
        return [number for number, node in enumerate(self._node_ids) if node in online]

    def start_run(self) -> int:
        """Start a run of the bundle and return its ID."""
        return self.control.start_run(self.bundle)

    def disconnect_ended(self) -> None:
        """Disconnect nodes whose SuperNode was killed, which Flower would wait for a minute."""
        running = self.processes.running
        for number, node in enumerate(self._node_ids):
            if f"node{number}" not in running and number not in self._disconnected:
                self._disconnected.add(number)
                with contextlib.suppress(httpx.HTTPError):  # it has done so itself
                    self.control.disconnect(node, self.keys[number])

    def _wait_for_nodes(self) -> None:
        """Wait until all nodes are connected."""
        names = [f"node{number}" for number in range(len(self.nodes))]

        def is_settled() -> bool:
            if not set(names) <= set(self.processes.running):
                return True
            return len(self.list_connected()) == len(names)

        if not wait_until(is_settled, UP_LIMIT) or len(self.list_connected()) < len(names):
            missing = set(range(len(names))) - set(self.list_connected())
            first = names[min(missing)]
            raise DeploymentFailed(f"{first} did not connect: {self.processes.quote(first)}")


def find_free_ports(count: int) -> list[int]:
    """Return ports that no process listens on at the moment."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind((HOST, 0))
        return [int(free.getsockname()[1]) for free in sockets]


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False


class TokenInterceptor:
    """Add the owner's token to requests."""

    def __init__(self, token: str) -> None:
        self._bearer = f"Bearer {token}"

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request with the token."""
        context.request.headers["authorization"] = self._bearer
        return call_next(context)


class ControlClient:
    """A connection to a SuperLink's control interface.

    Parameters
    ----------
    token : of the owner, which the SuperLink's gate asks for
    """

    def __init__(self, address: str, certificate: ServerCertificate, token: str) -> None:
        self._address, self._authority = address, certificate.authority.read_bytes()
        self.calls = ControlHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=self._authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                TokenInterceptor(token),
            ],
        )

    def register(self, key: NodeKey) -> int:
        """Register a node's key and return the node's ID."""
        reply = self.calls.RegisterNode(RegisterNodeRequest(public_key=key.public))
        return int(reply.node_id)

    def list_online(self) -> set[int]:
        """Return the IDs of the nodes that are connected."""
        found = self.calls.ListNodes(ListNodesRequest()).nodes_info
        return {int(node.node_id) for node in found if node.status == "online"}

    def disconnect(self, node: int, key: NodeKey) -> None:
        """Disconnect a node in its own name, as its SuperNode does when it stops in order."""
        private = load_ssh_private_key(key.private.read_bytes(), None)
        assert isinstance(private, EllipticCurvePrivateKey)
        with FleetHttpClient.from_server_address(
            self._address,
            insecure=False,
            root_certificates=self._authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        ) as calls:
            calls.DeactivateNode(DeactivateNodeRequest(node_id=node))

    def start_run(self, bundle: bytes) -> int:
        """Send an app bundle, start a run of it and return the run's ID."""
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        reply = self.calls.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        return int(reply.run_id)

    def find_status(self, run: int) -> RunStatus:
        """Return the status of a run: pending, starting, running or finished.

        Its sub-status is completed, failed or stopped once the run is finished.
        """
        found: RunStatus = self.calls.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found
