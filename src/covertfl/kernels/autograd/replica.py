"""A copy of a module that runs one job at a time in one thread, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from covertfl.kernels.autograd.module import (
    DropoutKeys,
    check_outputs,
    measure_losses,
    replace_dropout,
)
from covertfl.kernels.autograd.optimizer import Updater
from covertfl.kernels.dropout import derive_dropout_key
from covertfl.kernels.job import LocalJob, LocalOptimizer, Loss
from covertfl.kernels.weights import Vector


@contextmanager
def single_threaded() -> Iterator[None]:
    """Restrict torch to the calling thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Replica:
    """A module for one thread, whose parameters and gradients are views of two vectors.

    Parameters
    ----------
    module : taken over, with its dropout replaced
    loss : of the jobs
    optimizer : of the jobs
    size : number of weights
    """

    def __init__(self, module: nn.Module, loss: Loss, optimizer: LocalOptimizer, size: int) -> None:
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.keys = DropoutKeys()
        self.module = replace_dropout(module, self.keys)
        self.weights, self.gradient = torch.zeros(size), torch.zeros(size)
        start = 0
        for parameter in self.module.parameters():
            stop = start + parameter.numel()
            parameter.data = self.weights[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop

    def run(self, job: LocalJob) -> Vector:
        """Return the weights after a job, or its gradient."""
        self.module.train()
        self.weights.copy_(torch.from_numpy(job.weights.copy()))
        updater = Updater(self.optimizer, self.weights)
        total = torch.zeros_like(self.weights)
        for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
            rows = job.rows[start : start + job.batch_size]
            self._find_gradient(job, rows, step)
            if job.work == "train":
                updater.step(self.weights, self.gradient)
            else:
                total.add_(self.gradient, alpha=len(rows) / len(job.rows))
        return np.array((self.weights if job.work == "train" else total).numpy())

    def _find_gradient(self, job: LocalJob, rows: npt.NDArray[np.int64], step: int) -> None:
        """Store the gradient of the mean loss of some rows in its vector."""
        self.keys.low, self.keys.high = derive_dropout_key(job.seed, step)
        self.keys.calls = 0
        labels = torch.from_numpy(job.examples.labels[rows])
        self.gradient.zero_()
        outputs = self.module(torch.from_numpy(job.examples.features[rows]))
        check_outputs(outputs.shape, job.examples.labels[rows], self.loss)
        torch.autograd.backward(measure_losses(outputs, labels, self.loss).mean())
