"""Pooling and dropout of stacked convolutional networks on a GPU, in Triton."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


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
