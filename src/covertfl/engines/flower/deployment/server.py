"""The server app of a built-in task in a deployment; it exists on the server only.

Settings of a server app are environment variables that nodes do not share with it:

COVERTFL_RUN       the run file
COVERTFL_OUT       the folder of the run
COVERTFL_RESUME    1: resume the run in that folder
COVERTFL_FORCE     1: replace it
COVERTFL_TIMEOUT   seconds that a round waits for replies
COVERTFL_NEWS      file to which progress and the reason of a failure are written, optional
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from covertfl.engines.flower.deployment.progress import NEWS, make_round_callback
from covertfl.engines.flower.strategy import TIMEOUT, CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.errors import InvalidInput
from covertfl.runs.intake import OpenDesk


@dataclass(frozen=True)
class ServerSettings:
    """Where a server app finds its run, and what to do with it: the variables above."""

    run: Path
    out: Path
    resume: bool = False
    force: bool = False
    timeout: float = TIMEOUT
    progress: Path | None = None

    def as_keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of `CovertStrategy`."""
        return {
            "run": self.run,
            "out": self.out,
            "resume": self.resume,
            "force": self.force,
            "on_round": make_round_callback(self.progress),
        }

    def as_environment(self) -> dict[str, str]:
        """Return the environment variables that `read_server_settings` reads."""
        given = {
            "COVERTFL_RUN": str(self.run),
            "COVERTFL_OUT": str(self.out),
            "COVERTFL_RESUME": str(int(self.resume)),
            "COVERTFL_FORCE": str(int(self.force)),
            "COVERTFL_TIMEOUT": str(self.timeout),
        }
        return given if self.progress is None else {**given, NEWS: str(self.progress)}


def read_server_settings(environment: Mapping[str, str] = os.environ) -> ServerSettings:
    """Return the settings that environment variables hold.

    Raises
    ------
    InvalidInput
        if a variable is missing or is not a number
    """
    for name in ("COVERTFL_RUN", "COVERTFL_OUT"):
        if not environment.get(name):
            raise InvalidInput(f"the environment variable {name} must be set on the server")
    timeout = environment.get("COVERTFL_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds < float("inf"):
        raise InvalidInput(f"COVERTFL_TIMEOUT must be a positive number, got {timeout!r}")
    progress = environment.get(NEWS)
    return ServerSettings(
        Path(environment["COVERTFL_RUN"]),
        Path(environment["COVERTFL_OUT"]),
        environment.get("COVERTFL_RESUME") == "1",
        environment.get("COVERTFL_FORCE") == "1",
        seconds,
        Path(progress) if progress else None,
    )


def make_app(requests: OpenDesk | None = None) -> ServerApp:
    """Return the app that runs what environment variables name; `requests` for a service."""
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        settings, rounds = read_server_settings(), RoundSettings(requests=requests)
        strategy = CovertStrategy(**settings.as_keywords(), round_settings=rounds)
        strategy.start(grid, timeout=settings.timeout)

    return made


app = make_app()
