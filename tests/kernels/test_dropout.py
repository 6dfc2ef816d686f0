"""Hashed dropout masks: their rate, their independence, their keys."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.dropout import derive_dropout_key, derive_dropout_keys
from tests.support.tensors import dropout_mask


def test_masks() -> None:
    mask = dropout_mask(5, 2, 1, (400, 100), 0.1)
    assert mask.dtype == np.float32
    assert set(np.unique(mask)) == {np.float32(0.0), np.float32(1.0 / 0.9)}
    # 40,000 draws: the standard deviation of the share is 0.0015.
    assert abs(np.mean(mask == 0.0) - 0.1) < 0.0075
    assert not dropout_mask(5, 2, 1, (10, 10), 1.0).any()
    assert (dropout_mask(5, 2, 1, (10, 10), 0.0) == 1.0).all()
    with pytest.raises(InvalidInput, match=r"between 0 and 1, got 1\.5"):
        dropout_mask(5, 2, 1, (1,), 1.5)


def test_masks_of_different_places_are_unrelated() -> None:
    first = dropout_mask(5, 2, 1, (40_000,), 0.5) > 0.0
    for seed, step, layer in [(6, 2, 1), (5, 3, 1), (5, 2, 2), (2**63 - 1, 2, 1)]:
        other = dropout_mask(seed, step, layer, (40_000,), 0.5) > 0.0
        assert abs(np.mean(first == other) - 0.5) < 0.0125
    shifted = np.mean(first[1:] == first[:-1])
    assert abs(shifted - 0.5) < 0.0125


def test_keys_of_many_steps_are_those_of_each() -> None:
    seeds = np.array([0, 5, 2**63 - 1], dtype=np.uint64)
    steps = np.array([0, 7, 2**31], dtype=np.uint64)
    keys = derive_dropout_keys(seeds, steps)
    expected = [
        derive_dropout_key(int(seed), int(step)) for seed, step in zip(seeds, steps, strict=True)
    ]
    assert keys.tolist() == [list(key) for key in expected]
