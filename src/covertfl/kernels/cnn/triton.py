"""The passes of stacked convolutional networks on a GPU, in Triton.

Convolutions are matrix products whose left or right side is gathered from the images while it is
multiplied: no side is ever written out.  Every job has programs of its own and every sum one order,
so that bits repeat, and do not depend on the other jobs.

Arrays are laid out as `cnn_blocks` says, with a leading axis of jobs and one of examples.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.job import LocalOptimizer
from covertfl.kernels.mlp import LAYER_STRIDE, find_dropout_threshold

_ELEMENTS = 1024
# Tiles of the products, found by measuring on one kind of card: what is read again and again from
# the card's cache sets the pace.  They are fixed because BK decides the order of sums.
_CONVOLVE = {"BM": 128, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}
_SPREAD = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}
_CORRELATE = {"BM": 32, "BN": 128, "BK": 32, "num_warps": 4, "num_stages": 3}


@triton.jit
def _place_taps(
    start, k, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    """Where weight k of an output meets the image, counted from the window's first number."""
    if C == K:
        return k
    elif C % BK == 0:
        tap = start // C
        return ((tap // KW) * W + tap % KW - tap) * C + k
    else:
        tap = k // C
        return ((tap // KW) * W + tap % KW) * C + k % C


@triton.jit
def _place_windows(
    m, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr
):
    """Where in the images the window of output pixel m begins."""
    pixel = m % (OH * OW)
    return ((m // (OH * OW) * H + pixel // OW) * W + pixel % OW) * C


@triton.jit
def _convolve(
    x,
    weights,
    biases,
    y,
    num_rows,
    x_stride,
    w_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(N, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    x += job * x_stride
    weights += job * w_stride
    windows = _place_windows(tl.minimum(m, num_rows - 1), H, W, C, OH, OW)
    w_rows = tl.minimum(n, N - 1) * K
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        taps = _place_taps(start, k, W, C, KW, K, BK)
        if K % BK == 0:
            left = tl.load(x + windows[:, None] + taps[None, :])
            right = tl.load(weights + w_rows[None, :] + k[:, None])
        else:
            left = tl.load(x + windows[:, None] + taps[None, :], mask=k[None, :] < K, other=0.0)
            right = tl.load(weights + w_rows[None, :] + k[:, None], mask=k[:, None] < K, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(biases + job * w_stride + tl.minimum(n, N - 1))[None, :]
    if RELU:
        total = tl.where(total < 0.0, 0.0, total)  # what is not a number stays so
    y += job * num_rows * N
    tl.store(
        y + m[:, None] * N + n[None, :], total, mask=(m < num_rows)[:, None] & (n < N)[None, :]
    )


@triton.jit
def _spread(
    dy,
    weights,
    x,
    dx,
    num_rows,
    w_stride,
    O_STRIDE: tl.constexpr,
    C_STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(C, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    c = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image = m // (H * W)
    row = m % (H * W) // W
    column = m % W
    dy += job * (num_rows // (H * W)) * (OH * OW * N)
    weights += job * w_stride
    slopes = ((image * OH + row) * OW + column) * N
    inside = m < num_rows
    parts: tl.constexpr = (N + BK - 1) // BK
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, K // C * parts):
        tap = step // parts
        o = step % parts * BK + tl.arange(0, BK)
        up, left_by = tap // KW, tap % KW
        real = (
            inside & (row >= up) & (row - up < OH) & (column >= left_by) & (column - left_by < OW)
        )
        mask = real[:, None]
        if N % BK != 0:
            mask = mask & (o < N)[None, :]
        left = tl.load(
            dy + slopes[:, None] + (o - (up * OW + left_by) * N)[None, :],
            mask=mask,
            other=0.0,
        )
        places = tl.minimum(c, C - 1)[None, :] * C_STRIDE + tap * N + o[:, None] * O_STRIDE
        if N % BK == 0:
            right = tl.load(weights + places)
        else:
            right = tl.load(weights + places, mask=(o < N)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    places = job * num_rows * C + m[:, None] * C + c[None, :]
    mask = inside[:, None] & (c < C)[None, :]
    if MASKED:
        total = tl.where(tl.load(x + places, mask=mask, other=0.0) > 0.0, total, 0.0)
    tl.store(dx + places, total, mask=mask)


@triton.jit
def _correlate(
    x,
    dy,
    dw,
    num_rows,
    x_stride,
    w_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(K, BN)
    n = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    k = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    x += job * x_stride
    dy += job * num_rows * N
    taps = _place_taps(0, k, W, C, KW, K, K)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, num_rows, BK):
        m = start + tl.arange(0, BK)
        windows = _place_windows(tl.minimum(m, num_rows - 1), H, W, C, OH, OW)
        mask = (m < num_rows)[None, :]
        if N % BM != 0:
            mask = mask & (n < N)[:, None]
        left = tl.load(dy + m[None, :] * N + n[:, None], mask=mask, other=0.0)
        if K % BN == 0:
            right = tl.load(x + windows[:, None] + taps[None, :])
        else:
            mask = (k < K)[None, :]
            right = tl.load(x + windows[:, None] + taps[None, :], mask=mask, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    mask = (n < N)[:, None] & (k < K)[None, :]
    tl.store(dw + job * w_stride + n[:, None] * K + k[None, :], total, mask=mask)


@triton.jit
def _sum_slopes(dy, db, num_rows, w_stride, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    job = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    dy += job * num_rows * N
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, num_rows, BM):
        m = start + tl.arange(0, BM)
        mask = (m < num_rows)[:, None] & (n < N)[None, :]
        total += tl.load(dy + m[:, None] * N + n[None, :], mask=mask, other=0.0)
    tl.store(db + job * w_stride + n, tl.sum(total, axis=0), mask=n < N)


@triton.jit
def _mix_words(words):
    """As `mlp_kernel._mix_words`."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def _draw_mask(element, keys, job, layer_word, threshold, scale):
    """As `mlp_kernel.dropout_mask`; elements are numbered with channels before pixels."""
    low = tl.load(keys + 2 * job).to(tl.uint32, bitcast=True)
    high = tl.load(keys + 2 * job + 1).to(tl.uint32, bitcast=True)
    inner = _mix_words(element.to(tl.uint32) + low)
    hashed = _mix_words(inner ^ (high + layer_word.to(tl.uint32)))
    return tl.where(hashed.to(tl.int64) >= threshold, scale, 0.0)


@triton.jit
def _finish(
    y,
    z,
    keys,
    num_elements,
    layer_word,
    threshold,
    scale,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    POOL: tl.constexpr,
    DROPS: tl.constexpr,
    SIZE: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    PH: tl.constexpr = H // POOL
    PW: tl.constexpr = W // POOL
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = e < num_elements
    c, column, row, image = e % C, e // C % PW, e // (C * PW) % PH, e // (C * PW * PH)
    y += job * (num_elements // (C * PW * PH)) * (H * W * C)
    window = ((image * H + row * POOL) * W + column * POOL) * C + c
    best = tl.load(y + window, mask=inside, other=0.0)
    for i in tl.static_range(1, POOL * POOL):
        value = tl.load(y + window + (i // POOL * W + i % POOL) * C, mask=inside, other=0.0)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    if DROPS:
        element = ((image * C + c) * PH + row) * PW + column
        best *= _draw_mask(element, keys, job, layer_word, threshold, scale)
    tl.store(z + job * num_elements + e, best, mask=inside)


@triton.jit
def _unfinish(
    y,
    dz,
    dy,
    keys,
    num_elements,
    layer_word,
    threshold,
    scale,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    POOL: tl.constexpr,
    DROPS: tl.constexpr,
    RELU: tl.constexpr,
    SIZE: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    PH: tl.constexpr = H // POOL
    PW: tl.constexpr = W // POOL
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = e < num_elements
    c, column, row, image = e % C, e // C % PW, e // (C * PW) % PH, e // (C * PW * PH)
    y += job * (num_elements // (C * PW * PH)) * (H * W * C)
    dy += job * (num_elements // (C * PW * PH)) * (H * W * C)
    slope = tl.load(dz + job * num_elements + e, mask=inside, other=0.0)
    if DROPS:
        element = ((image * C + c) * PH + row) * PW + column
        slope *= _draw_mask(element, keys, job, layer_word, threshold, scale)
    window = ((image * H + row * POOL) * W + column * POOL) * C + c
    best = tl.load(y + window, mask=inside, other=0.0)
    for i in tl.static_range(1, POOL * POOL):
        best = tl.maximum(
            best, tl.load(y + window + (i // POOL * W + i % POOL) * C, mask=inside, other=0.0)
        )
    if RELU:
        slope = tl.where(best > 0.0, slope, 0.0)
    # The first of equal values has been the largest.
    is_open = inside
    for i in tl.static_range(0, POOL * POOL):
        place = window + (i // POOL * W + i % POOL) * C
        is_it = is_open & (tl.load(y + place, mask=inside, other=0.0) == best)
        is_open = is_open & (is_it == 0)
        tl.store(dy + place, tl.where(is_it, slope, 0.0), mask=inside)


@triton.jit
def _update(
    weights,
    gradient,
    first,
    second,
    scales,
    size,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    DECOUPLED: tl.constexpr,
    SIZE: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = e < size
    places = job * size + e
    is_first = tl.load(scales + 3 * job)
    rate = tl.load(scales + 3 * job + 1)
    spread = tl.load(scales + 3 * job + 2)
    w = tl.load(weights + places, mask=mask, other=0.0)
    g = tl.load(gradient + places, mask=mask, other=0.0)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    # What an earlier job left, or nobody wrote, is not read into the sums.
    m = tl.where(is_first > 0.0, 0.0, tl.load(first + places, mask=mask, other=0.0))
    v = tl.where(is_first > 0.0, 0.0, tl.load(second + places, mask=mask, other=0.0))
    m += (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    w -= rate * m / (tl.sqrt(v) / spread + eps)
    tl.store(weights + places, w, mask=mask)
    tl.store(first + places, m, mask=mask)
    tl.store(second + places, v, mask=mask)


class TritonPasses:
    """Forward and backward passes of blocks for stacks of jobs.

    Parameters
    ----------
    precision : tf32, or tf32x3 for products as good as those of 32-bit floats
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def convolve(self, block: Block, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Outputs (J, B, rows, columns, outputs) of a block before pooling and dropout."""
        jobs, examples = x.shape[:2]
        y = x.new_empty((jobs, examples, block.out_height, block.out_width, block.outputs))
        rows = examples * block.out_height * block.out_width
        tiles = _CONVOLVE | {
            "BM": max(_tile(rows, _CONVOLVE["BM"]), 64),
            "BN": _tile(block.outputs, _CONVOLVE["BN"]),
        }
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(block.outputs, tiles["BN"]), jobs)
        _convolve[grid](
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

    def spread(
        self, block: Block, dy: torch.Tensor, weights: torch.Tensor, x: torch.Tensor | None
    ) -> torch.Tensor:
        """Slopes of a block's inputs; none where x, if given, is not positive."""
        jobs, examples = dy.shape[:2]
        dx = dy.new_empty((jobs, examples, block.height, block.width, block.channels))
        rows = examples * block.height * block.width
        tiles = _SPREAD | {
            "BN": _tile(block.channels, _SPREAD["BN"]),
            "BK": _tile(block.outputs, _SPREAD["BK"]),
        }
        grid = (triton.cdiv(rows, tiles["BM"]) * triton.cdiv(block.channels, tiles["BN"]), jobs)
        own, strides = _turn_weights(block, weights)
        _spread[grid](
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
        """Put the slopes of a block's weights and biases into the gradient."""
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
        _correlate[grid](
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
            _sum_slopes[(triton.cdiv(block.outputs, width), jobs)](
                dy,
                gradient[:, block.biases_start :],
                rows,
                gradient.stride(0),
                N=block.outputs,
                BM=256,
                BN=width,
                num_warps=8,
            )

    def finish(self, block: Block, y: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """Pooling, and dropout where there are keys."""
        z = y.new_empty((*y.shape[:2], *block.shape))
        _finish[(triton.cdiv(z[0].numel(), _ELEMENTS), len(z))](
            y,
            z,
            y if keys is None else keys,
            z[0].numel(),
            *_mask_settings(block),
            **_pool_sizes(block, keys),
            SIZE=_ELEMENTS,
        )
        return z

    def unfinish(
        self, block: Block, y: torch.Tensor, dz: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """Slopes behind the convolution from those behind pooling and dropout."""
        is_covered = block.out_height % block.pool == block.out_width % block.pool == 0
        dy = torch.empty_like(y) if is_covered else torch.zeros_like(y)
        _unfinish[(triton.cdiv(dz[0].numel(), _ELEMENTS), len(dz))](
            y,
            dz,
            dy,
            keys,
            dz[0].numel(),
            *_mask_settings(block),
            **_pool_sizes(block, keys),
            RELU=block.is_rectified,
            SIZE=_ELEMENTS,
        )
        return dy


def adapt(
    options: LocalOptimizer,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """A step of Adam or AdamW in place; `scales` (J, 3): is it the first, its rate, its root."""
    size = weights.shape[1]
    _update[(triton.cdiv(size, _ELEMENTS), len(gradient))](
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
        SIZE=_ELEMENTS,
    )


def _turn_weights(block: Block, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, int]]:
    """Weights of a block with outputs innermost, where that is worth a copy; and their strides.

    Products want both sides to run along what is summed over.  A layer with one tap reads each
    weight only once, though.
    """
    taps = block.kernel_height * block.kernel_width
    own = weights[:, block.weights_start : block.weights_start + block.outputs * block.depth]
    if taps == 1:
        return own, {"O_STRIDE": block.depth, "C_STRIDE": 1}
    turned = own.view(-1, block.outputs, taps, block.channels).transpose(1, 3).contiguous()
    return turned, {"O_STRIDE": 1, "C_STRIDE": taps * block.outputs}


def _tile(size: int, most: int) -> int:
    return min(max(triton.next_power_of_2(size), 16), most)


def _sizes(block: Block) -> dict[str, int]:
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
    return {
        "H": block.out_height,
        "W": block.out_width,
        "C": block.outputs,
        "POOL": block.pool,
        "DROPS": block.rate is not None and keys is not None,
    }


def _mask_settings(block: Block) -> tuple[int, int, float]:
    """What a layer adds to the key, the threshold of its hashes, and the scale of what is kept."""
    rate = block.rate or 0.0
    word = (block.dropout * LAYER_STRIDE) & 0xFFFFFFFF
    return word, find_dropout_threshold(rate), 1.0 / (1.0 - rate)
