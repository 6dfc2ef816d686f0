"""Local jobs of any torch module, by automatic differentiation.

On a CPU each job runs by itself in one thread, several jobs at a time, so that its result depends
neither on the other jobs nor on the number of cores.  On a GPU jobs run as one batch: a stack of
weights, and the gradients of all of them at once.

Buffers that a module measures while it trains, such as BatchNorm's running statistics, are part of
its weights.  A batch of one example is normalised with the running statistics, because it has no
deviation of its own.

Dropout uses `dropout.hash_dropout_mask`; the layer number of a mask counts the calls of
dropout modules in a forward pass.  For a module with other random parts, torch's generator is
seeded from the job, and its jobs run one after the other, on either device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import nn

from covertfl.arrays import IntArray
from covertfl.kernels.autograd.module import (
    DropoutKeys,
    ModelFactory,
    Updater,
    check_outputs,
    describe_layout,
    isolate_generator,
    measure_losses,
    replace_dropout,
)
from covertfl.kernels.autograd.stack import JobStacks
from covertfl.kernels.autograd.traits import read_generator, set_buffer, set_training
from covertfl.kernels.dropout import derive_dropout_key
from covertfl.kernels.job import (
    Float32Array,
    Layout,
    LocalJob,
    LocalOptimizer,
    Loss,
    Vector,
    check_job,
    check_weights,
    count_cores,
)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Restrict torch to the calling thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _ModuleCopy:
    """A module that runs one job at a time, on a CPU in one thread.

    Its parameters and gradients are views of two vectors of the layout's size.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: LocalOptimizer,
        layout: Layout,
        device: torch.device,
    ) -> None:
        self.loss: Loss = loss
        self.optimizer, self.device = optimizer, device
        self.keys = DropoutKeys()
        self.module = replace_dropout(module, self.keys).to(device)
        self.weights = torch.zeros(layout.size, device=device)
        self.gradient = torch.zeros(layout.size, device=device)
        self.num_trained, start = layout.num_trained, 0
        for parameter in self.module.parameters():
            stop = start + parameter.numel()
            parameter.data = self.weights[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop
        measured = layout.names[len(layout.trained_names) :]
        self.measured = {name: layout.locate(name) for name in measured}
        # Counters start in every job where they started in the first.
        self.others = {
            name: buffer.clone()
            for name, buffer in self.module.named_buffers()
            if name not in self.measured
        }

    def run(self, job: LocalJob) -> Vector:
        """Return the weights after a job, or its gradient."""
        self.weights.copy_(torch.from_numpy(job.weights.copy()))
        self._set_buffers()
        trained, gradient = self.weights[: self.num_trained], self.gradient[: self.num_trained]
        updater = Updater(self.optimizer, trained)
        total = torch.zeros_like(self.weights)
        for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
            rows = job.rows[start : start + job.batch_size]
            self._find_gradient(job, rows, step)
            if job.work == "train":
                updater.step(trained, gradient)
            else:
                total.add_(self.gradient, alpha=len(rows) / len(job.rows))
        for name, place in self.measured.items():
            self.weights[place] = self.module.get_buffer(name).reshape(-1)
        return np.array((self.weights if job.work == "train" else total).cpu().numpy())

    def _set_buffers(self) -> None:
        """Set all buffers to where a job starts."""
        for name, place in self.measured.items():
            buffer = self.module.get_buffer(name)
            set_buffer(self.module, name, self.weights[place].reshape(buffer.shape).clone())
        for name, first in self.others.items():
            set_buffer(self.module, name, first.clone())

    def _find_gradient(self, job: LocalJob, rows: IntArray, step: int) -> None:
        """Store the gradient of the mean loss of some rows in its vector."""
        self.keys.low, self.keys.high = derive_dropout_key(job.seed, step)
        self.keys.calls = 0
        labels = torch.from_numpy(job.examples.labels[rows]).to(self.device)
        set_training(self.module, len(rows))
        self.gradient.zero_()
        outputs = self.module(torch.from_numpy(job.examples.features[rows]).to(self.device))
        check_outputs(outputs.shape, job.examples.labels[rows], self.loss)
        torch.autograd.backward(measure_losses(outputs, labels, self.loss).mean())


class TorchKernel:
    """Kernel for local jobs of any torch module, on a CPU or a GPU.

    Parameters
    ----------
    model_factory : returns the module; its initial weights do not matter
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    batched : whether jobs are stacked where the module allows it (see `JobStacks.can_stack`); by
        default on cuda only
    threads : number of jobs at a time on a CPU; None for one per core
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: str = "cpu",
        *,
        batched: bool | None = None,
        threads: int | None = None,
    ) -> None:
        with isolate_generator():
            module = model_factory()
        self.layout = describe_layout(module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self.batched = self.device.type != "cpu" if batched is None else batched
        self.threads = count_cores() if threads is None else threads
        self._lock = Lock()
        self._plain_module = module
        self._copies: list[_ModuleCopy] = []
        self._stacks = JobStacks(copy.deepcopy(module), self.layout, loss, optimizer, self.device)

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient."""
        for job in jobs:
            check_job(job, self.layout, self.loss)
        with self._lock:
            is_stacked = self.batched and self._stacks.can_stack(jobs)
            return self._stacks.run(jobs) if is_stacked else self._run_jobs(jobs)

    def _run_jobs(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Run jobs one by one until one does not use torch's generator, the others in threads."""
        results: list[Vector] = []
        devices = [self.device] if self.device.type == "cuda" else []
        with isolate_generator(devices), _single_threaded():
            module = self._take_copy(0)
            for job in jobs:
                torch.default_generator.manual_seed(int(job.seed))
                if devices:
                    torch.cuda.manual_seed(int(job.seed))
                before = read_generator(self.device)
                results.append(module.run(job))
                if len(job.rows) and torch.equal(before, read_generator(self.device)):
                    break
        return results + self._run_in_threads(jobs[len(results) :])

    def _take_copy(self, number: int) -> _ModuleCopy:
        while len(self._copies) <= number:
            module = copy.deepcopy(self._plain_module)
            made = _ModuleCopy(module, self.loss, self.optimizer, self.layout, self.device)
            self._copies.append(made)
        return self._copies[number]

    def _run_in_threads(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        results: list[Vector] = [job.weights for job in jobs]
        waiting = iter(range(len(jobs)))  # shared by the threads, safe under the interpreter's lock
        copies = [self._take_copy(number) for number in range(min(self.threads, len(jobs)))]

        def work(own: _ModuleCopy) -> None:
            with _single_threaded():
                for number in waiting:
                    results[number] = own.run(jobs[number])

        if len(copies) == 1:
            work(copies[0])
        elif copies:
            with ThreadPoolExecutor(len(copies)) as pool:
                list(pool.map(work, copies))
        return results

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        check_weights(weights, self.layout)
        with self._lock:
            return self._stacks.predict(weights, features)
