"""Passes and Adam steps of stacked convolutional networks on a GPU.

Arrays are laid out as `blocks` describes, with a leading axis of jobs and one of examples.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from covertfl.kernels.cnn import gpu_kernels
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.dropout import LAYER_STRIDE, WORD, find_dropout_threshold
from covertfl.kernels.job import LocalOptimizer

_BLOCK_SIZE = 1024
# Gradients of 16-bit floats are multiplied by this, so that small ones are not lost.
_SCALE = 1024.0


@dataclass(frozen=True)
class _Tiles:
    """Tiles of the products: rows, columns and depth, and the warps and stages of a program.

    Chosen by measurements on one type of GPU, where reads from its cache limit the speed.  They are
    fixed because the depth determines the order of sums.
    """

    convolve: tuple[int, int, int, int, int]
    transposed: tuple[int, int, int, int, int]
    correlate: tuple[int, int, int, int, int]


_LONG = _Tiles((128, 64, 32, 4, 2), (64, 64, 32, 4, 2), (32, 128, 32, 4, 3))
_SHORT = _Tiles((256, 64, 32, 4, 4), (256, 64, 32, 4, 3), (64, 128, 64, 4, 3))


class TritonPasses:
    """The passes of `PlainPasses` in Triton.

    Parameters
    ----------
    precision : float16, tf32, or tf32x3 for the accuracy of 32-bit floats
    """

    def __init__(self, precision: str) -> None:
        is_short = precision == "float16"
        self.dtype = torch.float16 if is_short else torch.float32
        self.scale = _SCALE if is_short else 1.0
        self._tiles = _SHORT if is_short else _LONG
        self._precision = "tf32" if is_short else precision  # of products of 32-bit floats

    def convolve(
        self, block: Block, x: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return y (J, B, rows, columns, outputs) as numbers of a type."""
        jobs, examples = x.shape[:2]
        shape = (jobs, examples, block.out_height, block.out_width, block.outputs)
        y = x.new_empty(shape, dtype=dtype)
        rows = examples * block.out_height * block.out_width
        tiles = _size_tiles(self._tiles.convolve, max(rows, 64), block.outputs, block.depth)
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
            PRECISION=self._precision,
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
        tiles = _size_tiles(self._tiles.transposed, max(rows, 64), block.channels, block.outputs)
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(block.channels, tiles["BN"]), jobs)
        own, strides = _order_weights(block, weights)
        gpu_kernels.convolve_transposed_kernel[grid](
            dy,
            own,
            dx if x is None else x,
            dx,
            rows,
            examples,
            own.stride(0),
            **strides,
            **_sizes(block),
            MASKED=x is not None,
            PRECISION=self._precision,
            **tiles,
        )
        return dx

    def correlate(
        self, block: Block, x: torch.Tensor, dy: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Store the gradient by the block's weights and biases in `gradient` (J, padded)."""
        jobs, examples = dy.shape[:2]
        rows = examples * block.out_height * block.out_width
        tiles = _size_tiles(self._tiles.correlate, block.outputs, block.depth, rows)
        tiles["BK"] = 64 if block.depth <= 32 else self._tiles.correlate[2]
        grid = (
            triton.cdiv(block.outputs, tiles["BM"]) * triton.cdiv(block.depth, tiles["BN"]),
            jobs,
        )
        gpu_kernels.correlate_kernel[grid](
            x,
            dy,
            gradient[:, block.weights_start :],
            rows,
            1.0 / self.scale,
            x.stride(0),
            gradient.stride(0),
            **_sizes(block),
            PRECISION=self._precision,
            **tiles,
        )
        if block.biases_start is not None:
            width = _tile(block.outputs, 64)
            gpu_kernels.sum_kernel[(triton.cdiv(block.outputs, width), jobs)](
                dy,
                gradient[:, block.biases_start :],
                rows,
                1.0 / self.scale,
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


def _order_weights(block: Block, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, int]]:
    """Return the weights of a block, and the strides of outputs, taps and channels.

    Products of 32-bit floats are fastest if both sides are contiguous along the summed axis, which
    is worth a copy, unless a layer has a single tap and reads each weight only once.
    """
    taps = block.kernel_height * block.kernel_width
    own = weights[:, block.weights_start : block.weights_start + block.outputs * block.depth]
    if taps == 1 or weights.dtype == torch.float16:
        return own, {"O_STRIDE": block.depth, "T_STRIDE": block.channels, "C_STRIDE": 1}
    turned = own.view(-1, block.outputs, taps, block.channels).transpose(1, 3).contiguous()
    return turned, {"O_STRIDE": 1, "T_STRIDE": block.outputs, "C_STRIDE": taps * block.outputs}


def _size_tiles(
    tiles: tuple[int, int, int, int, int], rows: int, columns: int, depth: int
) -> dict[str, int]:
    """Return the tiles of a product of some size, as the kernels name them."""
    most_rows, most_columns, most_depth, warps, stages = tiles
    return {
        "BM": _tile(rows, most_rows),
        "BN": _tile(columns, most_columns),
        "BK": _tile(depth, most_depth),
        "num_warps": warps,
        "num_stages": stages,
    }


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
