"""The products of stacked convolutional networks on a GPU, in Triton.

Convolutions are matrix products of which one side is gathered from the images during the product
and never stored.  Every job has programs of its own and every sum a fixed order, so that results
repeat exactly and do not depend on the other jobs.

H, W and C are the height, width and channels of the images, OH, OW and N those of the outputs, K
the weights of an output and KW the width of its window; BM, BN and BK are the sizes of a tile.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place_taps(
    start, k, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    """Return the offset in the image, from the start of the window, that weight k multiplies."""
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
    """Return the offset in the images at which the window of output pixel m starts."""
    pixel = m % (OH * OW)
    return ((m // (OH * OW) * H + pixel // OW) * W + pixel % OW) * C


@triton.jit
def convolve_kernel(
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
    """Compute the outputs of a block before pooling and dropout."""
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
        total = tl.where(total < 0.0, 0.0, total)  # keeps NaN
    y += job * num_rows * N
    tl.store(
        y + m[:, None] * N + n[None, :], total, mask=(m < num_rows)[:, None] & (n < N)[None, :]
    )


@triton.jit
def convolve_transposed_kernel(
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
    """Compute the gradient by a block's inputs from that by its outputs."""
    job = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(C, BN)
    m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)
    c = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    image, row, column = m // (H * W), m % (H * W) // W, m % W
    dy += job * (num_rows // (H * W)) * (OH * OW * N)
    weights += job * w_stride
    pixels = ((image * OH + row) * OW + column) * N
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
            dy + pixels[:, None] + (o - (up * OW + left_by) * N)[None, :], mask=mask, other=0.0
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
def correlate_kernel(
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
    """Compute the gradient by a block's weights."""
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
def sum_kernel(dy, db, num_rows, w_stride, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Compute the gradient by a block's biases."""
    job = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    dy += job * num_rows * N
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, num_rows, BM):
        m = start + tl.arange(0, BM)
        mask = (m < num_rows)[:, None] & (n < N)[None, :]
        total += tl.load(dy + m[:, None] * N + n[None, :], mask=mask, other=0.0)
    tl.store(db + job * w_stride + n, tl.sum(total, axis=0), mask=n < N)
