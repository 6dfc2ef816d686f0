"""Progress and failures of a run, written by its server app and read by who started it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from covertfl import errors
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.errors import CovertflError
from covertfl.runs.progress import OnRound, RunProgress

# Environment variable of a server app that names the file.
NEWS = "COVERTFL_NEWS"


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
