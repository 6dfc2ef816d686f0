"""The forward and backward passes of a block, for all jobs at once, in plain torch.

Arrays are laid out as `blocks` describes, with a leading axis of jobs (J) and one of examples (B).
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.dropout import hash_dropout_mask


class PlainPasses:
    """The passes in plain torch, for tests on a CPU.

    x are a block's inputs, y its outputs before pooling and dropout, z those after; dx, dy and dz
    are the gradients of the loss by them.
    """

    dtype = torch.float32  # of inputs, outputs and their gradients
    scale = 1.0  # by which gradients by inputs and outputs are multiplied

    def convolve(
        self, block: Block, x: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return y (J, B, rows, columns, outputs) as numbers of a type."""
        y = _unfold(block, x) @ _view_weights(block, weights).transpose(1, 2)
        if block.biases_start is not None:
            stop = block.biases_start + block.outputs
            y += weights[:, None, block.biases_start : stop]
        if block.is_rectified:
            y.relu_()
        shape = *x.shape[:2], block.out_height, block.out_width, block.outputs
        return y.view(shape).to(dtype)

    def pool(self, block: Block, y: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Return z: y after pooling and, if there are keys, dropout."""
        planes = y.permute(0, 1, 4, 2, 3)
        if block.pool > 1:
            planes = functional.max_pool2d(planes.flatten(0, 1), block.pool)
            planes = planes.view(*y.shape[:2], *planes.shape[1:])
        if block.rate is not None and keys is not None:
            planes = planes * _make_masks(block, planes, keys)
        return planes.permute(0, 1, 3, 4, 2).contiguous()

    def unpool(
        self, block: Block, y: torch.Tensor, dz: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Return dy from dz, through dropout and pooling."""
        with torch.enable_grad():
            held = y.detach().requires_grad_()
            pooled = self.pool(block, held, keys)
        (dy,) = torch.autograd.grad(pooled, held, dz.view(pooled.shape))
        return dy * (y > 0.0) if block.is_rectified else dy

    def convolve_transposed(
        self, block: Block, dy: torch.Tensor, weights: torch.Tensor, x: torch.Tensor | None
    ) -> torch.Tensor:
        """Return dx from dy; zero where x, if given, is not positive."""
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
        """Store the gradient by the block's weights and biases in `gradient` (J, padded)."""
        flat = dy.reshape(len(dy), -1, block.outputs)
        _view_weights(block, gradient).copy_(flat.transpose(1, 2) @ _unfold(block, x))
        if block.biases_start is not None:
            stop = block.biases_start + block.outputs
            gradient[:, block.biases_start : stop] = flat.sum(dim=1)


def _view_weights(block: Block, weights: torch.Tensor) -> torch.Tensor:
    """Return the (J, outputs, depth) weights of a block."""
    stop = block.weights_start + block.outputs * block.depth
    return weights[:, block.weights_start : stop].view(-1, block.outputs, block.depth)


def _unfold(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Return the (J, pixels, depth) contents of the windows of a convolution."""
    windows = x.unfold(2, block.kernel_height, 1).unfold(3, block.kernel_width, 1)
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, block.depth)


def _make_masks(block: Block, planes: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    words = keys.numpy().view(np.uint32)
    masks = [
        hash_dropout_mask(low, high, block.dropout, tuple(planes.shape[1:]), block.rate or 0.0)
        for low, high in words.tolist()
    ]
    return torch.from_numpy(np.stack(masks))
