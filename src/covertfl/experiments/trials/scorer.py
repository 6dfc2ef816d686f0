"""Accuracies of many weights on one validation set, as the training kernel predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from covertfl.kernels.job import Examples, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.tasks.task import TrainingTask, score_accuracy


@runtime_checkable
class PredictsMany(Protocol):
    """A kernel that predicts for many weights at once."""

    def predict_many(
        self, weights: Sequence[Vector], features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(K, n, outputs) outputs of K weights for the same features."""
        ...


class Scorer:
    """Rates weights on all of a validation set, or on every so-manieth example of it.

    Parameters
    ----------
    task : model, loss and validation set
    kernel : of the model
    stride : of the coarse rating; 1 where all examples are always used

    `full` and `coarse` are the examples of both ratings.
    """

    def __init__(self, task: TrainingTask, kernel: LocalKernel, *, stride: int = 1) -> None:
        self._task, self._kernel, self._stride = task, kernel, stride
        self.full = task.validation
        self.coarse = take_part(task.validation, stride)

    @property
    def is_exact(self) -> bool:
        """Whether the coarse rating uses all examples."""
        return self._stride == 1

    def rate(self, weights: Sequence[Vector], *, fully: bool) -> list[float]:
        """Accuracy of each weights on the whole validation set, or on a part of it."""
        examples = self.full if fully else self.coarse
        outputs = self._predict(weights, examples)
        return [score_accuracy(each, examples.labels, self._task.loss) for each in outputs]

    def _predict(
        self, weights: Sequence[Vector], examples: Examples
    ) -> Iterable[npt.NDArray[np.float32]]:
        """Outputs of each weights; together where the kernel can."""
        if isinstance(self._kernel, PredictsMany):
            return self._kernel.predict_many(weights, examples.features)
        return (self._kernel.predict(each, examples.features) for each in weights)


def take_part(examples: Examples, stride: int) -> Examples:
    """Every so-manieth example."""
    if stride == 1:
        return examples
    return Examples(
        np.ascontiguousarray(examples.features[::stride]),
        examples.labels[::stride].copy(),
    )
