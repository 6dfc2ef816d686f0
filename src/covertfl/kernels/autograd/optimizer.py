"""Steps of a client's optimiser, with the formulas of torch.optim."""

from __future__ import annotations

import torch

from covertfl.kernels.job import LocalOptimizer


class Updater:
    """An optimiser (SGD, Adam or AdamW) of one tensor; its state starts at zero.

    Parameters
    ----------
    optimizer : its options
    weights : (P,) or a stack (J, ...)
    """

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
            self._step_sgd(weights, gradient)
            return
        beta1, beta2 = options.betas
        first, second = self.first[:count], self.second[:count]
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        scale = (1.0 - beta2**self.steps) ** 0.5
        divisor = (second.sqrt() / scale).add_(options.eps)
        weights.addcdiv_(first, divisor, value=-options.lr / (1.0 - beta1**self.steps))

    def _step_sgd(self, weights: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.optimizer.momentum:
            first = self.first[: len(gradient)]
            gradient = first.mul_(self.optimizer.momentum).add_(gradient)
        weights.add_(gradient, alpha=-self.optimizer.lr)
