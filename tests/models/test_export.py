"""Exported models: the true weights, for their owner only."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from covertfl.errors import InvalidInput
from covertfl.models.export import ExportedModel, export_model
from covertfl.runs.checkpoint import read_checkpoint
from tests.support.small_runs import run_small

pytest.importorskip("torch")


@pytest.mark.parametrize("as_path", [Path, str])
def test_the_true_weights_are_exported(tmp_path: Path, as_path: type[Path] | type[str]) -> None:
    summary = run_small(tmp_path / "run", policy={"kind": "greedy"})
    output = tmp_path / "model.safetensors"
    exported = export_model(as_path(tmp_path / "run"), as_path(output))
    assert exported == ExportedModel(output, summary.rounds, summary.updates_done)
    assert exported.to_dict() == {
        "output": str(output),
        "rounds": summary.rounds,
        "updates_done": summary.updates_done,
    }
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    tensors = load_file(output)
    joined = np.concatenate([tensors.pop(name).ravel() for name in ("0.weight", "0.bias")])
    assert not tensors
    np.testing.assert_array_equal(joined, checkpoint.arrays["true"])
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_a_folder_without_a_complete_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run with a complete round"):
        export_model(tmp_path, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
