"""What an eavesdropper would have without listening."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from covertfl.auditing.baselines import fit_logistic, measure_largest_class
from covertfl.auditing.run import find_all, load_run
from covertfl.kernels.job import Examples
from covertfl.runs.build import KernelCache


def make_examples(number: int, seed: int, shift: float = 1.0) -> Examples:
    """Two normal classes whose means are 2 * shift apart on the first of three axes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=number)
    features = generator.normal(size=(number, 3))
    features[:, 0] += shift * (2 * labels - 1)
    return Examples(features.astype(np.float32), labels.astype(np.float32))


def test_the_share_of_the_largest_class() -> None:
    assert measure_largest_class(np.array([0, 1, 1, 2, 1])) == 0.6


def test_a_logistic_fit_comes_close_to_the_best_classifier() -> None:
    """Two normal classes one deviation from the middle are told apart in 84.1%."""
    pytest.importorskip("sklearn")
    found = fit_logistic(make_examples(4000, 0), make_examples(20_000, 1), seed=0)
    assert found == pytest.approx(0.841345, abs=0.01)


def test_a_single_class_is_answered_with_that_class() -> None:
    data, validation = make_examples(50, 0), make_examples(500, 1)
    ones = Examples(data.features, np.ones(50, dtype=np.float32))
    assert fit_logistic(ones, validation, seed=0) == pytest.approx(validation.labels.mean())


def test_base_lines_by_tier(finished: Path) -> None:
    pytest.importorskip("sklearn")
    run = load_run(finished, KernelCache())
    assert run.clients is not None and run.means.fresh is not None
    task = run.clients.task
    found = find_all(run, None, by_round=False)
    largest = measure_largest_class(task.validation.labels)
    assert found["majority"].baseline == found["unlabelled"].baseline == largest
    alone, fitted = (
        found["train-alone"].accuracy,
        fit_logistic(task.public, task.validation, seed=run.means.seed),
    )
    assert alone is not None and fitted is not None
    for name in ("validation", "alignment", "train-alone"):
        assert found[name].baseline == max(alone[-1], fitted)
    few = Examples(task.train.features[task.clients[0][:5]], task.train.labels[task.clients[0][:5]])
    fitted_few = fit_logistic(few, task.validation, seed=run.means.seed)
    assert fitted_few is not None
    baseline = found["fresh-labels-5"].baseline
    assert baseline is not None and baseline >= fitted_few
    gain, accuracy = found["validation"].gain, found["validation"].accuracy
    assert accuracy is not None and gain == accuracy[-1] - max(alone[-1], fitted)


def test_the_same_base_line_without_train_alone(finished: Path) -> None:
    run = load_run(finished, KernelCache())
    every = find_all(run, None, by_round=False)
    one = find_all(run, None, names=["validation"], by_round=False)
    assert one["validation"].baseline == every["validation"].baseline
