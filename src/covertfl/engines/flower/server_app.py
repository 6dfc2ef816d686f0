"""Runs of a run file on Flower with simulated clients, in this process or on other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from covertfl.engines.flower.client_app import make_client_app
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.node_numbers import KnownNodeNumbers
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.round import OpenDesk
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import OnRound, find_task, simulate_participation

# The server's work, with the grid and client numbers by node.
Serve = Callable[[Grid, dict[int, int]], None]


def run_simulated(
    settings: RunSettings,
    out: Path,
    simulate: Callable[..., None],
    *,
    resume: bool,
    force: bool,
    on_round: OnRound | None,
    requests: OpenDesk | None = None,
) -> None:
    """Run a run file with simulated clients: all draws come from the run's seed.

    Parameters
    ----------
    simulate : runs the nodes; called with the client app, the number of nodes, the server's work
        (called with the grid and client numbers by node), `connected` and `first_round`
    requests : as in `RoundSettings`
    """
    world = simulate_participation(settings, find_task(settings))
    checkpoint = read_checkpoint(out) if resume else None

    def serve(grid: Grid, clients: Mapping[int, int]) -> None:
        strategy = CovertStrategy(
            run=settings,
            out=out,
            seed="run",
            resume=resume,
            force=force,
            round_settings=RoundSettings(numbers=KnownNodeNumbers(clients), requests=requests),
            on_round=on_round,
        )
        strategy.start(grid)

    simulate(
        make_client_app(settings, presence="drawn"),
        settings.sections.federation.clients,
        serve,
        connected=lambda number: world.attend(number).clients.tolist(),
        first_round=1 if checkpoint is None else 1 + checkpoint.round,
    )


def run_in_process(
    settings: RunSettings,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
    requests: OpenDesk | None = None,
) -> None:
    """Run a run file over Flower's messages in this process; its bytes equal the simulator's."""

    def simulate(app: ClientApp, num_nodes: int, serve: Serve, **rounds: Any) -> None:
        grid = InProcessGrid(app, num_nodes, is_lean=True, **rounds)
        serve(grid, grid.clients)

    run_simulated(
        settings, out, simulate, resume=resume, force=force, on_round=on_round, requests=requests
    )
