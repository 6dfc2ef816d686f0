"""Exported models read back, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from covertfl.errors import InvalidInput
from covertfl.models.export import export_model
from covertfl.models.load import load_weights
from covertfl.runs.checkpoint import read_checkpoint
from tests.support.small_runs import FUNCTION_QUEUE, run_small


def test_an_exported_model_has_a_format_and_is_read_back(tmp_path: Path) -> None:
    run_small(tmp_path / "run", FUNCTION_QUEUE, rounds=5)
    output = tmp_path / "model.safetensors"
    export_model(tmp_path / "run", output)
    with safe_open(output, framework="numpy") as content:
        assert content.metadata() == {"covertfl_format": "1"}
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    for path in (output, str(output)):
        [tensor] = load_weights(path).values()
        np.testing.assert_array_equal(tensor.ravel(), checkpoint.arrays["true"])


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"covertfl_format": "2"}, "a newer version wrote the file"),
        ({"covertfl_format": "one"}, "format must be a whole number from 1, got 'one'"),
    ],
)
def test_a_newer_format_is_refused(tmp_path: Path, metadata: dict[str, str], said: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(2, dtype=np.float32)}, path, metadata=metadata)
    with pytest.raises(InvalidInput, match=rf"model\.safetensors: .*{said}"):
        load_weights(path)


def test_a_file_without_a_format_has_the_first(tmp_path: Path) -> None:
    save_file({"w": np.zeros(2, dtype=np.float32)}, tmp_path / "model.safetensors")
    assert set(load_weights(tmp_path / "model.safetensors")) == {"w"}


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a model")
    for name in ("text", "none"):
        with pytest.raises(InvalidInput, match=f"{name}: "):
            load_weights(tmp_path / name)
