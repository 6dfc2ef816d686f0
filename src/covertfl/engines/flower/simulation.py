"""Runs of a run file on Flower's simulation runtime: client apps in Ray's processes.

Nodes are registered here and not by the runtime, so that the client of each node is known.  The
clients that are connected in a round are drawn as in the simulator.  The functions of the pinned
version's runtime are called directly, because its command line requires the folder of an app.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid

from covertfl.engines.flower.grid import Connected
from covertfl.engines.flower.server_app import Serve, run_simulated
from covertfl.errors import Missing
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import OnRound

SERVER, TASK = 1, 1
# Cores of one client app: two of them run at a time on a machine with two cores.
CORES = 1


def run_simulation(
    settings: RunSettings,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> None:
    """Run a run file on the simulation runtime.

    Raises
    ------
    Missing
        if Ray is not installed
    """
    if importlib.util.find_spec("ray") is None:
        raise Missing(
            "[engine] mode = simulation needs Ray: pip install 'covertfl[flower,simulation]'"
        )
    run_simulated(settings, out, simulate, resume=resume, force=force, on_round=on_round)


class AttendedGrid(InMemoryGrid):
    """Flower's grid in memory, of which only some nodes, by client, are connected in a round."""

    def __init__(
        self, state_factory: Any, nodes: Mapping[int, int], connected: Connected, first_round: int
    ) -> None:
        super().__init__(state_factory)
        self._nodes, self._connected, self._round = nodes, connected, first_round

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected in this round."""
        there = set(super().get_node_ids())
        chosen = [self._nodes[client] for client in self._connected(self._round)]
        return [node for node in chosen if node in there]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; after those of training a round has passed."""
        messages = list(messages)
        names = super().push_messages(messages)
        if any(message.metadata.message_type == MessageType.TRAIN for message in messages):
            self._round += 1
        return names


def simulate(
    app: ClientApp, num_nodes: int, serve: Serve, *, connected: Connected, first_round: int
) -> None:
    """Run a server's work together with nodes in Ray's processes; raise its exception again.

    Each node's config has its `partition-id`.
    """
    from flwr.server.superlink.fleet import vce
    from flwr.server.superlink.fleet.vce.metrics import VceMetrics
    from flwr.supercore.run import Run

    # Otherwise Ray warns about future versions.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    run = Run.create_empty(run_id=secrets.randbits(62))
    run.primary_task_id = TASK
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, SERVER, TASK
    factory = _make_factory(run)
    clients = _register(factory.state(), num_nodes)
    nodes = {client: node for node, client in clients.items()}
    grid = AttendedGrid(factory, nodes, connected, first_round)
    grid.set_run(run)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(serve, grid, clients)
        server.add_done_callback(lambda _: stop.set())
        try:
            vce.start_vce(
                backend_name="ray",
                backend_config_json_stream=json.dumps(_describe_backend()),
                app_dir="",
                is_app=False,
                f_stop=stop,
                run=run,
                metrics=VceMetrics(),
                client_app=app,
                state_factory=factory,
                existing_nodes_mapping=clients,
            )
        finally:
            stop.set()
    server.result()


def _describe_backend() -> dict[str, Any]:
    return {
        "init_args": {"logging_level": "error", "log_to_driver": False, "include_dashboard": False},
        "client_resources": {"num_cpus": CORES, "num_gpus": 0.0},
        "actor": {"tensorflow": 0},
    }


def _make_factory(run: Any) -> Any:
    """Return the factory of a link state in memory that knows the run."""
    from flwr.proto.task_pb2 import Task
    from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
    from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    run.federation_id = NOOP_FEDERATION_ID
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    state = cast(InMemoryLinkState, factory.state())
    state.run_ids[run.run_id] = RunRecord(run=run)
    state.task_store[TASK] = Task(task_id=TASK, run_id=run.run_id)
    return factory


def _register(state: Any, num_nodes: int) -> dict[int, int]:
    """Register nodes and return client numbers by node."""
    from flwr.common.constant import HEARTBEAT_INTERVAL_INF, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

    clients = {}
    for client in range(num_nodes):
        node = state.create_node(
            NOOP_FLWR_AID,
            NOOP_ACCOUNT_NAME,
            secrets.token_bytes(32),
            heartbeat_interval=HEARTBEAT_INTERVAL_INF,
        )
        state.acknowledge_node_heartbeat(node_id=node, heartbeat_interval=HEARTBEAT_INTERVAL_INF)
        clients[node] = client
    return clients
