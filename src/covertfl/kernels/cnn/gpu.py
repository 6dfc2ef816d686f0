"""Passes and Adam steps of stacked convolutional networks on a GPU.

Arrays are laid out as `blocks` describes, with a leading axis of jobs and one of examples.
"""

# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from covertfl.kernels.cnn import gpu_kernels
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.dropout import LAYER_STRIDE, WORD, find_dropout_threshold
from covertfl.kernels.job import LocalOptimizer

_BLOCK_SIZE = 1024
# Neighbouring pixels that products of 16-bit floats treat as one in layers of at most so many
# outputs; more of either takes longer.
_GROUP, _FEW_OUTPUTS = 2, 32
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
_GROUPED = replace(_SHORT, transposed=(128, 64, 32, 4, 3))


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
        group, chosen = self._choose_group(block)
        sizes, own = _size_group(block, group), _widen_weights(block, weights, group)
        rows = examples * block.out_height * block.out_width // group
        tiles = _size_tiles(chosen.convolve, max(rows, 64), sizes["N"], sizes["K"])
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(sizes["N"], tiles["BN"]), jobs)
        gpu_kernels.convolve_kernel[grid](
            x,
            own,
            weights[:, block.biases_start or 0 :],
            y,
            rows,
            x.stride(0),
            own.stride(0),
            weights.stride(0),
            **sizes,
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
        group, chosen = self._choose_group(block)
        sizes, columns = _size_group(block, group) | {"N": block.outputs}, group * block.channels
        rows = examples * block.height * block.width // group
        tiles = _size_tiles(chosen.transposed, max(rows, 64), columns, block.outputs)
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(columns, tiles["BN"]), jobs)
        own, strides = _order_weights(block, _widen_weights(block, weights, group), group)
        gpu_kernels.convolve_transposed_kernel[grid](
            dy,
            own,
            dx if x is None else x,
            dx,
            rows,
            examples,
            own.stride(0),
            **strides,
            **sizes,
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
        group, chosen = self._choose_group(block)
        sizes = _size_group(block, group)
        own = gradient[:, block.weights_start :]
        found = own if group == 1 else gradient.new_empty((jobs, sizes["N"] * sizes["K"]))
        rows = examples * block.out_height * block.out_width // group
        tiles = _size_tiles(chosen.correlate, sizes["N"], sizes["K"], rows)
        tiles["BK"] = 64 if block.depth <= 32 else chosen.correlate[2]
        grid = (triton.cdiv(sizes["N"], tiles["BM"]) * triton.cdiv(sizes["K"], tiles["BN"]), jobs)
        gpu_kernels.correlate_kernel[grid](
            x,
            dy,
            found,
            rows,
            1.0 / self.scale,
            x.stride(0),
            found.stride(0),
            **sizes,
            PRECISION=self._precision,
            **tiles,
        )
        if group > 1:
            _fold_gradient(block, found, group, own)
        if block.biases_start is not None:
            width, rows = _tile(block.outputs, 64), rows * group
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

    def _choose_group(self, block: Block) -> tuple[int, _Tiles]:
        """Return how many neighbouring pixels the products of a block treat as one, and tiles."""
        is_even = block.width % _GROUP == block.out_width % _GROUP == 0
        is_whole = block.channels % _GROUPED.convolve[2] == 0
        is_narrow = block.kernel_width > 1 and block.outputs <= _FEW_OUTPUTS
        if self.dtype == torch.float16 and is_even and is_whole and is_narrow:
            return _GROUP, _GROUPED
        return 1, self._tiles

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


def _widen_weights(block: Block, weights: torch.Tensor, group: int) -> torch.Tensor:
    """Return the (J, group * outputs, depth) weights of a group of neighbouring pixels."""
    own = _view_weights(block, weights)
    if group == 1:
        return own
    shape = (block.kernel_height, block.kernel_width + group - 1, block.channels)
    wide = own.new_zeros((len(own), group, block.outputs, *shape))
    for shift in range(group):
        wide[:, shift, :, :, shift : shift + block.kernel_width] = own
    return wide


def _fold_gradient(block: Block, found: torch.Tensor, group: int, own: torch.Tensor) -> None:
    """Store the gradient by a block's weights, given that by the weights of a group of pixels."""
    shape = (block.kernel_height, block.kernel_width + group - 1, block.channels)
    wide = found.view(-1, group, block.outputs, *shape)
    parts = [wide[:, shift, :, :, shift : shift + block.kernel_width] for shift in range(group)]
    own[:, : block.outputs * block.depth].view(parts[0].shape).copy_(sum(parts))


def _view_weights(block: Block, weights: torch.Tensor) -> torch.Tensor:
    """Return the (J, outputs, rows, columns, channels) weights of a block."""
    own = weights[:, block.weights_start : block.weights_start + block.outputs * block.depth]
    shape = (block.outputs, block.kernel_height, block.kernel_width, block.channels)
    return own.view(-1, *shape)


def _order_weights(
    block: Block, own: torch.Tensor, group: int
) -> tuple[torch.Tensor, dict[str, int]]:
    """Return weights of a block, and the strides of shifts, outputs, taps and channels.

    Products of 32-bit floats are fastest if both sides are contiguous along the summed axis, which
    is worth a copy, unless a layer has a single tap and reads each weight only once.
    """
    depth = block.kernel_height * (block.kernel_width + group - 1) * block.channels
    taps, strides = depth // block.channels, {"G_STRIDE": block.outputs * depth}
    if taps == 1 or own.dtype == torch.float16:
        return own, {**strides, "O_STRIDE": depth, "T_STRIDE": block.channels, "C_STRIDE": 1}
    turned = own.reshape(-1, block.outputs, taps, block.channels).transpose(1, 3).contiguous()
    order = {"O_STRIDE": 1, "T_STRIDE": block.outputs, "C_STRIDE": taps * block.outputs}
    return turned, strides | order


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


def _size_group(block: Block, group: int) -> dict[str, int]:
    """Return the sizes of a block, of groups of neighbouring pixels, as the products name them."""
    columns = block.kernel_width + group - 1
    return {
        "H": block.height,
        "W": block.width,
        "C": block.channels,
        "KW": columns,
        "K": block.kernel_height * columns * block.channels,
        "OH": block.out_height,
        "OW": block.out_width,
        "N": group * block.outputs,
        "GROUP": group,
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
