"""Calls to a SuperLink's control interface: nodes are registered, runs started and followed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from covertfl.engines.flower.deployment.certificates import NodeKey, ServerCertificate


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Parameters
    ----------
    status : pending, starting, running or finished
    outcome : of a finished run: completed, failed or stopped
    details : why it failed
    """

    status: str
    outcome: str
    details: str


class ControlClient:
    """A connection to a SuperLink's control interface, open inside the context.

    Parameters
    ----------
    address : of the SuperLink
    certificate : whose authority is trusted
    """

    def __init__(self, address: str, certificate: ServerCertificate) -> None:
        self.calls = ControlHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=certificate.authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.calls.close()

    def register(self, key: NodeKey) -> int:
        """Register a node's key and return the node's ID."""
        reply = self.calls.RegisterNode(RegisterNodeRequest(public_key=key.content))
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
        """Return the status of a run."""
        found = self.calls.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
        return RunStatus(found.status.status, found.status.sub_status, found.status.details)
