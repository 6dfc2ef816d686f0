"""The server app of a built-in task in a deployment; it exists on the server only.

What it needs to know it finds through environment variables, which nodes do not share with it:

    COVERTFL_RUN       the run file
    COVERTFL_OUT       the folder of the run
    COVERTFL_RESUME    1: go on with the run that is there
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
from typing import TYPE_CHECKING, Any

from covertfl import errors
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.errors import CovertflError, InvalidInput

if TYPE_CHECKING:
    from flwr.serverapp import ServerApp

    from covertfl.runs.progress import OnRound, RunProgress

ROUND_LIMIT = 3600.0


@dataclass(frozen=True)
class ServerPlace:
    """Where a server app finds its run, and what it is to do with it."""

    run: Path
    out: Path
    resume: bool = False
    force: bool = False
    timeout: float = ROUND_LIMIT
    news: Path | None = None

    def as_keywords(self) -> dict[str, Any]:
        """What `CovertStrategy` takes."""
        return {
            "run": self.run,
            "out": self.out,
            "resume": self.resume,
            "force": self.force,
            "on_round": make_round_callback(self.news),
        }

    def as_environment(self) -> dict[str, str]:
        """The environment variables that say so."""
        given = {
            "COVERTFL_RUN": str(self.run),
            "COVERTFL_OUT": str(self.out),
            "COVERTFL_RESUME": str(int(self.resume)),
            "COVERTFL_FORCE": str(int(self.force)),
            "COVERTFL_TIMEOUT": str(self.timeout),
        }
        return given if self.news is None else {**given, "COVERTFL_NEWS": str(self.news)}


def read_place(environment: Mapping[str, str] = os.environ) -> ServerPlace:
    """The place that environment variables give.

    Raises
    ------
    InvalidInput
        where one is missing or is no number
    """
    for name in ("COVERTFL_RUN", "COVERTFL_OUT"):
        if not environment.get(name):
            raise InvalidInput(f"the environment variable {name} must be set on the server")
    timeout = environment.get("COVERTFL_TIMEOUT", str(ROUND_LIMIT))
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds < float("inf"):
        raise InvalidInput(f"COVERTFL_TIMEOUT must be a positive number, got {timeout!r}")
    news = environment.get("COVERTFL_NEWS")
    return ServerPlace(
        Path(environment["COVERTFL_RUN"]),
        Path(environment["COVERTFL_OUT"]),
        environment.get("COVERTFL_RESUME") == "1",
        environment.get("COVERTFL_FORCE") == "1",
        seconds,
        Path(news) if news else None,
    )


def make_app() -> ServerApp:
    """The server app of the run that environment variables name."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        place = read_place()
        with reporting(place.news):
            _find_app(place)(grid, context)

    return app


def _find_app(place: ServerPlace) -> ServerApp:
    from covertfl.engines.flower.server_app import make_server_app
    from covertfl.runs.run_file import read_run

    return make_server_app(
        read_run(place.run),
        place.out,
        resume=place.resume,
        force=place.force,
        timeout=place.timeout,
        on_round=make_round_callback(place.news),
    )


# --- news from the server to whoever has started it -----------------------------------------------


@contextlib.contextmanager
def reporting(news: Path | None) -> Iterator[None]:
    """Keep the reason of a failure on the server.

    Flower tells everybody who asks why a run has failed; what happened on the server may say more
    than clients should know.
    """
    try:
        yield
    except Exception as error:
        _write_news(
            news, {"failed": type(error).__name__, "reason": str(error) or type(error).__name__}
        )
        raise RuntimeError("the server has stopped") from None


def make_round_callback(news: Path | None) -> OnRound | None:
    """What writes down where a run stands; None where nobody wants to know."""
    if news is None:
        return None

    def on_round(progress: RunProgress) -> None:
        entry = {**dataclasses.asdict(progress), "run": str(progress.run)}
        _write_news(news, {"progress": entry})

    return on_round


def _write_news(news: Path | None, entry: Mapping[str, Any]) -> None:
    if news is None:
        return
    handle = os.open(news, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as stream:
        stream.write(json.dumps(entry).encode() + b"\n")


class ServerNews:
    """Reads what a server app has written, as it comes."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def read_new(self) -> list[dict[str, Any]]:
        """Entries since the last look; one that is being written is left for the next."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                content = stream.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def make_error(entry: Mapping[str, Any]) -> CovertflError:
    """The refusal that a server app has met, for the command line to end with."""
    kind = getattr(errors, str(entry["failed"]), None)
    if isinstance(kind, type) and issubclass(kind, CovertflError) and kind is not errors.Infeasible:
        return kind(entry["reason"])
    return DeploymentFailed(f"the server app failed: {entry['failed']}: {entry['reason']}")
