"""Accuracies of many weights on one validation set, predicted by the training kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from covertfl.kernels.chain import Moves, RatedChain, Stops
from covertfl.kernels.job import Examples, LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.tasks.scores import score_accuracy
from covertfl.tasks.task import TrainingTask

Jobs = Sequence[LocalJob]


@runtime_checkable
class BatchKernel(Protocol):
    """A kernel that works on many weights at once, as that of a GPU does."""

    def predict_many(
        self, weights: Sequence[Vector], features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the (K, n, outputs) outputs of K weights for the same features."""
        ...

    def average_jobs(self, groups: Sequence[Jobs]) -> list[Vector]:
        """Return the mean result of each group's jobs, weighted by their rows."""
        ...

    def rate_chains(
        self,
        chains: Sequence[Moves],
        stops: Sequence[Stops],
        *,
        coarse: Examples,
        full: Examples,
        on_examples: Callable[[int], None] | None = None,
    ) -> list[RatedChain]:
        """Carry out the moves of chains and rate weights; report examples that were trained on."""
        ...


class Scorer:
    """Rates weights on a whole validation set, or coarsely on every `stride`-th example of it.

    `full` and `coarse` are the examples of the two ratings.
    """

    def __init__(self, task: TrainingTask, kernel: LocalKernel, *, stride: int = 1) -> None:
        self._task, self._kernel = task, kernel
        self.full, self.coarse = task.validation, take_part(task.validation, stride)
        self.is_exact = stride == 1

    def rate(self, weights: Sequence[Vector], *, fully: bool) -> list[float]:
        """Return the accuracy of each weight vector on the whole validation set, or on a part."""
        examples = self.full if fully else self.coarse
        outputs: Iterable[npt.NDArray[np.float32]]
        if isinstance(self._kernel, BatchKernel):
            outputs = self._kernel.predict_many(weights, examples.features)
        else:
            outputs = (self._kernel.predict(each, examples.features) for each in weights)
        return [score_accuracy(each, examples.labels, self._task.loss) for each in outputs]


def take_part(examples: Examples, stride: int) -> Examples:
    """Return every `stride`-th example."""
    if stride == 1:
        return examples
    features = np.ascontiguousarray(examples.features[::stride])
    return Examples(features, examples.labels[::stride].copy())
