"""The owner's calls to a SuperLink: nodes are registered, runs started and followed."""

from __future__ import annotations

import hashlib

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

from covertfl.engines.flower.deployment.certificates import NodeKey, ServerCertificate


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
