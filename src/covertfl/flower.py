"""The front for Flower users: make a Flower server app covert, and audit what its nodes receive.

    from covertfl.flower import CovertStrategy

    strategy = CovertStrategy(lambda: FedAvg(...), run="run.toml", out="runs/first")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=45)

Importing this module raises `Missing` if Flower is not installed.
"""

from __future__ import annotations

from covertfl.engines.flower.client_app import make_client_app
from covertfl.engines.flower.deployment.server import read_server_settings
from covertfl.engines.flower.eavesdropper_app import make_eavesdropper_app
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.kernels.job import Examples
from covertfl.tasks.public_map import PublicMap, compute_public_map
from covertfl.tasks.task import make_server_task

__all__ = [
    "CovertStrategy",
    "Examples",
    "InProcessGrid",
    "PublicMap",
    "RoundSettings",
    "compute_public_map",
    "make_client_app",
    "make_eavesdropper_app",
    "make_server_task",
    "read_server_settings",
]
