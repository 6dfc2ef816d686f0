"""How good a model's answers are: accuracy, balanced accuracy, AUC and F1.

Labels of a binary loss above 1/2 are of the positive class.  Where classes are not equally frequent
among the labels, a model that answers the largest class alone has a high accuracy; its balanced
accuracy is 1 / K, and its AUC shows whether it would do better with another threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.kernels.job import Float32Array, Labels, Loss

# Fields of `Scores` that stand beside the accuracy in results.
FURTHER = ("balanced_accuracy", "auc", "f1")


@dataclass(frozen=True)
class Scores:
    """Scores of a model's answers, in [0, 1]; None where one is not defined.

    Parameters
    ----------
    accuracy : share of right answers
    balanced_accuracy : mean over classes of the share of right answers (recall)
    auc : area under the ROC curve; for many classes, the mean of each class against the rest
    f1 : mean over classes of the harmonic mean of precision and recall (macro F1)
    only_answer : the class that is answered to all examples, None if answers differ or all
        examples are of one class
    """

    accuracy: float
    balanced_accuracy: float | None = None
    auc: float | None = None
    f1: float | None = None
    only_answer: int | None = None


def find_answers(outputs: Float32Array, loss: Loss) -> IntArray:
    """Return the (n,) classes that (n, outputs) logits stand for."""
    found = outputs[:, 0] > 0.0 if loss == "binary" else outputs.argmax(axis=1)
    return found.astype(np.int64)


def find_classes(labels: Labels, loss: Loss) -> IntArray:
    """Return the (n,) class numbers of labels."""
    return (labels > 0.5 if loss == "binary" else labels).astype(np.int64)


def score_accuracy(outputs: Float32Array, labels: npt.NDArray[np.generic], loss: Loss) -> float:
    """Return the accuracy, in [0, 1], of (n, outputs) logits for (n,) labels."""
    return float(np.mean(find_answers(outputs, loss) == labels))


def compute_scores(outputs: Float32Array, labels: Labels, loss: Loss) -> Scores:
    """Return all scores of (n, outputs) logits for (n,) labels; n is at least 1."""
    classes, answers = find_classes(labels, loss), find_answers(outputs, loss)
    size = 1 + int(max(classes.max(), answers.max()))
    table = np.bincount(size * classes + answers, minlength=size * size).reshape(size, size)
    right, asked, answered = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    is_known, is_met = asked > 0, asked + answered > 0
    is_single = answers.min() == answers.max() and is_known.sum() > 1
    return Scores(
        accuracy=score_accuracy(outputs, labels, loss),
        balanced_accuracy=float(np.mean(right[is_known] / asked[is_known])),
        auc=_average_auc(outputs, classes, loss),
        f1=float(np.mean(2.0 * right[is_met] / (asked + answered)[is_met])),
        only_answer=int(answers[0]) if is_single else None,
    )


def compute_losses(outputs: Float32Array, labels: Labels, loss: Loss) -> FloatArray:
    """Return the (n,) losses of (n, outputs) logits: -log of the probability of the right class."""
    logits = outputs.astype(np.float64)
    if loss == "binary":
        sign = np.where(find_classes(labels, loss) == 1, -1.0, 1.0)
        return np.logaddexp(0.0, sign * logits[:, 0])
    best = logits.max(axis=1)
    right = logits[np.arange(len(logits)), find_classes(labels, loss)]
    with np.errstate(invalid="ignore"):  # of a model whose answers are infinite
        total = best + np.log(np.exp(logits - best[:, np.newaxis]).sum(axis=1))
        return np.asarray(total - right)


def average_scores(scores: Sequence[Scores]) -> Scores:
    """Return the mean of each score over those, at least one, that have it."""
    return Scores(
        accuracy=float(np.mean([one.accuracy for one in scores])),
        balanced_accuracy=average_known([one.balanced_accuracy for one in scores]),
        auc=average_known([one.auc for one in scores]),
        f1=average_known([one.f1 for one in scores]),
    )


def average_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None, None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _average_auc(outputs: Float32Array, classes: IntArray, loss: Loss) -> float | None:
    """Return the AUC of the positive class, or the mean over classes of each against the rest."""
    logits = outputs.astype(np.float64)
    if loss == "binary":
        return compute_auc(logits[:, 0], classes == 1)
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
    return average_known(
        [compute_auc(shares[:, label], classes == label) for label in np.unique(classes)]
    )


def compute_auc(scores: FloatArray, positive: npt.NDArray[np.bool_]) -> float | None:
    """Return the probability that a positive example has a higher score than another one.

    This is the area under the ROC curve; a tie counts half.  None if all examples are positive,
    none is, or a score is not a number.

    Parameters
    ----------
    scores : (n,)
    positive : (n,) whether each example is positive
    """
    number, others = int(positive.sum()), int((~positive).sum())
    if number == 0 or others == 0 or np.isnan(scores).any():
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2.0
    above = ranks[place[positive]].sum() - number * (number + 1) / 2.0
    return float(above / (number * others))
