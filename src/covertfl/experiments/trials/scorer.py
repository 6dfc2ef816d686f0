"""Accuracies of many weights on one validation set, predicted by the training kernel."""

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
        """Return the (K, n, outputs) outputs of K weights for the same features."""
        ...


class Scorer:
    """Rates weights on a whole validation set, or on every `stride`-th example of it.

    Parameters
    ----------
    task : model, loss and validation set
    kernel : of the model
    stride : of the coarse rating; 1 to use all examples

    `full` and `coarse` are the examples of the two ratings.
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
        """Return the accuracy of each weight vector on the whole validation set, or on a part."""
        examples = self.full if fully else self.coarse
        outputs = self._predict(weights, examples)
        return [score_accuracy(each, examples.labels, self._task.loss) for each in outputs]

    def _predict(
        self, weights: Sequence[Vector], examples: Examples
    ) -> Iterable[npt.NDArray[np.float32]]:
        """Return the outputs of each weight vector, computed together if the kernel can."""
        if isinstance(self._kernel, PredictsMany):
            return self._kernel.predict_many(weights, examples.features)
        return (self._kernel.predict(each, examples.features) for each in weights)


def take_part(examples: Examples, stride: int) -> Examples:
    """Return every `stride`-th example."""
    if stride == 1:
        return examples
    return Examples(
        np.ascontiguousarray(examples.features[::stride]),
        examples.labels[::stride].copy(),
    )
