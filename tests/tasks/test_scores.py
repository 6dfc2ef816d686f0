"""Scores of a model's answers, against scikit-learn and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

from covertfl.kernels.job import Float32Array, Labels, Loss
from covertfl.tasks.scores import FURTHER, Scores, average_scores, compute_auc, compute_scores

metrics: Any = pytest.importorskip("sklearn.metrics")


def draw(loss: Loss, seed: int, *, places: int = 6) -> tuple[Float32Array, Labels]:
    """Logits that know something of unequally frequent classes; few `places` make ties."""
    generator = np.random.default_rng(seed)
    if loss == "binary":
        labels: Labels = (generator.random(300) < 0.2).astype(np.float32)
        outputs = generator.standard_normal((300, 1)) + labels[:, np.newaxis] - 0.5
    else:
        labels = generator.choice(4, size=300, p=[0.6, 0.25, 0.1, 0.05])
        outputs = generator.standard_normal((300, 4)) + 1.2 * np.eye(4)[labels]
    return np.round(outputs, places).astype(np.float32), labels


@pytest.mark.parametrize("places", [6, 0])
@pytest.mark.parametrize("loss", ["binary", "multiclass"])
def test_scores_are_those_of_scikit_learn(loss: Loss, places: int) -> None:
    for seed in range(3):
        outputs, labels = draw(loss, seed, places=places)
        found = compute_scores(outputs, labels, loss)
        logits = outputs.astype(np.float64)
        if loss == "binary":
            answers, ranked = logits[:, 0] > 0.0, logits[:, 0]
        else:
            answers, ranked = logits.argmax(axis=1), special.softmax(logits, axis=1)
        assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, answers))
        balanced = metrics.balanced_accuracy_score(labels, answers)
        assert found.balanced_accuracy == pytest.approx(balanced)
        assert found.f1 == pytest.approx(metrics.f1_score(labels, answers, average="macro"))
        auc = metrics.roc_auc_score(labels, ranked, multi_class="ovr", average="macro")
        assert found.auc == pytest.approx(auc, abs=1e-12)
        assert found.only_answer is None


def test_a_model_that_answers_one_class_is_found() -> None:
    labels = np.array([1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    outputs = np.array([[-1.0], [-2.0], [-3.0], [-4.0]], dtype=np.float32)
    found = compute_scores(outputs, labels, "binary")
    # Precision 3/4 and recall 1 of class 0, none of class 1; the one positive is ranked first.
    assert found == Scores(0.75, 0.5, 1.0, 3.0 / 7.0, only_answer=0)
    assert compute_scores(outputs, labels * 0.0, "binary").only_answer is None


def test_what_is_not_defined_is_not_a_number() -> None:
    labels = np.zeros(3, dtype=np.int64)
    outputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=np.float32)
    found = compute_scores(outputs, labels, "multiclass")
    assert found.auc is None and found.balanced_accuracy == pytest.approx(2.0 / 3.0)
    assert compute_auc(np.array([np.nan, 1.0]), np.array([True, False])) is None
    assert compute_auc(np.array([np.inf, 1.0]), np.array([True, False])) == 1.0
    broken = compute_scores(np.full((2, 2), np.inf, np.float32), np.array([0, 1]), "multiclass")
    assert broken.auc is None


def test_an_absent_class_is_left_out() -> None:
    outputs, labels = draw("multiclass", 0)
    kept = labels != 2
    found = compute_scores(outputs[kept], labels[kept], "multiclass")
    recalls = [np.mean(outputs[labels == c].argmax(axis=1) == c) for c in (0, 1, 3)]
    assert found.balanced_accuracy == pytest.approx(np.mean(recalls))


def test_means_leave_out_what_is_not_defined() -> None:
    mean = average_scores([Scores(0.2, 0.4, None, 0.0), Scores(0.6, 0.2, 0.7, None)])
    assert mean.accuracy == pytest.approx(0.4)
    assert [getattr(mean, name) for name in FURTHER] == pytest.approx([0.3, 0.7, 0.0])
