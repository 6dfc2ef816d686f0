"""What is computed once for all eavesdroppers of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from covertfl.eavesdroppers import memory
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.memory import Memory
from covertfl.kernels.weights import Vector
from tests.support.seen_queries import vector


def count_computed(kept: Memory, sent: list[tuple[str, int, Vector]]) -> int:
    computed = []
    for kind, round_number, weights in sent:

        def compute(weights: Vector = weights) -> Vector:
            computed.append(weights)
            return 2 * weights

        assert np.array_equal(kept.recall(kind, round_number, weights, compute), 2 * weights)
    return len(computed)


def test_an_array_is_computed_once_for_each_round_and_kind() -> None:
    one, other = vector(1.0), vector(1.0)
    sent = [("reply", 1, one), ("reply", 1, one), ("reply", 2, one), ("public", 1, one)]
    assert count_computed(Memory(), [*sent, ("reply", 1, other), *sent]) == 4


def test_what_does_not_fit_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_BYTES", 8)
    sent = [("reply", 1, vector(1.0)), ("reply", 2, vector(2.0))]
    assert count_computed(Memory(), sent * 3) == 1 + 3


def test_other_means_have_a_memory_of_their_own() -> None:
    means = Means()
    assert dataclasses.replace(means, seed=1).memory is not means.memory
