"""An eavesdropper that has learned from other runs what gives the true trajectory away.

It computes the figures of the other eavesdroppers and gives them to a classifier that was trained
on runs whose true trajectory is known: runs simulated from the public set, or, as an upper bound,
runs of the same federation with the answers given.  Figures count relative to the mean over a run's
trajectories, so that the choice among K trajectories is a softmax over the score of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, Rehearsed, SeenQuery, softmax
from covertfl.eavesdroppers.kinds import KINDS
from covertfl.errors import InvalidInput, Missing

__all__ = [
    "FigureCollector",
    "Rehearsed",
    "TrainedEavesdropper",
    "TrainedListenerEavesdropper",
    "TrainedPublicEavesdropper",
    "collect_figures",
    "list_sources",
    "train_scorer",
]
NUM_FOLDS, NUM_TREES, LEAST_LEAF = 5, 100, 2
# Inverse strength of the penalty of the logistic regressions that are tried.
PENALTIES = (0.01, 0.1, 1.0)
# Standardised figures are cut off here: one outlier must not decide.
MOST_DEVIATIONS = 4.0
Scorer = Callable[[FloatArray], FloatArray]


def list_sources(tiers: str) -> tuple[str, ...]:
    """Return the eavesdroppers of some tiers, as "AB", that have figures of their own."""
    return tuple(
        name for name, kind in KINDS.items() if kind.tier in tiers and "figures" in vars(kind)
    )


class FigureCollector:
    """Some eavesdroppers at once, for their figures; those whose needs are not met are left out."""

    def __init__(self, names: Iterable[str], means: Means) -> None:
        self._parts = {
            name: KINDS[name](means)
            for name in names
            if all(getattr(means, need) is not None for need in KINDS[name].needs)
        }

    def observe(self, query: SeenQuery) -> None:
        """Show a query to all of them."""
        for part in self._parts.values():
            part.observe(query)

    def collect(self) -> dict[str, FloatArray]:
        """Return the figures by name, as "step-shape: length"; 0 for what is not a number."""
        return {
            f"{source}: {name}": np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
            for source, part in self._parts.items()
            for name, values in part.figures().items()
        }


def collect_figures(
    names: Iterable[str], means: Means, queries: Sequence[SeenQuery]
) -> tuple[tuple[str, ...], FloatArray]:
    """Show a run to eavesdroppers and return the names (F,) and values (K, F) of their figures.

    Parameters
    ----------
    names : of eavesdroppers, as `list_sources` returns them; those whose needs are not met by
        the means are left out
    """
    collector = FigureCollector(names, means)
    for query in queries:
        collector.observe(query)
    found = collector.collect()
    return tuple(found), np.stack(list(found.values()), axis=1)


def make_relative(figures: FloatArray) -> FloatArray:
    """Return figures (..., K, F) less their mean over the K trajectories."""
    relative: FloatArray = figures - figures.mean(axis=-2, keepdims=True)
    return relative


def train_scorer(figures: FloatArray, truth: IntArray, *, seed: int = 0) -> Scorer:
    """Return the best of several classifiers, by cross-validation over runs, trained on all runs.

    Parameters
    ----------
    figures : (runs, K, F)
    truth : (runs,) index of the true trajectory

    Returns
    -------
    function from relative figures (..., K, F) to scores (..., K), log-odds of being the true one

    Raises
    ------
    Missing
        if scikit-learn is not installed
    """
    relative = make_relative(figures)
    folds = np.arange(len(truth)) % min(NUM_FOLDS, len(truth))
    best = max(
        make_classifiers(seed), key=lambda make: cross_validate(make, relative, truth, folds)
    )
    return fit_scorer(best, relative, truth)


def make_classifiers(seed: int) -> list[Callable[[], Any]]:
    """Return what makes each classifier that is tried; raise `Missing` without scikit-learn."""
    try:
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise Missing(
            "the trained eavesdropper needs scikit-learn: "
            "install the extra with pip install 'covertfl[train]'"
        ) from error

    def make_forest() -> Any:
        return RandomForestClassifier(NUM_TREES, min_samples_leaf=LEAST_LEAF, random_state=seed)

    # Relative figures have mean 0, so there is nothing for an intercept to do.
    regressions = [
        lambda penalty=penalty: LogisticRegression(C=penalty, fit_intercept=False, max_iter=2000)
        for penalty in PENALTIES
    ]
    return [*regressions, make_forest]


def cross_validate(
    make: Callable[[], Any], relative: FloatArray, truth: IntArray, folds: IntArray
) -> float:
    """Return the share of runs named by a classifier trained on the other folds, ties shared."""
    named = 0.0
    for fold in range(folds.max() + 1):
        is_left: BoolArray = folds == fold
        scores = fit_scorer(make, relative[~is_left], truth[~is_left])(relative[is_left])
        is_best = scores == scores.max(axis=1, keepdims=True)
        named += float(
            np.sum(is_best[np.arange(len(scores)), truth[is_left]] / is_best.sum(axis=1))
        )
    return named / len(truth)


def fit_scorer(make: Callable[[], Any], relative: FloatArray, truth: IntArray) -> Scorer:
    """Return the scores of a classifier trained on runs; equal figures get equal scores."""
    num_trajectories, num_figures = relative.shape[1:]
    is_true = np.arange(num_trajectories) == truth[:, np.newaxis]
    rows = relative.reshape(-1, num_figures)
    scale = rows.std(axis=0)
    scale[scale == 0.0] = 1.0

    def standardise(rows: FloatArray) -> FloatArray:
        cut: FloatArray = np.clip(rows / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        return cut

    classifier = make().fit(standardise(rows), is_true.ravel())

    def score(figures: FloatArray) -> FloatArray:
        rows = figures.reshape(-1, num_figures)
        distinct, places = np.unique(rows, axis=0, return_inverse=True)
        logs = np.log(np.maximum(classifier.predict_proba(standardise(distinct)), 1e-6))
        odds: FloatArray = (logs[:, 1] - logs[:, 0])[places.ravel()]
        return odds.reshape(figures.shape[:-1])

    return score


class TrainedEavesdropper(Listener):
    """Eavesdropper that believes what a classifier makes of the figures of tiers A, B and C.

    The classifier is a logistic regression or a forest, whichever names the truth in more of the
    runs that it was not trained on.
    """

    tier = "C"
    tiers: ClassVar[str] = "ABC"
    needs: ClassVar[tuple[str, ...]] = ("rehearsed",)
    threat = "is a client, owns the public set and was trained on other runs, with the answers"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.rehearsed is not None
        sources = list_sources(self.tiers)
        self._columns = [
            place
            for place, name in enumerate(means.rehearsed.names)
            if name.partition(":")[0] in sources
        ]
        if not self._columns:
            raise InvalidInput(
                f"rehearsed runs must have figures of {', '.join(sources)}, got none of them"
            )
        self._rehearsed = means.rehearsed
        self._collector = FigureCollector(sources, means)
        self._score = self._learn()

    def _learn(self) -> Scorer:
        """Return the classifier of these tiers; it is trained once for all runs."""
        known = self._rehearsed.memory
        if self.tiers not in known:
            figures = self._rehearsed.figures[:, :, self._columns]
            known[self.tiers] = train_scorer(figures, self._rehearsed.truth)
        return known[self.tiers]

    def observe(self, query: SeenQuery) -> None:
        """Show the query to all eavesdroppers whose figures are used."""
        super().observe(query)
        self._collector.observe(query)

    def measure(self) -> FloatArray:
        """Return (K, F) figures of the trajectories seen so far; 0 for those that are missing."""
        found = self._collector.collect()
        missing = np.zeros(len(self._seen))
        names = [self._rehearsed.names[place] for place in self._columns]
        return np.stack([found.get(name, missing) for name in names], axis=1)

    def belief(self) -> FloatArray:
        """Return the classifier's probabilities."""
        return softmax(self._score(make_relative(self.measure())))


class TrainedListenerEavesdropper(TrainedEavesdropper):
    """The same with the figures of tier A, which flips of the inputs' signs do not change."""

    tier, tiers = "A", "A"
    threat = "sees every query and was trained on other runs, with the answers; owns no data"


class TrainedPublicEavesdropper(TrainedEavesdropper):
    """The same with the figures of tiers A and B."""

    tier, tiers = "B", "AB"
    threat = "sees every query, owns the public set and was trained on other runs, with the answers"
