"""Local jobs for any torch module, by autograd.

Jobs are carried out one by one or, on a GPU, as one batch.  Dropout uses the masks of
`mlp_kernel.dropout_mask`: the layer number of a mask counts the calls of dropout modules in a
forward pass.  Other random parts of a module draw from torch's generator, which is seeded from the
job and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from covertfl.errors import InvalidInput
from covertfl.local_training import LocalJob, LocalOptimizer, Loss
from covertfl.mlp_kernel import LAYER_STRIDE, derive_dropout_key, find_dropout_threshold
from covertfl.weights import Layout, Vector

ModelFactory = Callable[[], nn.Module]

_WORD = 0xFFFFFFFF
_PREDICT_ROWS = 2048


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


def check_job(job: LocalJob, layout: Layout, loss: Loss) -> None:
    """Refuse a job that does not fit the model."""
    if job.weights.shape != (layout.size,) or job.weights.dtype != np.float32:
        raise InvalidInput(
            f"weights of a job must be a vector of {layout.size} 32-bit floats, "
            f"got shape {job.weights.shape} of {job.weights.dtype}"
        )
    if job.work not in ("train", "gradient"):
        raise InvalidInput(f"work must be train or gradient, got {job.work!r}")
    if job.batch_size < 1:
        raise InvalidInput(f"batch_size must be at least 1, got {job.batch_size}")
    if job.rows.ndim != 1 or not np.issubdtype(job.rows.dtype, np.integer):
        raise InvalidInput(f"rows must be a vector of integers, got shape {job.rows.shape}")
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
        if outputs.ndim != 2 or outputs.shape[1] != 1:
            raise InvalidInput(
                f"a model with a binary loss must have one output, "
                f"got outputs of shape {tuple(outputs.shape[1:])}"
            )
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels, reduction="none")
    return functional.cross_entropy(outputs, labels, reduction="none")


class _Updater:
    """The steps of an optimiser on flat weights; its state begins at nought.

    The formulas are those of torch.optim's SGD, Adam and AdamW.
    """

    def __init__(self, optimizer: LocalOptimizer, weights: torch.Tensor) -> None:
        self.optimizer = optimizer
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights) if optimizer.name != "sgd" else weights[:0]
        self.steps = 0

    def step(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        """Change the first len(gradient) weights in place."""
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


class TorchKernel:
    """Carries out local jobs with autograd.

    Parameters
    ----------
    model_factory : makes the module; its parameters' values do not matter
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    optimizer : of the jobs
    device : cpu or cuda
    """

    def __init__(
        self,
        model_factory: ModelFactory,
        loss: Loss,
        optimizer: LocalOptimizer,
        device: str = "cpu",
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            module = model_factory()
        self.layout = describe_layout(module)
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device)
        self._keys = _DropoutKeys()
        self._module = _replace_dropout(module, self._keys).to(self.device)
        self._weights = torch.zeros(self.layout.size, device=self.device)
        self._gradient = torch.zeros(self.layout.size, device=self.device)
        self._tie_parameters()
        self._lock = Lock()

    def _tie_parameters(self) -> None:
        """Let the module's parameters and gradients be stretches of two vectors."""
        start = 0
        for parameter in self._module.parameters():
            stop = start + parameter.numel()
            parameter.data = self._weights[start:stop].view(parameter.shape)
            parameter.grad = self._gradient[start:stop].view(parameter.shape)
            start = stop

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Weights after each job, or its gradient."""
        for job in jobs:
            check_job(job, self.layout, self.loss)
        with self._lock:
            return [self._carry_out(job) for job in jobs]

    def _carry_out(self, job: LocalJob) -> Vector:
        self._module.train()
        self._weights.copy_(torch.from_numpy(job.weights.copy()))
        updater = _Updater(self.optimizer, self._weights)
        total = torch.zeros_like(self._weights)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(job.seed)
            for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
                rows = job.rows[start : start + job.batch_size]
                self._find_gradient(job, rows, step)
                if job.work == "train":
                    updater.step(self._weights, self._gradient)
                else:
                    total.add_(self._gradient, alpha=len(rows) / len(job.rows))
        result = self._weights if job.work == "train" else total
        return np.array(result.cpu().numpy())

    def _find_gradient(self, job: LocalJob, rows: npt.NDArray[np.int64], step: int) -> None:
        """Put the gradient of the mean loss of some rows into its vector."""
        self._keys.low, self._keys.high = derive_dropout_key(job.seed, step)
        self._keys.calls = 0
        features = torch.from_numpy(job.examples.features[rows]).to(self.device)
        labels = torch.from_numpy(job.examples.labels[rows]).to(self.device)
        self._gradient.zero_()
        outputs = self._module(features)
        if self.loss == "multiclass":
            _check_classes(labels, outputs.shape[1])
        torch.autograd.backward(_measure_losses(outputs, labels, self.loss).mean())

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(n, outputs) raw outputs (logits), without dropout."""
        if weights.shape != (self.layout.size,):
            raise InvalidInput(
                f"weights must be a vector of {self.layout.size} numbers, got shape {weights.shape}"
            )
        with self._lock, torch.no_grad():
            self._module.eval()
            self._weights.copy_(torch.from_numpy(weights.astype(np.float32)))
            starts = range(0, max(len(features), 1), _PREDICT_ROWS)
            parts = [
                self._module(torch.tensor(features[start : start + _PREDICT_ROWS]).to(self.device))
                for start in starts
            ]
            return np.array(torch.cat(parts).cpu().numpy())


def _check_classes(labels: torch.Tensor, num_classes: int) -> None:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InvalidInput(
            f"labels must lie between 0 and {num_classes - 1}, "
            f"got {int(labels.min())} to {int(labels.max())}"
        )
