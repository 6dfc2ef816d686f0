"""What raw outputs say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.decoys.opinion import (
    draw_labels,
    find_classes,
    measure_loss,
    name_classes,
    name_other_classes,
)

BINARY = np.array([[2.0], [-1.0], [0.0]], dtype=np.float32)
MANY = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], dtype=np.float32)


def test_classes_of_labels() -> None:
    labels = np.array([0.0, 1.0, 0.2], dtype=np.float32)
    assert find_classes(labels, "binary").tolist() == [0, 1, 0]
    assert find_classes(np.array([4, 2]), "multiclass").tolist() == [4, 2]


def test_classes_that_outputs_name() -> None:
    assert name_classes(BINARY, "binary").tolist() == [1, 0, 0]
    assert name_classes(MANY, "multiclass").tolist() == [0, 1]


def test_another_class_is_the_best_of_the_rest() -> None:
    before = MANY.copy()
    assert name_other_classes(MANY, np.array([0, 1])).tolist() == [2, 2]
    assert name_other_classes(MANY, np.array([1, 2])).tolist() == [0, 1]
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


def test_labels_are_drawn_with_the_models_chances() -> None:
    generator = np.random.default_rng(0)
    binary = np.full((20_000, 1), math.log(3.0), dtype=np.float32)
    labels = draw_labels(binary, "binary", generator=generator)
    assert labels.dtype == np.float32
    assert labels.mean() == pytest.approx(0.75, abs=0.015)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32)).repeat(20_000, axis=0)
    shares = np.bincount(draw_labels(logits, "multiclass", generator=generator)) / 20_000
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
