"""Dropout masks that are hashed from (seed, step, layer, element) instead of drawn from a stream.

Every kernel, and a plain PyTorch loop, can therefore use the same masks, whatever the order of its
work.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Float32Array

WORD = 0xFFFFFFFF
LAYER_STRIDE = 0x9E3779B9
_LONG = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def derive_dropout_key(seed: int, step: int) -> tuple[int, int]:
    """Return the two 32-bit words from which the masks of one step of a job are hashed."""
    # NumPy integers would overflow where Python's do not.
    key = _mix_long((_mix_long(int(seed)) + (step + 1) * _GOLDEN) & _LONG)
    return key & WORD, key >> 32


def derive_dropout_keys(
    seeds: npt.NDArray[np.uint64], steps: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint32]:
    """Return the (..., 2) words of `derive_dropout_key` for arrays of seeds and steps."""
    keys = _mix_longs(_mix_longs(seeds) + (steps + np.uint64(1)) * np.uint64(_GOLDEN))
    return np.stack([keys & np.uint64(WORD), keys >> np.uint64(32)], axis=-1).astype(np.uint32)


def find_dropout_threshold(rate: float) -> int:
    """Return the threshold, at most 2^32, below which an element's hash drops it."""
    if not 0.0 <= rate <= 1.0:
        raise InvalidInput(f"a dropout rate must lie between 0 and 1, got {rate:g}")
    return math.floor(rate * 2.0**32)


def hash_dropout_mask(
    low: int, high: int, layer: int, shape: tuple[int, ...], rate: float
) -> Float32Array:
    """Return the factors of a layer's inputs: 0 if dropped, else 1 / (1 - rate).

    Parameters
    ----------
    low, high : key of the job and its batch (`derive_dropout_key`)
    layer : number of the dropout layer in the forward pass, from 0
    shape : of the layer's inputs, batch first
    """
    elements = np.arange(math.prod(shape), dtype=np.uint32) + np.uint32(low)
    layer_word = np.uint32((high + layer * LAYER_STRIDE) & WORD)
    kept = _mix_words(_mix_words(elements) ^ layer_word) >= find_dropout_threshold(rate)
    scale = np.float32(1.0 / (1.0 - rate)) if rate < 1.0 else np.float32(0.0)
    return np.where(kept, scale, np.float32(0.0)).reshape(shape)


def _mix_long(value: int) -> int:
    """Return the splitmix64 finaliser of a 64-bit integer."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _LONG
    return value ^ (value >> 31)


def _mix_longs(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the splitmix64 finaliser of 64-bit integers."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _mix_words(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return a bijective hash of 32-bit words."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> np.uint32(15))) * np.uint32(0x846CA68B)
    return words ^ (words >> np.uint32(16))
