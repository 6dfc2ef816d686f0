"""What eavesdroppers that look at moves share."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.eavesdroppers.moves import (
    Tally,
    find_last_bias,
    find_last_layer,
    find_part,
    measure_cosine,
)
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout

LAYOUT = Layout(("a.weight", "a.bias", "b.weight", "b.bias"), ((2, 3), (2,), (1, 2), (1,)))


def test_a_tally_describes_each_trajectory() -> None:
    tally = Tally()
    for value in (1.0, 2.0, 4.0, 5.0, 6.0, 9.0):
        tally.note("length", 0, value)
    tally.note("length", 2, 7.0)
    assert tally.average("length", 3) == pytest.approx([4.5, 0.0, 7.0])
    assert tally.average("length", 3, first=2) == pytest.approx([1.5, 0.0, 7.0])
    assert tally.last("length", 3) == pytest.approx([9.0, 0.0, 7.0])
    assert tally.trend("length", 3) == pytest.approx([7.5 - 1.5, 0.0, 0.0])
    assert tally.spread("length", 3)[0] == pytest.approx(np.std([1, 2, 4, 5, 6, 9]))


def test_cosines() -> None:
    assert measure_cosine(np.array([1.0, 0.0]), np.array([3.0, 4.0])) == pytest.approx(0.6)
    assert measure_cosine(np.zeros(2), np.ones(2)) == 0.0


def test_parts_of_a_model() -> None:
    assert find_part(LAYOUT, "b.weight") == slice(8, 10)
    assert find_last_layer(LAYOUT) == slice(8, 11)
    assert find_last_bias(LAYOUT) == slice(10, 11)
    assert find_last_bias(Layout(("weight",), ((2, 3),))) == slice(6, 6)
    with pytest.raises(InvalidInput, match=r"one of a\.weight, .*, got 'c'"):
        find_part(LAYOUT, "c")
