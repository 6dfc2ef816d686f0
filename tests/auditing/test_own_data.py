"""What an eavesdropper could learn from its own examples alone."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.auditing.baselines import fit_logistic
from covertfl.kernels.job import Examples

GENERATOR = np.random.default_rng(3)


def make_examples(labels: list[float]) -> Examples:
    """Two features, the first of which is the label and a little noise."""
    noise = GENERATOR.normal(0.0, 0.1, (len(labels), 2))
    features = noise + np.array([[label, 0.0] for label in labels])
    return Examples(features.astype(np.float32), np.array(labels, dtype=np.float32))


def test_examples_of_one_class_are_answered_with_it() -> None:
    asked = make_examples([1.0, 1.0, 1.0, 0.0])
    assert fit_logistic(make_examples([1.0, 1.0]), asked, seed=0) == 0.75
    assert fit_logistic(make_examples([0.0, 0.0]), asked, seed=0) == 0.25


def test_classes_that_a_line_separates_are_told_apart() -> None:
    pytest.importorskip("sklearn")
    assert fit_logistic(make_examples([0.0, 1.0] * 20), make_examples([1.0, 0.0]), seed=0) == 1.0
