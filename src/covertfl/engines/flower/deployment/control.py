"""Calls to a SuperLink's control interface: nodes are registered, runs started and followed."""

from __future__ import annotations

import hashlib

from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from covertfl.engines.flower.deployment.certificates import NodeKey, ServerCertificate


class ControlClient:
    """A connection to a SuperLink's control interface."""

    def __init__(self, address: str, certificate: ServerCertificate) -> None:
        self.calls = ControlHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=certificate.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def register(self, key: NodeKey) -> int:
        """Register a node's key and return the node's ID."""
        reply = self.calls.RegisterNode(RegisterNodeRequest(public_key=key.public))
        return int(reply.node_id)

    def list_online(self) -> set[int]:
        """Return the IDs of the nodes that are connected."""
        found = self.calls.ListNodes(ListNodesRequest()).nodes_info
        return {int(node.node_id) for node in found if node.status == "online"}

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
