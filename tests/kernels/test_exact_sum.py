"""Sums are exact, and so do not depend on the order in which vectors come."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from covertfl.kernels.exact_sum import CHUNK, DIGIT, ExactSum
from covertfl.kernels.job import Float32Array, Vector

pytestmark = pytest.mark.slow

Terms = list[tuple[float, int]]


def find_mean(values: Float32Array, counts: list[int]) -> Vector:
    """Add (k, P) vectors in their order."""
    total = ExactSum(values.shape[1])
    for vector, count in zip(values, counts, strict=True):
        total.add(vector, count)
    assert total.total == sum(counts)
    return total.mean()


def expect_mean(values: Float32Array, counts: list[int]) -> Vector:
    """The same by fractions: the nearest double of the sum, divided and rounded."""
    sums = [
        float(sum(Fraction(float(value)) * count for value, count in zip(row, counts, strict=True)))
        for row in values.T
    ]
    return (np.array(sums) / float(sum(counts))).astype(np.float32) + np.float32(0.0)


any_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Numbers of all sizes are likelier than hypothesis's own: their sums need many bits.
scaled = st.builds(
    lambda part, power: float(np.float32(math.ldexp(part, power))),
    st.floats(-1.0, 1.0, width=32),
    st.integers(-149, 127),
)
terms = st.lists(st.tuples(any_float | scaled, st.integers(1, 2**31)), min_size=1, max_size=24)


@settings(max_examples=300)
@given(terms, st.randoms(use_true_random=False))
@example([(1e38, 3), (1e-45, 1), (-1e38, 3)], None)
@example([(3e38, 2**31), (1.0, 1), (1e-30, 1), (1e-45, 7), (-3e38, 2**31), (-1.0, 1)], None)
def test_the_mean_is_that_of_fractions_in_any_order(given_terms: Terms, shuffler: object) -> None:
    orders = [given_terms, given_terms[::-1], sorted(given_terms)]
    if shuffler is not None:
        orders.append(sorted(given_terms, key=lambda _: shuffler.random()))  # type: ignore[attr-defined]
    for order in orders:
        values = np.array([[value, -value] for value, _ in order], dtype=np.float32)
        counts = [count for _, count in order]
        assert find_mean(values, counts).tobytes() == expect_mean(values, counts).tobytes()


@given(terms)
def test_what_is_added_and_taken_off_again_leaves_nothing(given_terms: Terms) -> None:
    """Only the first vector is left, however small it is beside the others."""
    smallest = float(np.float32(1e-45))
    order = [(smallest, 1), *given_terms, *((-value, count) for value, count in given_terms)]
    counts = [count for _, count in order]
    total = ExactSum(1)
    for value, count in order:
        total.add(np.array([value], dtype=np.float32), count)
    expected = np.float32(smallest / sum(counts))
    assert total.mean()[0] == expected


def test_many_vectors_in_any_order() -> None:
    """Also where chunks end, with a few coordinates that need wide numbers."""
    generator = np.random.default_rng(3)
    size = 3 * CHUNK + 7
    values = generator.normal(size=(40, size)).astype(np.float32)
    odd = np.array([0, 5, CHUNK - 1, CHUNK, 3 * CHUNK - 1, 3 * CHUNK, size - 1])
    values[:, odd] *= np.exp2(generator.integers(-120, 90, size=(40, len(odd)))).astype(np.float32)
    counts = generator.integers(1, 2**20, size=40).tolist()
    mean = find_mean(values, counts)
    np.testing.assert_array_equal(mean[odd], expect_mean(values[:, odd], counts))
    np.testing.assert_array_equal(mean[7:99], expect_mean(values[:, 7:99], counts))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(40)
        shuffled = find_mean(values[order], [counts[place] for place in order])
        assert shuffled.tobytes() == mean.tobytes()
    total = ExactSum(size)
    for cuts in ([1, 9, CHUNK - 1, CHUNK], [2 * CHUNK], [0, 700, 2 * CHUNK + 3, size]):
        total.clear()
        for place, (vector, count) in enumerate(zip(values, counts, strict=True)):
            total.add_parts(np.split(vector, cuts[place % 2 :]), count)
        assert total.mean().tobytes() == mean.tobytes()


def test_numbers_at_odd_addresses_are_added() -> None:
    values = np.arange(2 * CHUNK, dtype=np.float32)
    shifted = np.frombuffer(b"." + values.tobytes(), np.float32, offset=1)
    total = ExactSum(2 * CHUNK)
    total.add_parts([values[:3], shifted[3:]], 2)
    np.testing.assert_array_equal(total.mean(), values)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_thousand_vectors(seed: int) -> None:
    generator = np.random.default_rng(seed)
    powers = np.exp2(generator.integers(-60, 60, size=(100_000, 3)))
    values = (generator.normal(size=(100_000, 3)) * powers).astype(np.float32)
    counts = generator.integers(1, 1000, size=100_000).tolist()
    mean = find_mean(values, counts)
    sums = [
        math.fsum(float(value) * count for value, count in zip(row, counts, strict=True))
        for row in values.T
    ]
    np.testing.assert_array_equal(mean, (np.array(sums) / sum(counts)).astype(np.float32))
    assert find_mean(values[::-1], counts[::-1]).tobytes() == mean.tobytes()


@given(any_float, st.lists(st.integers(1, 2**62), min_size=1, max_size=9))
@example(1e-45, [2**DIGIT, 2**DIGIT - 1, 2**DIGIT + 1, 2**60 - 1])
def test_the_mean_of_equal_numbers_is_that_number(value: float, counts: list[int]) -> None:
    values = np.full((len(counts), 2), value, dtype=np.float32)
    mean = find_mean(values, counts)
    assert mean.tolist() == values[0].tolist()
    assert not np.signbit(mean[mean == 0.0]).any()


def test_a_zero_has_no_sign() -> None:
    for values in ([-0.0, -0.0], [3.0, -1.0], [-1e-45, 0.0]):
        mean = find_mean(np.array(values, dtype=np.float32)[:, np.newaxis], [1, 3])
        assert mean.tolist() == [0.0]
        assert not np.signbit(mean).any()


def test_vectors_of_any_stride_may_come() -> None:
    wide = np.arange(12, dtype=np.float32)
    total = ExactSum(4)
    total.add(wide[::3], 2)
    np.testing.assert_array_equal(total.mean(), wide[::3])


def test_nothing_has_no_mean_and_no_other_length_fits() -> None:
    with pytest.raises(ZeroDivisionError):
        ExactSum(3).mean()
    with pytest.raises(ValueError, match="must have 3 numbers"):
        ExactSum(3).add(np.zeros(4, dtype=np.float32), 1)


def test_no_vector_is_like_an_empty_one() -> None:
    total = ExactSum(0)
    total.add(np.empty(0, dtype=np.float32), 5)
    assert total.mean().shape == (0,)
