"""One finished run that the tests of the audit share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from covertfl.auditing.run import RunAudit, audit_run
from covertfl.runs.build import KernelCache
from tests.support.small_runs import run_small


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="torch is not installed")
    out = tmp_path_factory.mktemp("audit") / "run"
    run_small(out, decoy={"gated": False})
    return out


@pytest.fixture(scope="package")
def audited(finished: Path) -> RunAudit:
    return audit_run(finished, KernelCache())


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))
