"""The command `export`: the true weights, in a file that only its owner can read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.support.commands import Run, refuse


def test_the_true_weights_are_written(run: Run, run_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder, model = tmp_path / "run", tmp_path / "model.safetensors"
    assert run("train", run_file, "--out", folder).status == 0
    outcome = run("export", folder, "-o", model)
    assert (outcome.status, outcome.err) == (0, "")
    assert "Keep both off the channel" in outcome.out
    assert model.stat().st_mode & 0o077 == 0
    with safe_open(folder / "checkpoint" / "state.safetensors", framework="numpy") as state:
        true = state.get_tensor("true")
    parts = load_file(model)
    assert sum(part.size for part in parts.values()) == true.size
    assert sorted(np.concatenate([part.ravel() for part in parts.values()])) == sorted(true)


def test_a_folder_without_a_run(run: Run, tmp_path: Path) -> None:
    assert "holds no run" in refuse(
        run("export", tmp_path, "-o", tmp_path / "model.safetensors"), 2
    )
