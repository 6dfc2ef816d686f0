"""What an eavesdropper would have without listening: the base line of its gain.

With labelled data it is the better of training the model alone on them and a logistic fit, both
scored on the validation set; without data it is the share of the largest class there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covertfl.auditing.threats import ScoreCache, listen
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.owners import FreshLabelsEavesdropper, TrainAloneEavesdropper
from covertfl.eavesdroppers.registry import find_class
from covertfl.kernels.job import Examples, Labels

FIT_STEPS = 1000  # most iterations of a logistic fit


def measure_largest_class(labels: Labels) -> float:
    """Return the share of the most frequent class."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def fit_logistic(data: Examples, validation: Examples, *, seed: int) -> float | None:
    """Return the accuracy on the validation set of a logistic regression on some examples.

    The better of two counts: each example with the same weight, or each class.  Examples of a
    single class are answered with that class.  None without scikit-learn.
    """
    labels = data.labels.astype(np.int64)
    if len(np.unique(labels)) < 2:
        return float(np.mean(validation.labels == labels[0]))
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return None
    rows, asked = (part.features.reshape(len(part), -1) for part in (data, validation))
    options: dict[str, Any] = {"solver": "newton-cg", "max_iter": FIT_STEPS, "random_state": seed}
    fits = [LogisticRegression(class_weight=weight, **options) for weight in (None, "balanced")]
    answers = [fit.fit(rows.astype(np.float64), labels).predict(asked) for fit in fits]
    return max(float(np.mean(answer == validation.labels)) for answer in answers)


def measure_alone(
    data: Examples,
    validation: Examples,
    means: Means,
    queries: Sequence[SeenQuery],
    scores: ScoreCache,
    *,
    trained: float | None = None,
) -> float:
    """Return the better accuracy of training alone on some examples and of a logistic fit.

    Parameters
    ----------
    queries : of the run, one pass over the examples for each
    trained : accuracy of training alone where it is known, None to train
    """
    if trained is None:
        alone = TrainAloneEavesdropper(replace(means, data=data))
        found = listen(alone, queries, None, scores, by_round=False).accuracy
        assert found is not None
        trained = found[-1]
    fitted = fit_logistic(data, validation, seed=means.seed)
    return trained if fitted is None else max(trained, fitted)


class BaseLines:
    """The base lines of one run's eavesdroppers, each measured once.

    Parameters
    ----------
    trained : accuracy of `train-alone` on the public set, None if it was not trained
    """

    def __init__(
        self,
        means: Means,
        validation: Examples,
        queries: Sequence[SeenQuery],
        scores: ScoreCache,
        trained: float | None,
    ) -> None:
        self._means, self._validation, self._queries = means, validation, queries
        self._scores, self._trained = scores, trained
        self._known: dict[tuple[str, int], float] = {}

    def find(self, name: str) -> float:
        """Return the base line of an eavesdropper, by what it owns."""
        data, fresh = self._means.data, self._means.fresh
        kind = find_class(name)
        if fresh is not None and issubclass(kind, FreshLabelsEavesdropper):
            own = Examples(fresh.features[: kind.number], fresh.labels[: kind.number])
            return self._measure(("fresh", len(own)), own, None)
        if kind.tier in ("B", "C") and data is not None:
            return self._measure(("public", len(data)), data, self._trained)
        return measure_largest_class(self._validation.labels)

    def _measure(self, key: tuple[str, int], data: Examples, trained: float | None) -> float:
        if key not in self._known:
            self._known[key] = measure_alone(
                data, self._validation, self._means, self._queries, self._scores, trained=trained
            )
        return self._known[key]
