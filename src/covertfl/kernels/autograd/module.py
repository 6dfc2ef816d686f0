"""A torch module as the kernels use it: layout, losses, dropout with hashed masks, optimizer.

Modules draw their first weights and dropout from torch's global generator (`isolate_generator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from covertfl.errors import InvalidInput
from covertfl.kernels.dropout import LAYER_STRIDE, WORD, find_dropout_threshold
from covertfl.kernels.job import Layout, LocalOptimizer, Loss

_LOCK = RLock()


@contextmanager
def isolate_generator(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Let a block seed and use torch's generator, which is left unchanged.

    There is one generator for all threads, so that only one thread at a time is in such a block.

    Parameters
    ----------
    devices : GPUs whose generators the block uses, too
    """
    with _LOCK, torch.random.fork_rng(devices=list(devices)):
        yield


ModelFactory = Callable[[], nn.Module]


def describe_layout(module: nn.Module) -> Layout:
    """Return the names and shapes of a module's parameters and measured buffers.

    Raises
    ------
    InvalidInput
        if the module has frozen parameters, or parameters or measured buffers that are not 32-bit
        floats
    """
    parameters = dict(module.named_parameters())
    if not parameters:
        raise InvalidInput("a model must have parameters, got none")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise InvalidInput(
                f"parameters must be trainable 32-bit floats, got {name} of {parameter.dtype}"
                f"{'' if parameter.requires_grad else ', frozen'}"
            )
    measured = find_measured(module)
    arrays = {**parameters, **measured}
    shapes = tuple(tuple(array.shape) for array in arrays.values())
    return Layout(names=tuple(arrays), shapes=shapes, measured=len(measured))


def find_measured(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that training may move, by name: those of finite floats in `state_dict`.

    Constants among them are measured as what they are.  Counters, masks and what `state_dict` does
    not hold (`persistent=False`) are no part of a model's weights.

    Raises
    ------
    InvalidInput
        if one of them is not of 32-bit floats
    """
    stored = module.state_dict()
    found = {
        name: buffer
        for name, buffer in module.named_buffers()
        if name in stored and buffer.is_floating_point() and bool(buffer.isfinite().all())
    }
    for name, buffer in found.items():
        if buffer.dtype != torch.float32:
            raise InvalidInput(f"buffers must be 32-bit floats, got {name} of {buffer.dtype}")
    return found


def list_values(module: nn.Module) -> list[torch.Tensor]:
    """Return a module's parameters and measured buffers, in the order of its layout."""
    return [*module.parameters(), *find_measured(module).values()]


def measure_losses(outputs: torch.Tensor, labels: torch.Tensor, loss: Loss) -> torch.Tensor:
    """Return the loss of each example."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels, reduction="none")
    return functional.cross_entropy(outputs, labels, reduction="none")


def check_outputs(shape: Sequence[int], labels: npt.NDArray[Any], loss: Loss) -> None:
    """Raise InvalidInput if outputs or labels do not fit the loss."""
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


class DropoutKeys:
    """The dropout key of the current step, and the number of dropouts called in it."""

    low: torch.Tensor | int = 0
    high: torch.Tensor | int = 0
    calls: int = 0


class _HashedDropout(nn.Module):
    """Dropout with masks hashed from the job's seed."""

    def __init__(self, rate: float, keys: DropoutKeys) -> None:
        super().__init__()
        self.rate, self.keys = rate, keys
        self.threshold = find_dropout_threshold(rate)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop elements in training; return them unchanged otherwise."""
        if not self.training:
            return values
        layer, self.keys.calls = self.keys.calls, self.keys.calls + 1
        if self.rate in (0.0, 1.0):
            return values * (1.0 - self.rate)
        elements = torch.arange(values.numel(), device=values.device).reshape(values.shape)
        inner = _mix_words((elements + self.keys.low) & WORD)
        hashed = _mix_words(inner ^ ((self.keys.high + layer * LAYER_STRIDE) & WORD))
        return values * ((hashed >= self.threshold) * (1.0 / (1.0 - self.rate)))


def replace_dropout(module: nn.Module, keys: DropoutKeys) -> nn.Module:
    """Return the module with hashed dropout masks in place of random ones."""
    if type(module) is nn.Dropout:
        return _HashedDropout(module.p, keys)
    for name, child in list(module.named_children()):
        setattr(module, name, replace_dropout(child, keys))
    return module


def _mix_words(words: torch.Tensor) -> torch.Tensor:
    """Return the hash of `dropout` for 32-bit words held in 64-bit integers."""
    words = ((words ^ (words >> 16)) * 0x7FEB352D) & WORD
    words = ((words ^ (words >> 15)) * 0x846CA68B) & WORD
    return words ^ (words >> 16)


class Updater:
    """An optimizer of one tensor, (P,) or a stack (J, ...), with the formulas of torch.optim."""

    def __init__(self, optimizer: LocalOptimizer, weights: torch.Tensor) -> None:
        self.optimizer = optimizer
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights) if optimizer.name != "sgd" else weights[:0]
        self.steps = 0

    def step(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update weights in place; in a stack, those of the first len(gradient) jobs."""
        options, count = self.optimizer, len(gradient)
        self.steps += 1
        if options.weight_decay and options.name == "adamw":
            weights.mul_(1.0 - options.lr * options.weight_decay)
        elif options.weight_decay:
            gradient = gradient + options.weight_decay * weights
        if options.name == "sgd":
            if options.momentum:
                gradient = self.first[:count].mul_(options.momentum).add_(gradient)
            weights.add_(gradient, alpha=-options.lr)
            return
        beta1, beta2 = options.betas
        first, second = self.first[:count], self.second[:count]
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        scale = (1.0 - beta2**self.steps) ** 0.5
        divisor = (second.sqrt() / scale).add_(options.eps)
        weights.addcdiv_(first, divisor, value=-options.lr / (1.0 - beta1**self.steps))
