"""The command `federation init`: a secret that is made once, for its owner only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Run, refuse

pytest.importorskip("torch")

RUN = 'task = "digits"\nrounds = 4\nscheme = "exchangeable"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_a_secret_is_made_once(run: Run, file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "federation.json"
    outcome = run("federation", "init", file, "-o", secret)
    assert (outcome.status, outcome.err) == (0, "")
    assert "up to 8 trajectories" in outcome.out
    assert "[data] seed = 0" in outcome.out
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    assert "exists: a federation keeps its secret" in refuse(
        run("federation", "init", file, "-o", secret), 2
    )
    assert secret.read_bytes() == before


def test_json_and_a_federation_that_is_fixed(run: Run, file: Path, tmp_path: Path) -> None:
    file.write_text(f"{RUN}[data]\nseed = 3\n")
    secret = tmp_path / "federation.json"
    outcome = run("federation", "init", file, "-o", secret, "--json")
    assert json.loads(outcome.out) == {"output": str(secret), "trajectories": 8}
    shown = run("federation", "init", file, "-o", tmp_path / "other.json").out
    assert "[data] seed" not in shown


def test_a_folder_is_no_secret(run: Run, file: Path, tmp_path: Path) -> None:
    assert "is a folder" in refuse(run("federation", "init", file, "-o", tmp_path), 2)
