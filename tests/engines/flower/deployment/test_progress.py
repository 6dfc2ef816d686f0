"""Progress and failures of a server app reach its owner, and nobody else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl import errors
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.deployment.server import (
    ProgressReader,
    make_error,
    make_round_callback,
    reporting_failures,
)
from covertfl.errors import InvalidInput
from covertfl.runs.progress import RunProgress


def test_rounds_come_whole_and_failures_stay_on_the_server(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader, on_round = ProgressReader(path), make_round_callback(path)
    assert list(reader.read_new()) == []
    assert on_round is not None
    assert make_round_callback(None) is None
    progress = RunProgress(tmp_path, 0, 1, 9, 2, 3, 0.5, 0.7)
    on_round(progress)
    with path.open("ab") as stream:
        stream.write(b'{"progress"')
    assert list(reader.read_new()) == [progress]
    path.write_bytes(path.read_bytes().removesuffix(b'{"progress"'))
    on_round(progress)
    with pytest.raises(RuntimeError, match=r"^the server has stopped$"), reporting_failures(path):
        raise InvalidInput("[decoy] kind is wrong")
    new = reader.read_new()
    assert next(new) == progress
    with pytest.raises(InvalidInput, match=r"^\[decoy\] kind is wrong$"):
        next(new)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_other_failures_are_failures_of_the_deployment() -> None:
    error = make_error({"failed": "ZeroDivisionError", "reason": "division by zero"})
    assert type(error) is DeploymentFailed
    assert error.exit_status == errors.NoSolution.exit_status
    assert "ZeroDivisionError: division by zero" in str(error)
