"""The passes that a stack of convolutional networks is taken through, and plain ones in torch.

Arrays are laid out as `cnn_blocks` says, with a leading axis of jobs (J) and one of examples (B).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.mlp import hash_dropout_mask


class Passes(Protocol):
    """Forward and backward passes of one block, for all jobs at once."""

    def convolve(self, block: Block, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Outputs (J, B, rows, columns, outputs) of a block before pooling and dropout."""
        ...

    def finish(self, block: Block, y: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Pooling, and dropout where there are keys."""
        ...

    def unfinish(
        self, block: Block, y: torch.Tensor, dz: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Slopes behind the convolution from those behind pooling and dropout."""
        ...

    def spread(
        self, block: Block, dy: torch.Tensor, weights: torch.Tensor, x: torch.Tensor | None
    ) -> torch.Tensor:
        """Slopes of a block's inputs; none where x, if given, is not positive."""
        ...

    def correlate(
        self, block: Block, x: torch.Tensor, dy: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Put the slopes of a block's weights and biases into the gradient."""
        ...


class PlainPasses:
    """The passes in plain torch, on a CPU."""

    def convolve(self, block: Block, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Outputs of a block."""
        y = _unfold(block, x) @ _view_weights(block, weights).transpose(1, 2)
        if block.biases_start is not None:
            stop = block.biases_start + block.outputs
            y += weights[:, None, block.biases_start : stop]
        if block.is_rectified:
            y.relu_()
        return y.view(*x.shape[:2], block.out_height, block.out_width, block.outputs)

    def finish(self, block: Block, y: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Pooling and dropout."""
        planes = y.permute(0, 1, 4, 2, 3)
        if block.pool > 1:
            planes = functional.max_pool2d(planes.flatten(0, 1), block.pool)
            planes = planes.view(*y.shape[:2], *planes.shape[1:])
        if block.rate is not None and keys is not None:
            planes = planes * _draw_masks(block, planes, keys)
        return planes.permute(0, 1, 3, 4, 2).contiguous()

    def unfinish(
        self, block: Block, y: torch.Tensor, dz: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Slopes behind the convolution."""
        with torch.enable_grad():
            held = y.detach().requires_grad_()
            finished = self.finish(block, held, keys)
        (dy,) = torch.autograd.grad(finished, held, dz.view(finished.shape))
        return dy * (y > 0.0) if block.is_rectified else dy

    def spread(
        self, block: Block, dy: torch.Tensor, weights: torch.Tensor, x: torch.Tensor | None
    ) -> torch.Tensor:
        """Slopes of a block's inputs."""
        jobs, examples = dy.shape[:2]
        windows = dy.reshape(jobs, -1, block.outputs) @ _view_weights(block, weights)
        kernel = (block.kernel_height, block.kernel_width)
        columns = windows.view(jobs * examples, -1, *kernel, block.channels)
        columns = columns.permute(0, 4, 2, 3, 1).flatten(1, 3)
        dx = functional.fold(columns, (block.height, block.width), kernel).permute(0, 2, 3, 1)
        dx = dx.reshape(jobs, examples, block.height, block.width, block.channels)
        return dx if x is None else dx * (x > 0.0)

    def correlate(
        self, block: Block, x: torch.Tensor, dy: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Put the slopes of weights and biases into the gradient."""
        flat = dy.reshape(len(dy), -1, block.outputs)
        _view_weights(block, gradient).copy_(flat.transpose(1, 2) @ _unfold(block, x))
        if block.biases_start is not None:
            stop = block.biases_start + block.outputs
            gradient[:, block.biases_start : stop] = flat.sum(dim=1)


def _view_weights(block: Block, weights: torch.Tensor) -> torch.Tensor:
    """(J, outputs, depth) weights of a block."""
    stop = block.weights_start + block.outputs * block.depth
    return weights[:, block.weights_start : stop].view(-1, block.outputs, block.depth)


def _unfold(block: Block, x: torch.Tensor) -> torch.Tensor:
    """(J, pixels, depth) what the windows of a convolution cover."""
    windows = x.unfold(2, block.kernel_height, 1).unfold(3, block.kernel_width, 1)
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, block.depth)


def _draw_masks(block: Block, planes: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    words = keys.numpy().view(np.uint32)
    masks = [
        hash_dropout_mask(low, high, block.dropout, tuple(planes.shape[1:]), block.rate or 0.0)
        for low, high in words.tolist()
    ]
    return torch.from_numpy(np.stack(masks))
