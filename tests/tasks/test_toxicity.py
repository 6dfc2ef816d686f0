"""The toxicity task: the file, how it was made, how it is divided."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from covertfl.tasks.task import DataSettings
from covertfl.tasks.toxicity import VALIDATION_SIZE, load_toxicity, make_toxicity_task
from tests import ROOT

SCRIPT = ROOT / "scripts" / "build_toxicity.py"
SHA256 = "07f9d1b6d267286dfabb42e118019fac09cb3d4bc1f88bd2065498bbe617e75b"
FOLDER = Path(os.environ.get("COVERTFL_DATA", "."))


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_toxicity", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_file_is_the_one_that_was_published() -> None:
    content = (resources.files("covertfl.data") / "toxicity.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert len(content) < 6_000_000


def test_packed_bytes_are_reproducible_and_readable(tmp_path: Path) -> None:
    script = load_script()
    arrays = {"features": np.arange(6, dtype=np.int8).reshape(2, 3), "scale": np.ones(3)}
    content = script.pack(arrays)
    assert content == script.pack(arrays)
    (tmp_path / "some.npz").write_bytes(content)
    with np.load(tmp_path / "some.npz", allow_pickle=False) as read:
        assert list(read) == ["features", "scale"]
        np.testing.assert_array_equal(read["features"], arrays["features"])


@pytest.mark.slow
@pytest.mark.skipif(
    not (FOLDER / "text" / "wiki_davidson_184k.parquet").is_file(),
    reason="COVERTFL_DATA has no text/wiki_davidson_184k.parquet",
)
def test_part_of_the_file_is_rebuilt_bit_for_bit() -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("wordllama", reason="wordllama is not installed")
    from covertfl.tasks.text import embed_texts

    script = load_script()
    columns = script.read_source(FOLDER)
    rows = script.choose_rows(columns)
    part = slice(100, None, 97)
    vectors = embed_texts(columns["text"][rows[part]].tolist()).astype(np.float64)
    with np.load(script.TARGET, allow_pickle=False) as arrays:
        assert len(rows) == len(arrays["labels"]) == 34_582
        np.testing.assert_array_equal(columns["toxicity"][rows], arrays["labels"])
        features = script.standardise(vectors, arrays["mean"], arrays["deviation"])
        quantised = script.quantise(features, arrays["scale"])
        np.testing.assert_array_equal(quantised, arrays["features"][part])
    assert len(quantised) > 300


def test_rows_are_balanced_and_standardised() -> None:
    data = load_toxicity()
    assert np.bincount(data.classes).tolist() == [17_291, 17_291]
    features = data.examples.features.astype(np.float64)
    assert features.shape == (34_582, 128)
    assert np.abs(features.mean(axis=0)).max() < 0.01
    assert np.abs(features.std(axis=0) - 1.0).max() < 0.01


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_division_is_the_papers(share: float) -> None:
    task = make_toxicity_task(DataSettings(task="toxicity", seed=4, public_positive_share=share))
    assert np.bincount(task.validation.labels.astype(int)).tolist() == [1443, 1443]
    assert len(task.clients) == 20
    size = round((34_582 - VALIDATION_SIZE) / 21)
    assert {len(rows) for rows in task.clients} <= {size, size + 1}
    assert len(task.public) == size
    assert task.public.labels.sum() == round(share * size)
    assert task.num_examples + len(task.public) + len(task.validation) == 34_582


def test_sets_share_no_row() -> None:
    """Rows are identified by their content, of which few repeat."""
    task = make_toxicity_task(DataSettings(task="toxicity", seed=4))
    clients = np.concatenate(task.clients)
    assert len(np.unique(clients)) == len(clients)
    names = {row.tobytes() for row in task.train.features[clients]}
    for other in (task.public, task.validation):
        repeated = sum(row.tobytes() in names for row in other.features)
        assert repeated < 0.02 * len(other)


def test_seeds_share_the_features_and_differ_in_rows() -> None:
    first, second = (
        make_toxicity_task(DataSettings(task="toxicity", seed=seed)) for seed in (0, 1)
    )
    assert first.train is second.train
    assert first.clients[0].tolist() != second.clients[0].tolist()


def test_model_is_the_papers_head() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    task = make_toxicity_task(DataSettings(task="toxicity"))
    model = task.make_model()
    assert isinstance(model, torch.nn.Sequential)
    kinds = [type(layer).__name__ for layer in model]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear"]
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [(128, 128), (128,), (1, 128), (1,)]
    assert model[2].p == 0.1
    assert model(torch.zeros(3, 128)).shape == (3, 1)


def test_classes_can_be_told_apart() -> None:
    """Least squares on the clients' rows classifies most of the validation set correctly."""
    task = make_toxicity_task(DataSettings(task="toxicity"))
    rows = np.concatenate(task.clients)
    features = task.train.features[rows].astype(np.float64)
    solution = np.linalg.lstsq(features, task.train.labels[rows] - 0.5, rcond=None)[0]
    named = task.validation.features @ solution > 0.0
    assert np.mean(named == task.validation.labels) > 0.79
