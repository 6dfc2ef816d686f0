"""The Triton kernels of stacked convolutional networks: products, pooling with dropout, and Adam.

Convolutions are matrix products of which one side is gathered from the images during the product
and never stored.  Every job has programs of its own and every sum a fixed order, so that results
repeat exactly and do not depend on the other jobs.

H, W and C are the height, width and channels of the images, OH, OW and N those of the outputs, K
the weights of an output and KW the width of its window; BM, BN and BK are the sizes of a tile.

A product can treat GROUP neighbouring pixels of a row as one pixel with GROUP times the channels,
whose window is GROUP - 1 columns wider; its weights are those of the pixels, each shifted to its
place, and zero elsewhere.  N, K and KW are then those of the group.  That is more arithmetic and
less reading, which pays where a layer has few channels.
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
    m,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return the offset in the images at which the window of output pixel (or group) m starts."""
    COLUMNS: tl.constexpr = OW // GROUP
    pixel = m % (OH * COLUMNS)
    return ((m // (OH * COLUMNS) * H + pixel // COLUMNS) * W + pixel % COLUMNS * GROUP) * C


@triton.jit
def convolve_kernel(
    x,
    weights,
    biases,
    y,
    num_rows,
    x_stride,
    w_stride,
    b_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    GROUP: tl.constexpr,
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
    windows = _place_windows(tl.minimum(m, num_rows - 1), H, W, C, OH, OW, GROUP)
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
        total += tl.load(biases + job * b_stride + tl.minimum(n, N - 1) % (N // GROUP))[None, :]
    if RELU:
        total = tl.where(total < 0.0, 0.0, total)  # keeps NaN
    y += job * num_rows * N
    tl.store(
        y + m[:, None] * N + n[None, :], total, mask=(m < num_rows)[:, None] & (n < N)[None, :]
    )


@triton.jit
def _bound_taps(
    begin,
    end,
    num_images,
    W: tl.constexpr,
    KW: tl.constexpr,
    KH: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return the first tap down and across that reaches an output from a tile, and how many do.

    The tile has rows from `begin` to `end`, that is some pixels (or groups) of all images; if these
    lie in several rows of an image, all columns count.  The column of a group is its last one.
    """
    COLUMNS: tl.constexpr = W // GROUP
    first, last = begin // num_images, (end - 1) // num_images
    is_one_row = first // COLUMNS == last // COLUMNS
    left_column = tl.where(is_one_row, first % COLUMNS, 0) * GROUP + GROUP - 1
    right_column = tl.where(is_one_row, last % COLUMNS, COLUMNS - 1) * GROUP + GROUP - 1
    top_tap = tl.maximum(first // COLUMNS - OH + 1, 0)
    left_tap = tl.maximum(left_column - OW + 1, 0)
    taps_down = tl.minimum(last // COLUMNS, KH - 1) - top_tap + 1
    taps_across = tl.minimum(right_column, KW - 1) - left_tap + 1
    return top_tap, taps_down, left_tap, taps_across


@triton.jit
def _place_columns(
    c, G_STRIDE: tl.constexpr, C_STRIDE: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr
):
    """Return the offset of the weights by input c of a group of pixels."""
    # Shifts of a group are counted from its last column: those of the outputs in reverse.
    return (GROUP - 1 - c // C) * G_STRIDE + c % C * C_STRIDE


@triton.jit
def _load_outputs(
    dy,
    row,
    column,
    pixels,
    up,
    left_by,
    o,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    BK: tl.constexpr,
):
    """Return the gradients by outputs o of the pixels up and left by a tap; 0 beyond the edges."""
    real = (row >= up) & (row - up < OH) & (column >= left_by) & (column - left_by < OW)
    mask = real[:, None]
    if N % BK != 0:
        mask = mask & (o < N)[None, :]
    places = pixels[:, None] + (o - (up * OW + left_by) * N)[None, :]
    return tl.load(dy + places, mask=mask, other=0.0)


@triton.jit
def convolve_transposed_kernel(
    dy,
    weights,
    x,
    dx,
    num_rows,
    num_images,
    w_stride,
    G_STRIDE: tl.constexpr,
    O_STRIDE: tl.constexpr,
    T_STRIDE: tl.constexpr,
    C_STRIDE: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    KW: tl.constexpr,
    K: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    N: tl.constexpr,
    GROUP: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute the gradient by a block's inputs from that by its outputs."""
    # A tile has few pixels, of all images, so that taps which reach no output can be left out.
    COLUMNS: tl.constexpr = W // GROUP
    WIDE: tl.constexpr = GROUP * C
    job = tl.program_id(1).to(tl.int64)
    begin = tl.program_id(0) // tl.cdiv(WIDE, BN) * BM
    m = tl.minimum(begin + tl.arange(0, BM), num_rows - 1)
    c = tl.program_id(0) % tl.cdiv(WIDE, BN) * BN + tl.arange(0, BN)
    image, row, place = m % num_images, m // num_images // COLUMNS, m // num_images % COLUMNS
    column = place * GROUP + GROUP - 1
    top_tap, taps_down, left_tap, taps_across = _bound_taps(
        begin, tl.minimum(begin + BM, num_rows), num_images, W, KW, K // (C * KW), OH, OW, GROUP
    )
    dy += job * num_images * (OH * OW * N)
    own = c if WIDE % BN == 0 else tl.minimum(c, WIDE - 1)
    weights += job * w_stride + _place_columns(own, G_STRIDE, C_STRIDE, C, GROUP)
    pixels = ((image * OH + row) * OW + column) * N
    parts: tl.constexpr = (N + BK - 1) // BK
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, taps_down * taps_across * parts):
        o = step % parts * BK + tl.arange(0, BK)
        up = top_tap + step // parts // taps_across
        left_by = left_tap + step // parts % taps_across
        left = _load_outputs(dy, row, column, pixels, up, left_by, o, OH, OW, N, BK)
        right = weights[None, :] + (up * KW + left_by) * T_STRIDE + o[:, None] * O_STRIDE
        right = tl.load(right) if N % BK == 0 else tl.load(right, mask=(o < N)[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    pixels = (image * H + row) * COLUMNS + place
    places = job * num_rows * WIDE + pixels[:, None] * WIDE + c[None, :]
    mask = (begin + tl.arange(0, BM) < num_rows)[:, None] & (c < WIDE)[None, :]
    if MASKED:
        total = tl.where(tl.load(x + places, mask=mask, other=0.0) > 0.0, total, 0.0)
    tl.store(dx + places, total, mask=mask)


@triton.jit
def correlate_kernel(
    x,
    dy,
    dw,
    num_rows,
    scale,
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
    GROUP: tl.constexpr,
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
        windows = _place_windows(tl.minimum(m, num_rows - 1), H, W, C, OH, OW, GROUP)
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
    tl.store(dw + job * w_stride + n[:, None] * K + k[None, :], total * scale, mask=mask)


@triton.jit
def sum_kernel(
    dy, db, num_rows, scale, w_stride, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Compute the gradient by a block's biases."""
    job = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    dy += job * num_rows * N
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, num_rows, BM):
        m = start + tl.arange(0, BM)
        mask = (m < num_rows)[:, None] & (n < N)[None, :]
        total += tl.load(dy + m[:, None] * N + n[None, :], mask=mask, other=0.0)
    tl.store(db + job * w_stride + n, tl.sum(total, axis=0) * scale, mask=n < N)


@triton.jit
def _mix_words(words):
    """Return the hash of `dropout` for 32-bit words."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def _hash_mask(element, keys, job, layer_word, threshold, scale):
    """Return the mask of `dropout`; elements are numbered with channels before pixels."""
    low = tl.load(keys + 2 * job).to(tl.uint32, bitcast=True)
    high = tl.load(keys + 2 * job + 1).to(tl.uint32, bitcast=True)
    inner = _mix_words(element.to(tl.uint32) + low)
    hashed = _mix_words(inner ^ (high + layer_word.to(tl.uint32)))
    return tl.where(hashed.to(tl.int64) >= threshold, scale, 0.0)


@triton.jit
def pool_kernel(
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
    """Apply pooling and dropout."""
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
        best *= _hash_mask(element, keys, job, layer_word, threshold, scale)
    tl.store(z + job * num_elements + e, best, mask=inside)


@triton.jit
def unpool_kernel(
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
    """Compute the gradient before pooling and dropout from that after them."""
    job = tl.program_id(1).to(tl.int64)
    PH: tl.constexpr = H // POOL
    PW: tl.constexpr = W // POOL
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = e < num_elements
    c, column, row, image = e % C, e // C % PW, e // (C * PW) % PH, e // (C * PW * PH)
    y += job * (num_elements // (C * PW * PH)) * (H * W * C)
    dy += job * (num_elements // (C * PW * PH)) * (H * W * C)
    grad = tl.load(dz + job * num_elements + e, mask=inside, other=0.0)
    if DROPS:
        element = ((image * C + c) * PH + row) * PW + column
        grad *= _hash_mask(element, keys, job, layer_word, threshold, scale)
    window = ((image * H + row * POOL) * W + column * POOL) * C + c
    best = tl.load(y + window, mask=inside, other=0.0)
    for i in tl.static_range(1, POOL * POOL):
        best = tl.maximum(
            best, tl.load(y + window + (i // POOL * W + i % POOL) * C, mask=inside, other=0.0)
        )
    if RELU:
        grad = tl.where(best > 0.0, grad, 0.0)
    # Of equal values, the first counts as the largest.
    is_open = inside
    for i in tl.static_range(0, POOL * POOL):
        place = window + (i // POOL * W + i % POOL) * C
        is_it = is_open & (tl.load(y + place, mask=inside, other=0.0) == best)
        is_open = is_open & (is_it == 0)
        tl.store(dy + place, tl.where(is_it, grad, 0.0), mask=inside)


@triton.jit
def adam_kernel(
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
    """Update the weights and the optimizer state of a job."""
    job = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = e < size
    places = job * size + e
    is_first = tl.load(scales + 3 * job)
    rate = tl.load(scales + 3 * job + 1)
    root = tl.load(scales + 3 * job + 2)
    w = tl.load(weights + places, mask=mask, other=0.0)
    g = tl.load(gradient + places, mask=mask, other=0.0)
    if DECOUPLED:
        w *= 1.0 - lr * decay
    else:
        g += decay * w
    # State of an earlier job, or uninitialised memory, does not enter the sums.
    m = tl.where(is_first > 0.0, 0.0, tl.load(first + places, mask=mask, other=0.0))
    v = tl.where(is_first > 0.0, 0.0, tl.load(second + places, mask=mask, other=0.0))
    m += (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    w -= rate * m / (tl.sqrt(v) / root + eps)
    tl.store(weights + places, w, mask=mask)
    tl.store(first + places, m, mask=mask)
    tl.store(second + places, v, mask=mask)
