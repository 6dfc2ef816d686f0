"""Classes, labels and losses from raw outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.decoys.predictions import (
    find_classes,
    measure_loss,
    predict_classes,
    predict_other_classes,
    sample_labels,
)

BINARY = np.array([[2.0], [-1.0], [0.0]], dtype=np.float32)
MANY = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], dtype=np.float32)


def test_classes_of_labels() -> None:
    labels = np.array([0.0, 1.0, 0.2], dtype=np.float32)
    assert find_classes(labels, "binary").tolist() == [0, 1, 0]
    assert find_classes(np.array([4, 2]), "multiclass").tolist() == [4, 2]


def test_classes_that_outputs_name() -> None:
    assert predict_classes(BINARY, "binary").tolist() == [1, 0, 0]
    assert predict_classes(MANY, "multiclass").tolist() == [0, 1]


def test_another_class_is_the_best_of_the_rest() -> None:
    before = MANY.copy()
    assert predict_other_classes(MANY, np.array([0, 1])).tolist() == [2, 2]
    assert predict_other_classes(MANY, np.array([1, 2])).tolist() == [0, 1]
    assert np.array_equal(MANY, before)


def test_loss_by_hand() -> None:
    labels = np.array([1.0, 0.0, 1.0], dtype=np.float32)
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1)) + math.log(2)) / 3
    assert measure_loss(BINARY, labels, "binary") == pytest.approx(expected)
    rows = [math.exp(3), math.exp(1), math.exp(2)], [1.0, math.exp(5), math.exp(4)]
    expected = -(math.log(rows[0][1] / sum(rows[0])) + math.log(rows[1][2] / sum(rows[1]))) / 2
    assert measure_loss(MANY, np.array([1, 2]), "multiclass") == pytest.approx(expected)


def test_loss_of_huge_outputs_is_finite() -> None:
    huge = np.array([[1e6], [-1e6]], dtype=np.float32)
    assert measure_loss(huge, np.array([1.0, 0.0], dtype=np.float32), "binary") == 0.0
    many = np.array([[1e6, -1e6]], dtype=np.float32)
    assert measure_loss(many, np.array([1]), "multiclass") == pytest.approx(2e6)


def test_labels_have_the_distribution_of_the_outputs() -> None:
    generator = np.random.default_rng(0)
    binary = np.full((20_000, 1), math.log(3.0), dtype=np.float32)
    labels = sample_labels(binary, "binary", generator=generator)
    assert labels.dtype == np.float32
    assert labels.mean() == pytest.approx(0.75, abs=0.015)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32)).repeat(20_000, axis=0)
    shares = np.bincount(sample_labels(logits, "multiclass", generator=generator)) / 20_000
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
