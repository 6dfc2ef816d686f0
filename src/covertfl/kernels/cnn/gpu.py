"""Passes and Adam steps of stacked convolutional networks on a GPU.

Arrays are laid out as `blocks` describes, with a leading axis of jobs and one of examples.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton

from covertfl.kernels.cnn import gpu_kernels
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.dropout import LAYER_STRIDE, WORD, find_dropout_threshold
from covertfl.kernels.job import LocalOptimizer

_BLOCK_SIZE = 1024
# Tiles of the products, chosen by measurements on one type of GPU, where reads from its cache limit
# the speed.  They are fixed because BK determines the order of sums.
_CONVOLVE = {"BM": 128, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}
_TRANSPOSED = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}
_CORRELATE = {"BM": 32, "BN": 128, "BK": 32, "num_warps": 4, "num_stages": 3}


class TritonPasses:
    """The passes of `PlainPasses` in Triton."""

    def __init__(self, precision: str) -> None:
        self.precision = precision  # tf32, or tf32x3 for the accuracy of 32-bit floats

    def convolve(self, block: Block, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return y (J, B, rows, columns, outputs)."""
        jobs, examples = x.shape[:2]
        y = x.new_empty((jobs, examples, block.out_height, block.out_width, block.outputs))
        rows = examples * block.out_height * block.out_width
        tiles = _CONVOLVE | {
            "BM": max(_tile(rows, _CONVOLVE["BM"]), 64),
            "BN": _tile(block.outputs, _CONVOLVE["BN"]),
        }
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(block.outputs, tiles["BN"]), jobs)
        gpu_kernels.convolve_kernel[grid](
            x,
            weights[:, block.weights_start :],
            weights[:, block.biases_start or 0 :],
            y,
            rows,
            x.stride(0),
            weights.stride(0),
            **_sizes(block),
            HAS_BIAS=block.biases_start is not None,
            RELU=block.is_rectified,
            PRECISION=self.precision,
            **tiles,
        )
        return y

    def convolve_transposed(
        self, block: Block, dy: torch.Tensor, weights: torch.Tensor, x: torch.Tensor | None
    ) -> torch.Tensor:
        """Return dx from dy; zero where x, if given, is not positive."""
        jobs, examples = dy.shape[:2]
        dx = dy.new_empty((jobs, examples, block.height, block.width, block.channels))
        rows = examples * block.height * block.width
        tiles = _TRANSPOSED | {
            "BN": _tile(block.channels, _TRANSPOSED["BN"]),
            "BK": _tile(block.outputs, _TRANSPOSED["BK"]),
        }
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(block.channels, tiles["BN"]), jobs)
        own, strides = _transpose_weights(block, weights)
        gpu_kernels.convolve_transposed_kernel[grid](
            dy,
            own,
            dx if x is None else x,
            dx,
            rows,
            own.stride(0),
            **strides,
            **_sizes(block),
            MASKED=x is not None,
            PRECISION=self.precision,
            **tiles,
        )
        return dx

    def correlate(
        self, block: Block, x: torch.Tensor, dy: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Store the gradient by the block's weights and biases in `gradient` (J, padded)."""
        jobs, examples = dy.shape[:2]
        rows = examples * block.out_height * block.out_width
        tiles = _CORRELATE | {
            "BM": _tile(block.outputs, _CORRELATE["BM"]),
            "BK": 64 if block.depth <= 32 else _CORRELATE["BK"],
            "BN": _tile(block.depth, _CORRELATE["BN"]),
        }
        grid = (
            triton.cdiv(block.outputs, tiles["BM"]) * triton.cdiv(block.depth, tiles["BN"]),
            jobs,
        )
        gpu_kernels.correlate_kernel[grid](
            x,
            dy,
            gradient[:, block.weights_start :],
            rows,
            x.stride(0),
            gradient.stride(0),
            **_sizes(block),
            PRECISION=self.precision,
            **tiles,
        )
        if block.biases_start is not None:
            width = _tile(block.outputs, 64)
            gpu_kernels.sum_kernel[(triton.cdiv(block.outputs, width), jobs)](
                dy,
                gradient[:, block.biases_start :],
                rows,
                gradient.stride(0),
                N=block.outputs,
                BM=256,
                BN=width,
                num_warps=8,
            )

    def pool(self, block: Block, y: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Return z: y after pooling and, if there are keys, dropout."""
        z = y.new_empty((*y.shape[:2], *block.shape))
        gpu_kernels.pool_kernel[(triton.cdiv(z[0].numel(), _BLOCK_SIZE), len(z))](
            y,
            z,
            y if keys is None else keys,
            z[0].numel(),
            *_mask_settings(block),
            **_pool_sizes(block, keys),
            SIZE=_BLOCK_SIZE,
        )
        return z

    def unpool(
        self, block: Block, y: torch.Tensor, dz: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Return dy from dz, through dropout and pooling."""
        is_covered = block.out_height % block.pool == block.out_width % block.pool == 0
        dy = torch.empty_like(y) if is_covered else torch.zeros_like(y)
        gpu_kernels.unpool_kernel[(triton.cdiv(dz[0].numel(), _BLOCK_SIZE), len(dz))](
            y,
            dz,
            dy,
            keys,
            dz[0].numel(),
            *_mask_settings(block),
            **_pool_sizes(block, keys),
            RELU=block.is_rectified,
            SIZE=_BLOCK_SIZE,
        )
        return dy


def step_adam(
    options: LocalOptimizer,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """Take a step of Adam or AdamW in place, with the scales of `Step`."""
    size = weights.shape[1]
    gpu_kernels.adam_kernel[(triton.cdiv(size, _BLOCK_SIZE), len(gradient))](
        weights,
        gradient,
        first,
        second,
        scales,
        size,
        options.lr,
        *options.betas,
        options.eps,
        options.weight_decay,
        DECOUPLED=options.name == "adamw",
        SIZE=_BLOCK_SIZE,
    )


def _transpose_weights(block: Block, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, int]]:
    """Return the weights of a block with outputs innermost, if worth a copy, and their strides.

    Products are fastest if both sides are contiguous along the summed axis, but a layer with a
    single tap reads each weight only once.
    """
    taps = block.kernel_height * block.kernel_width
    own = weights[:, block.weights_start : block.weights_start + block.outputs * block.depth]
    if taps == 1:
        return own, {"O_STRIDE": block.depth, "C_STRIDE": 1}
    turned = own.view(-1, block.outputs, taps, block.channels).transpose(1, 3).contiguous()
    return turned, {"O_STRIDE": 1, "C_STRIDE": taps * block.outputs}


def _tile(size: int, most: int) -> int:
    """Return the size of a tile: a power of 2 from 16 to `most`."""
    return min(max(triton.next_power_of_2(size), 16), most)


def _sizes(block: Block) -> dict[str, int]:
    """Return the sizes of a block as the products name them."""
    return {
        "H": block.height,
        "W": block.width,
        "C": block.channels,
        "KW": block.kernel_width,
        "K": block.depth,
        "OH": block.out_height,
        "OW": block.out_width,
        "N": block.outputs,
    }


def _pool_sizes(block: Block, keys: torch.Tensor | None) -> dict[str, int | bool]:
    """Return the sizes of a block as pooling names them."""
    return {
        "H": block.out_height,
        "W": block.out_width,
        "C": block.outputs,
        "POOL": block.pool,
        "DROPS": block.rate is not None and keys is not None,
    }


def _mask_settings(block: Block) -> tuple[int, int, float]:
    """Return the word a layer adds to the key, the threshold of its hashes, and the scale."""
    rate = block.rate or 0.0
    word = (block.dropout * LAYER_STRIDE) & WORD
    return word, find_dropout_threshold(rate), 1.0 / (1.0 - rate)
