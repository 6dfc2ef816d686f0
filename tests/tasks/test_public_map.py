"""The public map: mean zero and unit covariance where it should be, and which axes are free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.train import add_public_map
from covertfl.tasks.public_map import PublicMap, compute_public_map, find_free_axes
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings


def make_public(rows: int = 4000, positives: int = 400, shift: float = 0.0) -> Examples:
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(5, 5))
    features = (generator.normal(size=(rows, 5)) @ mixing + 3.0).astype(np.float32)
    labels = np.zeros(rows, dtype=np.float32)
    labels[:positives] = 1.0
    features[:positives] += shift * mixing[0].astype(np.float32)
    return Examples(features, labels)


def test_the_majority_class_has_mean_zero_and_an_almost_unit_covariance() -> None:
    public = make_public(shift=2.0)
    mapped = compute_public_map(public, "binary").apply(public.features)
    majority = mapped[public.labels == 0.0].astype(np.float64)
    covariance = np.cov(majority.T, bias=True)
    np.testing.assert_allclose(majority.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0.0, atol=1e-5)
    assert np.diag(covariance).min() > 0.9 and np.diag(covariance).max() < 1.1
    assert np.all(np.abs(mapped[public.labels == 1.0].mean(axis=0)).max() > 0.5)


def test_flipping_axes_changes_neither_mean_nor_covariance() -> None:
    public = make_public()
    mapped = compute_public_map(public, "binary").apply(public.features).astype(np.float64)
    flipped = mapped * np.array([1.0, -1.0, 1.0, -1.0, -1.0])
    rows = public.labels == 0.0
    np.testing.assert_allclose(np.cov(flipped[rows].T), np.cov(mapped[rows].T), atol=1e-5)


def test_axes_come_in_the_order_of_their_eigenvalues() -> None:
    found = compute_public_map(make_public(), "binary")
    assert np.all(np.diff(found.scale) > 0.0)
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(5), atol=1e-12)


def test_several_classes_are_pooled_within_each() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), 500)
    centres = 10.0 * generator.normal(size=(3, 4))
    inside = generator.normal(size=(1500, 4)) * [4.0, 2.0, 1.0, 0.5]
    public = Examples((inside + centres[labels]).astype(np.float32), labels.astype(np.int64))
    found = compute_public_map(public, "multiclass")
    # The spread within classes is along the coordinate axes, whatever the centres are.
    np.testing.assert_allclose(np.abs(found.basis), np.eye(4), atol=0.1)


def test_axes_on_which_classes_differ_are_not_free() -> None:
    generator = np.random.default_rng(2)
    features = generator.normal(size=(2000, 6)).astype(np.float32)
    labels = (np.arange(2000) < 200).astype(np.float32)
    features[labels == 1.0, 1] += 1.0
    free = find_free_axes(Examples(features, labels))
    assert not free[1] and free.sum() >= 4
    # The bound is the two-sample t with a pooled variance.
    from scipy.stats import ttest_ind

    t = ttest_ind(features[labels == 1.0], features[labels == 0.0]).statistic
    np.testing.assert_array_equal(free, np.abs(t) < 2.0)


def test_a_single_class_leaves_all_axes_free() -> None:
    public = make_public(positives=0)
    assert find_free_axes(public).all()


def test_a_task_with_mapped_inputs_keeps_everything_else() -> None:
    task = make_task(DataSettings(task="digits", clients=5))
    mapped = add_public_map(task)
    assert mapped.public_map is not None
    np.testing.assert_array_equal(
        mapped.train.features, mapped.public_map.apply(task.train.features)
    )
    assert mapped.train.labels is task.train.labels
    assert add_public_map(task).train is mapped.train


@pytest.mark.parametrize(
    ("shape", "sentence"), [((20, 1, 8, 8), "vectors as inputs"), ((1, 8), "at least 2 rows")]
)
def test_other_inputs_are_refused(shape: tuple[int, ...], sentence: str) -> None:
    public = Examples(np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.float32))
    with pytest.raises(InvalidInput, match=sentence):
        compute_public_map(public, "binary")


def test_a_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    public = make_public()
    found = compute_public_map(public, "binary")
    found.save(tmp_path / "map.safetensors")
    read = PublicMap.load(tmp_path / "map.safetensors")
    assert read.fingerprint == found.fingerprint
    assert np.array_equal(read.apply(public.features), found.apply(public.features))


def test_files_that_hold_no_map_are_refused(tmp_path: Path) -> None:
    found, file = compute_public_map(make_public(), "binary"), tmp_path / "map.safetensors"
    with pytest.raises(InvalidInput, match="no such file"):
        PublicMap.load(file)
    file.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="not a public map"):
        PublicMap.load(file)
    arrays = {"mean": found.mean, "basis": found.basis, "scale": found.mean[:2]}
    for version, message in (("2", "must be 1 "), ("one", "must be 1 "), ("1", "fit together")):
        save_file(arrays, file, metadata={"covertfl_format": version})
        with pytest.raises(InvalidInput, match=message):
            PublicMap.load(file)
