"""Examples with a wrong label beside each right one, for clients whose data are of low quality.

The examples are held twice: row i with its own label, and row n + i with a wrong one.  A client
that trains on noisy data takes some of its rows from the second half, so that a job stays what it
is, a list of rows, and every kernel can run it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from covertfl.arrays import IntArray
from covertfl.kernels.job import Examples, Labels, Loss
from covertfl.tasks.task import TrainingTask

# Which wrong label an example has belongs to the data and not to a run, so its seed is fixed.
SEED = 0x6C6162656C


def add_wrong_labels(task: TrainingTask) -> TrainingTask:
    """Return the task with its training examples held twice, the second time with wrong labels.

    The rows of clients stay those of the first half, which has the right labels.
    """
    return replace(task, train=_double(task.train, task.loss))


@lru_cache(maxsize=4)
def _double(examples: Examples, loss: Loss) -> Examples:
    """Return the examples twice, once for all runs that share them."""
    features = np.concatenate([examples.features, examples.features])
    labels: Labels = np.concatenate([examples.labels, draw_wrong_labels(examples.labels, loss)])
    return Examples(features, labels)


def draw_wrong_labels(labels: Labels, loss: Loss) -> Labels:
    """Return the other label of two, or another class drawn uniformly, for each of (n,) labels."""
    if loss == "binary":
        flipped: Labels = (1.0 - labels).astype(np.float32)
        return flipped
    classes = int(labels.max(initial=1)) + 1
    shift = np.random.default_rng(SEED).integers(1, classes, size=len(labels))
    shifted: Labels = (labels.astype(np.int64) + shift) % classes
    return shifted


def spoil_rows(
    rows: IntArray, wrong: int, task: TrainingTask, *, generator: np.random.Generator
) -> IntArray:
    """Return a client's rows with `wrong` of them, drawn at random, taken from the second half.

    The task is one of `add_wrong_labels`.
    """
    if wrong == 0:
        return rows
    spoilt = rows.copy()
    spoilt[generator.permutation(len(rows))[:wrong]] += len(task.train) // 2
    return spoilt
