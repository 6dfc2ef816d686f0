"""Examples with wrong labels beside the right ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from covertfl.kernels.job import Examples, Labels, Loss
from covertfl.tasks.task import TrainingTask
from covertfl.tasks.wrong_labels import add_wrong_labels, draw_wrong_labels, spoil_rows

CLASSES = 5


def make_task(loss: Loss, rows: int = 40) -> TrainingTask:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(rows, 3)).astype(np.float32)
    labels: Labels = generator.integers(0, CLASSES, rows)
    if loss == "binary":
        labels = (labels > 1).astype(np.float32)
    examples = Examples(features, labels)

    def refuse() -> None:
        raise AssertionError("no model is needed")

    clients = (np.arange(rows // 2), np.arange(rows // 2, rows))
    return TrainingTask("own", refuse, loss, examples, clients, examples, examples)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["binary", "multiclass"])
def test_the_second_half_has_the_same_features_and_only_wrong_labels(loss: Loss) -> None:
    task = make_task(loss)
    noisy = add_wrong_labels(task).train
    first, second = noisy.labels[: len(task.train)], noisy.labels[len(task.train) :]
    np.testing.assert_array_equal(first, task.train.labels)
    np.testing.assert_array_equal(noisy.features[len(task.train) :], task.train.features)
    assert np.all(second != first)
    assert set(second.tolist()) <= set(first.tolist())
    assert noisy.labels.dtype == task.train.labels.dtype
    assert add_wrong_labels(task).train is noisy


def test_wrong_classes_are_uniform_among_the_others() -> None:
    labels = np.full(8000, 3)
    labels[0] = CLASSES - 1
    wrong = draw_wrong_labels(labels, "multiclass")[1:]
    counts = np.bincount(wrong, minlength=CLASSES)
    assert counts[3] == 0
    assert stats.chisquare(np.delete(counts, 3)).pvalue > 1e-3


@given(wrong=st.integers(0, 20), seed=st.integers(0, 9))
def test_as_many_rows_as_asked_are_spoilt(wrong: int, seed: int) -> None:
    task = add_wrong_labels(make_task("multiclass"))
    rows, before = task.clients[1], task.clients[1].copy()
    spoilt = spoil_rows(rows, wrong, task, generator=np.random.default_rng(seed))
    np.testing.assert_array_equal(rows, before)
    np.testing.assert_array_equal(spoilt % 40, rows)
    assert np.count_nonzero(task.train.labels[spoilt] != task.train.labels[rows]) == wrong
