"""Tasks from a user's vectors."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covertfl.errors import InvalidInput
from covertfl.tasks.data import divide_data
from covertfl.tasks.embeddings import load_embeddings, make_embeddings_task
from covertfl.tasks.task import DataSettings, TrainingTask

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(3.0, 5.0, size=(400, 6)).astype(np.float32)
LABELS = GENERATOR.integers(2, size=400)


def save(folder: Path, **arrays: npt.NDArray[Any]) -> str:
    path = folder / "mine.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return os.fspath(path)


def test_two_classes_train_with_one_logit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    path = save(tmp_path, features=FEATURES, labels=LABELS)
    task = make_embeddings_task(DataSettings(task="embeddings", clients=4, path=path))
    assert task.loss == "binary"
    assert task.train.labels.dtype == np.float32
    assert np.bincount(task.validation.labels.astype(int)).tolist() == [20, 20]
    assert task.num_examples + len(task.public) + len(task.validation) == 400
    assert task.make_model()(torch.zeros(3, 6)).shape == (3, 1)


def test_features_are_standardised_by_the_public_set_alone(tmp_path: Path) -> None:
    """Other rows of clients and of the validation set change neither mean nor deviation."""
    features = np.column_stack([FEATURES, np.full(400, 7.0)])
    settings = partial(DataSettings, task="embeddings", clients=4, seed=3)

    def make(rows: npt.NDArray[Any]) -> TrainingTask:
        path = save(tmp_path, features=rows, labels=LABELS)
        return make_embeddings_task(settings(path=path))

    task = make(features)
    public = task.public.features
    np.testing.assert_allclose(public.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(public.std(axis=0), [1.0] * 6 + [0.0], atol=1e-5)
    found = task.inputs.standardisation
    assert found is not None
    file = load_embeddings(settings(path=str(tmp_path / "mine.npz")).path or "")
    rows = divide_data(file.data, settings(), 40).public
    np.testing.assert_allclose(found.mean, features[rows].mean(axis=0))
    np.testing.assert_array_equal(found.deviation[6], 1.0)
    np.testing.assert_array_equal(found.apply(features), task.train.features)
    changed = np.where(np.isin(np.arange(400), rows)[:, None], features, 9.0 * features + 100.0)
    other = make(changed).inputs.standardisation
    assert other is not None
    np.testing.assert_array_equal(other.mean, found.mean)
    np.testing.assert_array_equal(other.deviation, found.deviation)


def test_names_and_gaps_become_class_numbers(tmp_path: Path) -> None:
    names = np.array(["ham", "spam", "eggs"])[np.arange(400) % 3]
    data = load_embeddings(save(tmp_path, features=FEATURES, labels=names)).data
    assert data.names == ("eggs", "ham", "spam")
    assert (data.loss, data.outputs) == ("multiclass", 3)
    np.testing.assert_array_equal(data.classes, np.array([1, 2, 0])[np.arange(400) % 3])
    data = load_embeddings(save(tmp_path, features=FEATURES, labels=2.0 * LABELS - 1.0)).data
    assert data.names == ("-1", "1")
    np.testing.assert_array_equal(data.examples.labels, LABELS)


def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = save(tmp_path, features=FEATURES, labels=LABELS)
    first = load_embeddings(path)
    assert load_embeddings(path) is first
    save(tmp_path, features=FEATURES[:200], labels=LABELS[:200])
    assert len(load_embeddings(path).features) == 200


def test_classes_keep_the_names_in_the_file(tmp_path: Path) -> None:
    names = np.array(["fine", "rude", "vile"])
    path = save(tmp_path, features=FEATURES, labels=1 + LABELS, classes=names)
    assert load_embeddings(path).data.names == ("rude", "vile")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FEATURES}, "must hold the arrays features and labels, got x"),
        ({"features": FEATURES[0], "labels": LABELS}, r"must have shape \(n, d\), got \(6,\)"),
        ({"features": FEATURES, "encoder": np.array("{}")}, "embed the texts again with --label"),
        (
            {"features": FEATURES, "labels": LABELS, "classes": np.array(["one"])},
            "a name for each class number, got 1 for the numbers 0 to 1",
        ),
        (
            {"features": FEATURES, "labels": LABELS, "encoder": np.array('{"name": 1}')},
            "encoder is not what covertfl embed writes",
        ),
        ({"features": FEATURES, "labels": LABELS[:9]}, r"shape \(400,\), got \(9,\)"),
        ({"features": FEATURES, "labels": np.zeros(400)}, "2 to 1000 different values, got 1"),
        ({"features": FEATURES, "labels": LABELS / 2}, r"whole numbers or names, got 0\.5 in row"),
        (
            {"features": np.where(FEATURES > 15, np.nan, FEATURES), "labels": LABELS},
            "got nan in row",
        ),
        ({"features": FEATURES.astype(str), "labels": LABELS}, "features must be numbers, got <U"),
        (
            {"features": FEATURES, "labels": LABELS.astype("M8[s]")},
            "numbers or names, got datetime",
        ),
    ],
)
def test_bad_arrays_are_refused(
    tmp_path: Path, arrays: dict[str, npt.NDArray[Any]], message: str
) -> None:
    path = save(tmp_path, **arrays)
    with pytest.raises(InvalidInput, match=message) as refusal:
        load_embeddings(path)
    assert "mine.npz" in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"text", b"\x93NUMPY"])
def test_bad_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"mine\.npz cannot be read as an \.npz file"):
        load_embeddings(path)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.npz: no such file"):
        load_embeddings(tmp_path / "none.npz")
    with pytest.raises(InvalidInput, match="needs path"):
        make_embeddings_task(DataSettings(task="embeddings"))
    np.save(tmp_path / "one.npy", FEATURES)
    with pytest.raises(InvalidInput, match="must hold the arrays"):
        load_embeddings(tmp_path / "one.npy")
    objects = np.array([{}, []], dtype=object)
    np.savez(tmp_path / "objects.npz", features=objects, labels=objects)
    with pytest.raises(InvalidInput, match="cannot be read as an"):
        load_embeddings(tmp_path / "objects.npz")
