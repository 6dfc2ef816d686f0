"""Processes of a federation that do not start, and waiting with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment import processes as module
from covertfl.engines.flower.deployment.processes import (
    DeploymentFailed,
    SupervisedProcesses,
    wait_until,
)


def test_a_supervisor_that_ends_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUPERVISOR", "covertfl.no_such_module")
    processes = SupervisedProcesses(tmp_path)
    try:
        said = r"the supervisor of the federation did not start: .*no_such_module"
        with pytest.raises(DeploymentFailed, match=said):
            processes.start("node0", "supernode")
    finally:
        processes.close()


def test_waiting_ends_at_its_limit_or_before() -> None:
    assert not wait_until(lambda: False, 0.0)
    assert wait_until(lambda: True, 0.0)
