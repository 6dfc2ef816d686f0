"""Local jobs for any torch module, by autograd.

On a CPU each job is carried out by itself with one thread, several jobs at a time, so that its bits
depend neither on the other jobs nor on the number of cores.  On a GPU jobs are carried out as one
batch: a stack of weights, and the gradients of all of them at once.

Dropout uses the masks of `mlp_kernel.dropout_mask`; the layer number of a mask counts the calls of
dropout modules in a forward pass.  A module with other random parts gets torch's generator seeded
from the job, and its jobs are carried out one after the other.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import signature
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss, check_job_form
from covertfl.kernels.mlp import (
    LAYER_STRIDE,
    count_cores,
    derive_dropout_key,
    find_dropout_threshold,
)
from covertfl.kernels.weights import Layout, Vector

ModelFactory = Callable[[], nn.Module]

_WORD = 0xFFFFFFFF
# Rows of a forward pass: on a CPU no more than its caches hold of a small network's layers.
_PREDICT_ROWS = {"cpu": 256, "cuda": 2048}
# Jobs that are stacked at most, which bounds the memory a batch takes.
_STACKED_JOBS = 256


def describe_layout(module: nn.Module) -> Layout:
    """Names and shapes of a module's parameters.

    Raises
    ------
    InvalidInput
        where the module has buffers, frozen parameters or parameters that are not 32-bit floats
    """
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise InvalidInput(
            f"a model must have parameters only, because only they travel; "
            f"got the buffer {buffers[0]} (use GroupNorm instead of BatchNorm)"
        )
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InvalidInput("a model must have parameters, got none")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise InvalidInput(
                f"parameters must be trainable 32-bit floats, got {name} of {parameter.dtype}"
                f"{'' if parameter.requires_grad else ', frozen'}"
            )
    shapes = tuple(tuple(parameter.shape) for parameter in parameters.values())
    return Layout(names=tuple(parameters), shapes=shapes)


def check_weights(weights: Vector, layout: Layout) -> None:
    """Refuse weights that are not the model's."""
    if weights.shape != (layout.size,) or weights.dtype != np.float32:
        raise InvalidInput(
            f"weights must be a vector of {layout.size} 32-bit floats, "
            f"got shape {weights.shape} of {weights.dtype}"
        )


def check_job(job: LocalJob, layout: Layout, loss: Loss) -> None:
    """Refuse a job that does not fit the model."""
    check_weights(job.weights, layout)
    check_job_form(job)
    if len(job.rows) and not 0 <= job.rows.min() <= job.rows.max() < len(job.examples):
        raise InvalidInput(
            f"rows must lie between 0 and {len(job.examples) - 1}, "
            f"got {job.rows.min()} to {job.rows.max()}"
        )
    if job.examples.features.dtype != np.float32:
        raise InvalidInput(f"features must be 32-bit floats, got {job.examples.features.dtype}")
    wanted = np.float32 if loss == "binary" else np.int64
    if job.examples.labels.dtype != wanted:
        raise InvalidInput(
            f"labels of a {loss} loss must be {np.dtype(wanted)}, got {job.examples.labels.dtype}"
        )


class _DropoutKeys:
    """The key of the step under way, and how many dropouts it has been through."""

    low: torch.Tensor | int = 0
    high: torch.Tensor | int = 0
    calls: int = 0


def _mix_words(words: torch.Tensor) -> torch.Tensor:
    """As `mlp_kernel._mix_words`, on 32-bit words held in 64-bit integers."""
    words = ((words ^ (words >> 16)) * 0x7FEB352D) & _WORD
    words = ((words ^ (words >> 15)) * 0x846CA68B) & _WORD
    return words ^ (words >> 16)


class _HashedDropout(nn.Module):
    """Dropout with masks hashed from the job's seed."""

    def __init__(self, rate: float, keys: _DropoutKeys) -> None:
        super().__init__()
        self.rate, self.keys = rate, keys
        self.threshold = find_dropout_threshold(rate)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop elements in training, pass them on otherwise."""
        if not self.training:
            return values
        layer, self.keys.calls = self.keys.calls, self.keys.calls + 1
        if self.rate in (0.0, 1.0):
            return values * (1.0 - self.rate)
        elements = torch.arange(values.numel(), device=values.device).reshape(values.shape)
        inner = _mix_words((elements + self.keys.low) & _WORD)
        hashed = _mix_words(inner ^ ((self.keys.high + layer * LAYER_STRIDE) & _WORD))
        return values * ((hashed >= self.threshold) * (1.0 / (1.0 - self.rate)))


def _replace_dropout(module: nn.Module, keys: _DropoutKeys) -> nn.Module:
    """The module with hashed masks in place of drawn ones."""
    if type(module) is nn.Dropout:
        return _HashedDropout(module.p, keys)
    for name, child in list(module.named_children()):
        setattr(module, name, _replace_dropout(child, keys))
    return module


def _measure_losses(outputs: torch.Tensor, labels: torch.Tensor, loss: Loss) -> torch.Tensor:
    """The loss of each example."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels, reduction="none")
    return functional.cross_entropy(outputs, labels, reduction="none")


class _Updater:
    """The steps of an optimiser on one tensor; its state begins at nought.

    The formulas are those of torch.optim's SGD, Adam and AdamW.
    """

    def __init__(self, optimizer: LocalOptimizer, weights: torch.Tensor) -> None:
        self.optimizer = optimizer
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights) if optimizer.name != "sgd" else weights[:0]
        self.steps = 0

    def step(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        """Change weights in place; of a stack, those of the first len(gradient) jobs."""
        options, count = self.optimizer, len(gradient)
        self.steps += 1
        if options.weight_decay and options.name == "adamw":
            weights.mul_(1.0 - options.lr * options.weight_decay)
        elif options.weight_decay:
            gradient = gradient + options.weight_decay * weights
        if options.name == "sgd":
            self._step_sgd(weights, gradient)
            return
        beta1, beta2 = options.betas
        first, second = self.first[:count], self.second[:count]
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        scale = (1.0 - beta2**self.steps) ** 0.5
        spread = (second.sqrt() / scale).add_(options.eps)
        weights.addcdiv_(first, spread, value=-options.lr / (1.0 - beta1**self.steps))

    def _step_sgd(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.optimizer.momentum:
            first = self.first[: len(gradient)]
            gradient = first.mul_(self.optimizer.momentum).add_(gradient)
        weights.add_(gradient, alpha=-self.optimizer.lr)


class _Replica:
    """A module on the CPU for one thread, its parameters and gradients stretches of two vectors."""

    def __init__(self, module: nn.Module, loss: Loss, optimizer: LocalOptimizer, size: int) -> None:
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.keys = _DropoutKeys()
        self.module = _replace_dropout(module, self.keys)
        self.weights, self.gradient = torch.zeros(size), torch.zeros(size)
        start = 0
        for parameter in self.module.parameters():
            stop = start + parameter.numel()
            parameter.data = self.weights[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop

    def carry_out(self, job: LocalJob) -> Vector:
        """Weights after a job, or its gradient."""
        self.module.train()
        self.weights.copy_(torch.from_numpy(job.weights.copy()))
        updater = _Updater(self.optimizer, self.weights)
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
        """Put the gradient of the mean loss of some rows into its vector."""
        self.keys.low, self.keys.high = derive_dropout_key(job.seed, step)
        self.keys.calls = 0
        labels = torch.from_numpy(job.examples.labels[rows])
        self.gradient.zero_()
        outputs = self.module(torch.from_numpy(job.examples.features[rows]))
        _check_outputs(outputs.shape, job.examples.labels[rows], self.loss)
        torch.autograd.backward(_measure_losses(outputs, labels, self.loss).mean())


def _check_outputs(shape: Sequence[int], labels: npt.NDArray[Any], loss: Loss) -> None:
    """Refuse labels, or a model, that do not fit the loss."""
    if len(shape) != 2 or (loss == "binary" and shape[1] != 1):
        raise InvalidInput(
            f"a model with a {loss} loss must have "
            f"{'one output' if loss == 'binary' else 'an output for each class'}, "
            f"got outputs of shape {tuple(shape[1:])}"
        )
    if loss == "multiclass" and not 0 <= labels.min() <= labels.max() < shape[1]:
        raise InvalidInput(
            f"labels must lie between 0 and {shape[1] - 1}, got {labels.min()} to {labels.max()}"
        )


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Let torch compute in the calling thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Let torch take only algorithms that give the same bits again."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    # Newer versions of torch have a second switch for shortened products.
    flags = torch.backends.cudnn.flags
    precise = {"fp32_precision": "ieee"} if "fp32_precision" in signature(flags).parameters else {}
    try:
        with flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False, **precise):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


class TorchKernel:
    """Carries out local jobs with autograd.

    Parameters
    ----------
    model_factory : makes the module; its parameters' values do not matter
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    optimizer : of the jobs
    device : cpu or cuda
    batched : whether jobs are stacked; by default on cuda only
    threads : jobs at a time on a CPU; as many as there are cores if None
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
        with torch.random.fork_rng(devices=[]):
            module = model_factory()
        self.layout = describe_layout(module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self.batched = self.device.type != "cpu" if batched is None else batched
        self.threads = count_cores() if threads is None else threads
        self._lock = Lock()
        self._data: weakref.WeakKeyDictionary[Examples, tuple[torch.Tensor, torch.Tensor]]
        self._data = weakref.WeakKeyDictionary()
        self._keys = _DropoutKeys()
        self._module = _replace_dropout(copy.deepcopy(module), self._keys).to(self.device)
        self._plain_module = module
        self._replicas: list[_Replica] = []
        if self.device.type == "cuda":
            # cuBLAS reads this when it starts; without it sums may change from run to run.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Weights after each job, or its gradient."""
        for job in jobs:
            check_job(job, self.layout, self.loss)
        with self._lock:
            return self._run_stacks(jobs) if self.batched else self._run_singly(jobs)

    def _run_singly(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """One by one until a job has left torch's generator alone, the others side by side."""
        results: list[Vector] = []
        with torch.random.fork_rng(devices=[]), _single_threaded():
            replica = self._take_replica(0)
            for job in jobs:
                torch.default_generator.manual_seed(int(job.seed))
                before = torch.get_rng_state()
                results.append(replica.carry_out(job))
                if len(job.rows) and torch.equal(before, torch.get_rng_state()):
                    break
        return results + self._run_side_by_side(jobs[len(results) :])

    def _take_replica(self, number: int) -> _Replica:
        while len(self._replicas) <= number:
            module = copy.deepcopy(self._plain_module)
            replica = _Replica(module, self.loss, self.optimizer, self.layout.size)
            self._replicas.append(replica)
        return self._replicas[number]

    def _run_side_by_side(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        results: list[Vector] = [job.weights for job in jobs]
        waiting = iter(range(len(jobs)))  # taken from under the interpreter's lock
        replicas = [self._take_replica(number) for number in range(min(self.threads, len(jobs)))]

        def work(replica: _Replica) -> None:
            with _single_threaded():
                for number in waiting:
                    results[number] = replica.carry_out(jobs[number])

        if len(replicas) == 1:
            work(replicas[0])
        elif replicas:
            with ThreadPoolExecutor(len(replicas)) as pool:
                list(pool.map(work, replicas))
        return results

    def _run_stacks(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Jobs of one kind and batch size as stacks, the longest first."""
        results: list[Vector] = [job.weights for job in jobs]
        kinds: dict[tuple[str, int], list[int]] = {}
        for number, job in enumerate(jobs):
            kinds.setdefault((job.work, job.batch_size), []).append(number)
        for members in kinds.values():
            members.sort(key=lambda number: -len(jobs[number].rows))
            for start in range(0, len(members), _STACKED_JOBS):
                numbers = members[start : start + _STACKED_JOBS]
                stack = self._run_stack([jobs[number] for number in numbers])
                for number, result in zip(numbers, stack, strict=True):
                    results[number] = result
        return results

    def _run_stack(self, jobs: Sequence[LocalJob]) -> npt.NDArray[np.float32]:
        """(J, P) results of jobs of one kind and batch size, in falling order of length."""
        lengths = np.array([len(job.rows) for job in jobs])
        stacked = self._stack_weights(jobs)
        weights = self._split(stacked)
        updaters = {name: _Updater(self.optimizer, part) for name, part in weights.items()}
        totals = {name: torch.zeros_like(part) for name, part in weights.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _deterministic():
            torch.manual_seed(int(jobs[0].seed))
            for step, start in enumerate(range(0, int(lengths.max()), jobs[0].batch_size)):
                active = int(np.sum(lengths > start))
                held = {name: part[:active] for name, part in weights.items()}
                gradients = self._find_gradients(jobs[:active], held, step)
                for name, gradient in gradients.items():
                    if jobs[0].work == "train":
                        updaters[name].step(held[name], gradient)
                        continue
                    sizes = np.minimum(lengths[:active] - start, jobs[0].batch_size)
                    shares = torch.from_numpy((sizes / lengths[:active]).astype(np.float32))
                    shape = (active, *[1] * (gradient.ndim - 1))
                    totals[name][:active] += gradient * shares.to(self.device).view(shape)
        parts = weights if jobs[0].work == "train" else totals
        joined = torch.cat([part.reshape(len(jobs), -1) for part in parts.values()], dim=1)
        return joined.cpu().numpy()

    def _stack_weights(self, jobs: Sequence[LocalJob]) -> torch.Tensor:
        """(J, P) weights; those that jobs share are moved to the device once."""
        numbers: dict[int, int] = {}
        order = [numbers.setdefault(id(job.weights), len(numbers)) for job in jobs]
        distinct = {id(job.weights): job.weights for job in jobs}
        moved = torch.from_numpy(np.stack(list(distinct.values()))).to(self.device)
        return moved[torch.tensor(order, device=self.device)]

    def _split(self, stacked: torch.Tensor) -> dict[str, torch.Tensor]:
        """Parameters by name, each with a leading axis of jobs."""
        parts, start = {}, 0
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            stop = start + int(np.prod(shape))
            parts[name] = stacked[:, start:stop].reshape(len(stacked), *shape)
            start = stop
        return parts

    def _find_gradients(
        self, jobs: Sequence[LocalJob], weights: dict[str, torch.Tensor], step: int
    ) -> dict[str, torch.Tensor]:
        """The gradients of the mean loss of each job's batch, by parameter."""
        if len(jobs) == 1 and self.device.type == "cuda":
            # The repeatable convolutions of cuDNN are good to 1e-4 only where nothing is stacked.
            doubled = {name: torch.cat([part, part]) for name, part in weights.items()}
            pair = self._find_gradients([jobs[0], jobs[0]], doubled, step)
            return {name: part[:1] for name, part in pair.items()}
        features, labels, is_real = self._gather(jobs, step)
        start, size = step * jobs[0].batch_size, jobs[0].batch_size
        held = [job.examples.labels[job.rows[start : start + size]] for job in jobs]
        held_labels = np.concatenate(held)
        keys = torch.tensor(
            [derive_dropout_key(job.seed, step) for job in jobs], device=self.device
        )

        def measure(
            parts: dict[str, torch.Tensor],
            inputs: torch.Tensor,
            targets: torch.Tensor,
            real: torch.Tensor,
            key: torch.Tensor,
        ) -> torch.Tensor:
            self._keys.low, self._keys.high, self._keys.calls = key[0], key[1], 0
            outputs = torch.func.functional_call(self._module, parts, (inputs,))
            _check_outputs(outputs.shape, held_labels, self.loss)
            losses = _measure_losses(outputs, targets, self.loss)
            return (losses * real).sum() / real.sum()

        self._module.train()
        differentiate = torch.func.vmap(torch.func.grad(measure), randomness="different")
        found: dict[str, torch.Tensor] = differentiate(weights, features, labels, is_real, keys)
        return found

    def _gather(
        self, jobs: Sequence[LocalJob], step: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(J, B, ...) features, (J, B) labels and (J, B) 1 where a row is real, 0 where it pads.

        Rows that pad are nought, so that nothing that is not finite comes from them.
        """
        size = jobs[0].batch_size
        rows = np.full((len(jobs), size), -1, dtype=np.int64)
        members: dict[Examples, list[int]] = {}
        for number, job in enumerate(jobs):
            batch = job.rows[step * size : (step + 1) * size]
            rows[number, : len(batch)] = batch
            members.setdefault(job.examples, []).append(number)
        picked = [self._pick(examples, rows[numbers]) for examples, numbers in members.items()]
        order = torch.from_numpy(np.argsort(np.concatenate(list(members.values()))))
        order = order.to(self.device)
        features = torch.cat([part for part, _ in picked])[order]
        labels = torch.cat([part for _, part in picked])[order]
        return features, labels, torch.from_numpy((rows >= 0).astype(np.float32)).to(self.device)

    def _pick(
        self, examples: Examples, rows: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and labels of some rows; nought for row -1."""
        if examples not in self._data:
            self._data[examples] = (
                torch.tensor(examples.features, device=self.device),
                torch.tensor(examples.labels, device=self.device),
            )
        features, labels = self._data[examples]
        index = torch.from_numpy(rows).to(self.device)
        is_real = (index >= 0).view(*index.shape, *[1] * (features.ndim - 1))
        index = index.clamp(min=0)
        zero = torch.zeros((), device=self.device)
        return torch.where(is_real, features[index], zero), labels[index]

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(n, outputs) raw outputs (logits), without dropout."""
        check_weights(weights, self.layout)
        with self._lock, _deterministic(), torch.no_grad():
            self._module.eval()
            stacked = torch.from_numpy(weights[np.newaxis].copy()).to(self.device)
            parts = {name: part[0] for name, part in self._split(stacked).items()}
            most = _PREDICT_ROWS[self.device.type]
            outputs = [
                torch.func.functional_call(
                    self._module,
                    parts,
                    (torch.tensor(features[start : start + most], device=self.device),),
                )
                for start in range(0, max(len(features), 1), most)
            ]
            return np.array(torch.cat(outputs).cpu().numpy())
