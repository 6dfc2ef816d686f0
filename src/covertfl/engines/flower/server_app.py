"""Runs of a run file on Flower: in this process, or as a server app for other runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from covertfl.engines.flower.client_app import make_client_app
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.node_numbers import KnownNodeNumbers
from covertfl.engines.flower.strategy import TIMEOUT, CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.runs.build import find_training_task, make_world
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.progress import OnRound
from covertfl.runs.settings import RunSettings


def make_server_app(
    settings: RunSettings,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    timeout: float = TIMEOUT,
    on_round: OnRound | None = None,
) -> ServerApp:
    """Return the server app of a run; actions come from a secret seed, not from the run file's.

    Parameters
    ----------
    out : the run's folder
    resume, force : resume the run in `out`, or replace it
    timeout : seconds that a round waits for replies
    on_round : called with the progress after every round
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = CovertStrategy(
            run=settings, out=out, resume=resume, force=force, on_round=on_round
        )
        strategy.start(grid, timeout=timeout)

    return app


def run_in_process(
    settings: RunSettings,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> None:
    """Run a run file over Flower's messages in this process; its bytes equal the simulator's."""
    world = make_world(settings, find_training_task(settings))
    grid = InProcessGrid(
        make_client_app(settings, presence="drawn"),
        settings.sections.federation.clients,
        connected=lambda number: world.attend(number).clients.tolist(),
        first_round=1 + count_done(out, resume=resume),
    )
    strategy = make_simulated_strategy(
        settings, out, grid.clients, resume=resume, force=force, on_round=on_round
    )
    strategy.start(grid)


def make_simulated_strategy(
    settings: RunSettings,
    out: Path,
    clients: Mapping[int, int],
    *,
    resume: bool,
    force: bool,
    on_round: OnRound | None,
) -> CovertStrategy:
    """Return the strategy of a run with simulated clients: all draws come from the run's seed.

    Parameters
    ----------
    clients : client numbers by node
    """
    return CovertStrategy(
        run=settings,
        out=out,
        seed="run",
        resume=resume,
        force=force,
        round_settings=RoundSettings(numbers=KnownNodeNumbers(clients)),
        on_round=on_round,
    )


def count_done(out: Path, *, resume: bool) -> int:
    """Return how many rounds a run that is to be resumed has completed."""
    checkpoint = read_checkpoint(out) if resume else None
    return 0 if checkpoint is None else checkpoint.round
