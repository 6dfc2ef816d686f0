"""The server app of a built-in task in a deployment; it exists on the server only.

It writes its progress, and the reason of a failure, to a file that its owner reads.  Its settings
are environment variables that nodes do not share with it:

COVERTFL_RUN       the run file
COVERTFL_OUT       the folder of the run
COVERTFL_RESUME    1: resume the run in that folder
COVERTFL_FORCE     1: replace it
COVERTFL_TIMEOUT   seconds that a round waits for replies
COVERTFL_NEWS      file to which progress and the reason of a failure are written, optional
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from covertfl import errors
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.strategy import TIMEOUT, CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.errors import CovertflError, InvalidInput
from covertfl.runs.round import OpenDesk
from covertfl.runs.train import OnRound, RunProgress

# Environment variable of a server app that names the file.
NEWS = "COVERTFL_NEWS"


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


@contextlib.contextmanager
def reporting_failures(path: Path | None) -> Iterator[None]:
    """Write the reason of a failure to a file on the server, and hide it from everybody else.

    Flower shows why a run has failed to everybody who asks; the reason may hold more than clients
    should know.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        _append(path, {"failed": type(error).__name__, "reason": reason})
        raise RuntimeError("the server has stopped") from None


def make_round_callback(path: Path | None) -> OnRound | None:
    """Return a callback that appends the progress of a run to a file; None for no file."""
    if path is None:
        return None

    def on_round(progress: RunProgress) -> None:
        entry = {**dataclasses.asdict(progress), "run": str(progress.run)}
        _append(path, {"progress": entry})

    return on_round


def _append(path: Path | None, entry: Mapping[str, Any]) -> None:
    if path is None:
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as stream:
        stream.write(json.dumps(entry).encode() + b"\n")


class ProgressReader:
    """The rounds that a server app writes to a file, read as they come."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def read_new(self) -> Iterator[RunProgress]:
        """Yield the rounds reported since the last call; an unfinished line waits for the next.

        Raises
        ------
        CovertflError
            if the server app has reported a failure
        """
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._position)
                content = stream.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            if "failed" in entry:
                raise make_error(entry)
            progress = entry["progress"]
            yield RunProgress(**{**progress, "run": Path(progress["run"])})


def make_error(entry: Mapping[str, Any]) -> CovertflError:
    """Return the error that a server app has reported, for the command line to end with."""
    kind = getattr(errors, str(entry["failed"]), None)
    if isinstance(kind, type) and issubclass(kind, CovertflError) and kind is not errors.Infeasible:
        return kind(entry["reason"])
    return DeploymentFailed(f"the server app failed: {entry['failed']}: {entry['reason']}")
