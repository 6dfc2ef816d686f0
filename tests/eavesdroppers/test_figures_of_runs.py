"""What a trained eavesdropper measures in a run: numbers, whatever the queries hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.trained import collect_figures, cross_validate, list_sources
from tests.support.seen_queries import Means, make_queries


def test_what_is_not_a_number_counts_as_zero() -> None:
    queries = make_queries([(0, (0.0, 0.0)), (0, (np.nan, 1.0))])
    names, figures = collect_figures(list_sources("ABC"), Means(), queries)
    assert np.isfinite(figures).all()
    assert figures[0, names.index("step-shape: length")] == 0.0


class Signs:
    """A classifier that believes in what is positive."""

    def fit(self, _rows: FloatArray, _truth: Any) -> Signs:
        return self

    def predict_proba(self, rows: FloatArray) -> FloatArray:
        return np.where(rows > 0.0, [[0.1, 0.9]], [[0.9, 0.1]])


def test_each_run_is_named_once_by_who_was_not_trained_on_it() -> None:
    relative = np.array([[[1.0], [-1.0]]] * 3 + [[[-1.0], [1.0]]] + [[[0.0], [0.0]]] * 2)
    truth = np.zeros(6, dtype=np.int64)
    for folds in (np.arange(6), np.array([0, 0, 1, 1, 2, 2])):
        # Three runs are named, one is not, and two are guesses.
        assert cross_validate(Signs, relative, truth, folds) == pytest.approx(4 / 6)
