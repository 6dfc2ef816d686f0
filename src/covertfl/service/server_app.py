"""The server app of a service of a built-in task in a deployment; it exists on the server only."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from covertfl.engines.flower.deployment.server import read_server_settings
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.service.flower import open_requests

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds of the service that environment variables name."""
    settings = read_server_settings()
    rounds = RoundSettings(requests=open_requests)
    strategy = CovertStrategy(**settings.as_keywords(), round_settings=rounds)
    strategy.start(grid, timeout=settings.timeout)
