"""Accuracies of many weights on one validation set.

On a GPU the validation set stays on the device; on a CPU the training kernel predicts, so that the
figures are those of a training run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.local_training import Examples, LocalKernel
from covertfl.tasks.task import TrainingTask, score_accuracy
from covertfl.weights import Layout, Vector

if TYPE_CHECKING:
    import torch


class Scorer:
    """Rates weights on all of a validation set, or on every so-manieth example of it.

    Parameters
    ----------
    task : model, loss and validation set
    kernel : of the model
    stride : of the coarse rating; 1 where all examples are always used
    """

    def __init__(self, task: TrainingTask, kernel: LocalKernel, *, stride: int = 1) -> None:
        self._task, self._kernel, self._stride = task, kernel, stride
        self._full = task.validation
        self._coarse = take_part(task.validation, stride)

    @property
    def is_exact(self) -> bool:
        """Whether the coarse rating uses all examples."""
        return self._stride == 1

    def rate(self, weights: Vector) -> float:
        """Accuracy on the whole validation set."""
        return self._rate(weights, self._full)

    def rate_coarsely(self, weights: Vector) -> float:
        """Accuracy on a part of it."""
        return self._rate(weights, self._coarse)

    def _rate(self, weights: Vector, examples: Examples) -> float:
        outputs = self._kernel.predict(weights, examples.features)
        return score_accuracy(outputs, examples.labels, self._task.loss)


class DeviceScorer(Scorer):
    """The same with the validation set kept on a device."""

    def __init__(
        self, task: TrainingTask, kernel: LocalKernel, *, stride: int = 1, device: str = "cuda"
    ) -> None:
        import torch

        super().__init__(task, kernel, stride=stride)
        with torch.random.fork_rng(devices=[]):
            self._module = task.make_model().to(device).eval()
        self._layout: Layout = kernel.layout
        self._device = device
        self._held: dict[int, tuple[Any, Any]] = {}

    def _rate(self, weights: Vector, examples: Examples) -> float:
        import torch

        features, labels = self._hold(examples)
        flat = torch.from_numpy(weights.copy()).to(self._device)
        parts, start = {}, 0
        for name, shape in zip(self._layout.names, self._layout.shapes, strict=True):
            stop = start + int(np.prod(shape))
            parts[name] = flat[start:stop].reshape(shape)
            start = stop
        with torch.no_grad():
            outputs = torch.func.functional_call(self._module, parts, (features,))
            binary = self._task.loss == "binary"
            named = outputs[:, 0] > 0.0 if binary else outputs.argmax(dim=1)
            return float((named == labels).double().mean())

    def _hold(self, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        if id(examples) not in self._held:
            self._held[id(examples)] = (
                torch.tensor(examples.features, device=self._device),
                torch.tensor(examples.labels, device=self._device),
            )
        return self._held[id(examples)]


def take_part(examples: Examples, stride: int) -> Examples:
    """Every so-manieth example."""
    if stride == 1:
        return examples
    return Examples(
        np.ascontiguousarray(examples.features[::stride]),
        examples.labels[::stride].copy(),
    )


def make_scorer(
    task: TrainingTask, kernel: LocalKernel, *, stride: int = 1, device: str = "cpu"
) -> Scorer:
    """The scorer for a device."""
    if device == "cpu":
        return Scorer(task, kernel, stride=stride)
    return DeviceScorer(task, kernel, stride=stride, device=device)
