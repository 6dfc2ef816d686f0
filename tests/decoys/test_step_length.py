"""Lengths of plausible true moves."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.decoys.step_length import (
    AGREED_DECAY,
    count_equivalent_clients,
    estimate_length,
    limit_length,
    measure_noise,
    scale_length,
)


def test_length_puts_both_parts_together() -> None:
    assert estimate_length(3.0, 4.0, 0) == 5.0
    assert estimate_length(2.0, 0.0, 3) == pytest.approx(2.0 * AGREED_DECAY**3)
    assert estimate_length(1.0, 0.5, 10_000) == pytest.approx(0.5)


def test_noise_of_a_mean() -> None:
    generator = np.random.default_rng(0)
    examples = np.array([40, 80, 120, 40, 200])
    lengths = []
    for _ in range(200):
        replies = (5.0 + generator.standard_normal((5, 400))).astype(np.float32)
        lengths.append(measure_noise(replies, examples))
    shares = examples / examples.sum()
    # Each gap to the mean has the variance 1 - 2 s_i + sum(s^2) in every coordinate.
    gaps = 400 * (1.0 - 2.0 * shares + np.sum(shares**2))
    assert np.mean(lengths) == pytest.approx(np.sqrt(np.sum(shares**2 * gaps)), rel=0.01)


def test_one_reply_shows_no_noise() -> None:
    assert measure_noise(np.ones((1, 3), dtype=np.float32), np.array([40])) == 0.0


def test_limit_and_scale() -> None:
    step = np.array([3.0, 4.0])
    assert limit_length(step, 2.5).tolist() == [1.5, 2.0]
    assert limit_length(step, 6.0).tolist() == [3.0, 4.0]
    assert scale_length(step, 10.0).tolist() == [6.0, 8.0]
    assert scale_length(np.zeros(2), 1.0).tolist() == [0.0, 0.0]


def test_equivalent_clients_match_the_variance_of_a_weighted_mean() -> None:
    batches = np.random.default_rng(0).integers(0, 39, size=(4_000, 20)).astype(float)
    noise = np.mean(np.sum(batches**2, axis=1) / batches.sum(axis=1) ** 2)
    assert count_equivalent_clients(20) == pytest.approx(1.0 / noise, rel=0.06)
    assert count_equivalent_clients(1) == 1.0
