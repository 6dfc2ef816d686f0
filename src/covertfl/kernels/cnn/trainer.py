"""Training and predicting with a stack of networks, all in the same step.

Each network has its own weights; forward pass, backward pass and optimizer process the whole stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from covertfl.kernels.cnn.blocks import Network
from covertfl.kernels.cnn.memory import DeviceExamples, DeviceMemory
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.cnn.steps import Step, Stretch, count_steps, list_steps, stack_stretches
from covertfl.kernels.job import LocalJob, LocalOptimizer, Loss

if TYPE_CHECKING:
    from covertfl.kernels.cnn.gpu import TritonPasses

# Number of images in a forward pass without training, which bounds its memory.
_PREDICT_ROWS = 512
# Number of steps in a piece of a gradient.
_PIECE_STEPS = 8


class StackTrainer:
    """Gradients, optimizer steps and predictions of stacked networks."""

    def __init__(
        self,
        passes: PlainPasses | TritonPasses,
        loss: Loss,
        optimizer: LocalOptimizer,
        memory: DeviceMemory,
    ) -> None:
        self._passes, self._loss, self._optimizer = passes, loss, optimizer
        self._memory, self._device = memory, memory.device

    def train(
        self,
        network: Network,
        data: DeviceExamples,
        jobs: Sequence[LocalJob],
        width: int,
        weights: torch.Tensor,
    ) -> None:
        """Train (J, padded) weights, each by its job.

        Jobs of about the same length share a stack, so that few of its networks stand still.
        """
        for stretches in stack_stretches([Stretch(job, count_steps(job)) for job in jobs], width):
            places = torch.tensor(list(stretches), device=self._device)
            held = weights[places]
            gradient, first, second = (torch.zeros_like(held) for _ in range(3))
            for step in self._list_steps(list(stretches.values()), data, width):
                active = len(step.rows)
                self._find_gradients(network, data, step, held[:active], gradient[:active])
                moved = held[:active], gradient[:active], first[:active], second[:active]
                self._update(*moved, step.scales)
            weights[places] = held

    def sum_gradients(
        self,
        network: Network,
        data: DeviceExamples,
        jobs: Sequence[LocalJob],
        width: int,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        """Return the gradients of the mean losses over all rows at (J, padded) weights.

        The batches of a gradient do not depend on each other: a job is cut into pieces of few
        steps, so that long jobs leave no stack half empty.  Its pieces are summed in order.
        """
        found = torch.zeros_like(weights)
        owners = [
            (number, first)
            for number, job in enumerate(jobs)
            for first in range(0, count_steps(job), _PIECE_STEPS)
        ]
        pieces = [
            Stretch(jobs[number], min(_PIECE_STEPS, count_steps(jobs[number]) - first), first)
            for number, first in owners
        ]
        for stretches in stack_stretches(pieces, width):
            numbers = [owners[piece][0] for piece in stretches]
            held = weights[torch.tensor(numbers, device=self._device)]
            gradient, total = torch.zeros_like(held), torch.zeros_like(held)
            for step in self._list_steps(list(stretches.values()), data, width):
                active = len(step.rows)
                self._find_gradients(network, data, step, held[:active], gradient[:active])
                total[:active] += gradient[:active]
            for number, sum_of_piece in zip(numbers, total, strict=True):
                found[number] += sum_of_piece
        return found

    def _list_steps(
        self, stretches: Sequence[Stretch], data: DeviceExamples, width: int
    ) -> Iterator[Step]:
        return list_steps(stretches, data, width, self._optimizer, self._memory.send)

    def predict(self, network: Network, stack: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Return the (K, n, outputs) outputs of stacked weights for the same images."""
        own = stack.to(self._passes.dtype)
        outputs = [stack.new_empty((len(stack), 0, network.blocks[-1].outputs))]
        for start in range(0, len(images), _PREDICT_ROWS):
            some = images[start : start + _PREDICT_ROWS].flatten(1).to(self._passes.dtype)
            shared = some.expand(len(stack), *some.shape)
            outputs.append(self._pass_forward(network, shared, own, None)[0])
        return torch.cat(outputs, dim=1)

    def _find_gradients(
        self,
        network: Network,
        data: DeviceExamples,
        step: Step,
        weights: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Store the gradients of the mean losses of one batch of each job in `gradient`."""
        rows, keys, dtype = step.rows, step.keys, self._passes.dtype
        own = weights.to(dtype)
        images = data.features.index_select(0, rows.flatten()).to(dtype).view(*rows.shape, -1)
        outputs, values = self._pass_forward(network, images, own, keys)
        labels = data.labels.index_select(0, rows.flatten()).view(rows.shape)
        shares = step.shares[:, :, None] * self._passes.scale
        delta = (self._differentiate_loss(outputs, labels) * shares).to(dtype)
        for number in reversed(range(len(network.blocks))):
            block, (x, y) = network.blocks[number], values[number]
            if block.is_pooled:
                delta = self._passes.unpool(block, y, delta, keys)
            self._passes.correlate(block, x, delta, gradient)
            if number:
                before = network.blocks[number - 1]
                mask = x if before.is_rectified and not before.is_pooled else None
                delta = self._passes.convolve_transposed(block, delta, own, mask)

    def _pass_forward(
        self,
        network: Network,
        images: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor | None,
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return (J, B, outputs) outputs, and each block's inputs and outputs before pooling."""
        values, x = [], images
        for block in network.blocks:
            x = x.view(*x.shape[:2], block.height, block.width, block.channels)
            is_last = block is network.blocks[-1]
            y = self._passes.convolve(block, x, weights, torch.float32 if is_last else x.dtype)
            if keys is not None:
                values.append((x, y))
            is_pooled = block.pool > 1 or (block.rate is not None and keys is not None)
            x = self._passes.pool(block, y, keys) if is_pooled else y
        return x.flatten(2), values

    def _differentiate_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the derivatives of each example's loss by its outputs."""
        if self._loss == "binary":
            return outputs.sigmoid() - labels[..., None]
        classes = torch.arange(outputs.shape[-1], device=self._device)
        return outputs.softmax(dim=-1) - (labels[..., None] == classes).float()

    def _update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        scales: torch.Tensor,
    ) -> None:
        """Take a step of the optimizer, with the formulas of torch.optim."""
        options = self._optimizer
        if self._device.type == "cuda" and options.name != "sgd":
            from covertfl.kernels.cnn.gpu import step_adam

            step_adam(options, weights, gradient, first, second, scales)
            return
        # What an earlier job has left in a slot, finite or not, does not enter the sums.
        is_first, rate, root = scales[:, :1] > 0.0, scales[:, 1:2], scales[:, 2:]
        if options.weight_decay and options.name == "adamw":
            weights.mul_(1.0 - options.lr * options.weight_decay)
        elif options.weight_decay:
            gradient.add_(weights, alpha=options.weight_decay)
        if options.name == "sgd":
            if options.momentum:
                first.mul_(options.momentum).masked_fill_(is_first, 0.0).add_(gradient)
                gradient = first
            weights.add_(gradient, alpha=-options.lr)
            return
        beta1, beta2 = options.betas
        first.masked_fill_(is_first, 0.0).lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).masked_fill_(is_first, 0.0)
        second.addcmul_(gradient, gradient, value=1.0 - beta2)
        weights.sub_(rate * first / (second.sqrt() / root + options.eps))
