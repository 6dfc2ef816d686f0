"""Divisions of rows: disjoint, complete, in the requested shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.arrays import IntArray
from covertfl.errors import InvalidInput
from covertfl.tasks.data import (
    FEWEST_ROWS,
    Division,
    PublicSet,
    apportion,
    count_validation,
    divide_rows,
    reserve_any,
    share_good_classes,
    split_dirichlet,
    split_iid,
)


def divide(labels: IntArray, public: PublicSet, seed: int = 0, clients: int = 4) -> Division:
    return divide_rows(
        labels,
        clients=clients,
        concentration=None,
        validation_size=60,
        public=public,
        generator=np.random.default_rng(seed),
    )


def draw_labels(rows: int, classes: int, seed: int = 1) -> IntArray:
    return np.random.default_rng(seed).integers(classes, size=rows)


@settings(deadline=None, max_examples=60)
@given(
    clients=st.integers(1, 12),
    rows=st.integers(100, 600),
    classes=st.integers(1, 6),
    concentration=st.one_of(st.none(), st.floats(1e-3, 1e3)),
    seed=st.integers(0, 2**32),
)
def test_splits_cover_every_row_once(
    clients: int, rows: int, classes: int, concentration: float | None, seed: int
) -> None:
    labels = draw_labels(rows, classes, seed)
    numbers = 3 * np.arange(rows)
    generator = np.random.default_rng(seed)
    if concentration is None:
        parts = split_iid(numbers, clients, generator=generator)
    else:
        parts = split_dirichlet(numbers, labels, clients, concentration, generator=generator)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= FEWEST_ROWS
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), numbers)


def test_iid_parts_are_alike_in_size() -> None:
    parts = split_iid(np.arange(103), 5, generator=np.random.default_rng(0))
    assert sorted(len(part) for part in parts) == [20, 20, 21, 21, 21]


def test_dirichlet_shares_have_the_variance_of_the_law() -> None:
    """A share of Dir(a, ..., a) over K has mean 1/K and variance (K - 1) / (K^2 (K a + 1))."""
    K, a = 5, 2.0
    labels = np.zeros(10_000, dtype=np.int64)
    sizes = [
        [
            len(part)
            for part in split_dirichlet(
                np.arange(10_000), labels, K, a, generator=np.random.default_rng(seed)
            )
        ]
        for seed in range(400)
    ]
    shares = np.array(sizes) / 10_000
    assert shares.var() == pytest.approx((K - 1) / (K**2 * (K * a + 1)), rel=0.1)


def test_small_concentration_makes_clients_differ_more() -> None:
    labels = draw_labels(4000, 10)

    def spread(concentration: float) -> float:
        parts = split_dirichlet(
            np.arange(4000), labels, 8, concentration, generator=np.random.default_rng(3)
        )
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        return float(np.std(shares, axis=0).mean())

    assert spread(0.1) > 3 * spread(10.0)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="20 clients need at least 160 examples together, got 159"
    ):
        split_iid(np.arange(159), 20, generator=np.random.default_rng(0))


@given(
    size=st.integers(0, 1000),
    weights=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(lambda w: sum(w) > 0),
)
def test_apportioned_numbers_sum_and_round(size: int, weights: list[int]) -> None:
    shares = np.array(weights) / sum(weights)
    counts = apportion(size, shares)
    assert counts.sum() == size
    assert np.all(np.abs(counts - size * shares) < 1.0 + 1e-6)


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ([100, 100], 60, [30, 30]),
        ([100, 40], 60, [20, 20]),  # at most half of the rarest
        ([100, 100, 100], 0, [0, 0, 0]),
        ([90, 10], 50, [45, 5]),  # too rare to balance: own shares
    ],
)
def test_validation_is_balanced_where_it_can_be(
    counts: list[int], size: int, expected: list[int]
) -> None:
    assert count_validation(np.array(counts), size).tolist() == expected


def test_division_keeps_rows_apart_and_loses_none() -> None:
    labels = draw_labels(1000, 2)
    division = divide(labels, PublicSet(1.0, (0.9, 0.1)))
    held = np.concatenate([*division.clients, division.public, division.validation])
    np.testing.assert_array_equal(np.sort(held), np.arange(1000))
    assert np.bincount(labels[division.validation]).tolist() == [30, 30]
    size = (1000 - 60) / 5  # four clients and a public set of one client's size
    assert [len(part) for part in division.clients] == [188] * 4
    assert np.bincount(labels[division.public]).tolist() == [round(0.9 * size), round(0.1 * size)]


def test_seed_decides_the_division() -> None:
    labels = draw_labels(800, 2)
    public = PublicSet(1.0, (0.9, 0.1))
    first, again, other = (divide(labels, public, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.public, again.public)
    for part, same in zip(first.clients, again.clients, strict=True):
        np.testing.assert_array_equal(part, same)
    assert first.validation.tolist() != other.validation.tolist()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.5])
@pytest.mark.parametrize("size", [0.1, 0.4, 1.0])
def test_reserve_keeps_clients_the_same_for_two_classes(share: float, size: float) -> None:
    labels = draw_labels(3000, 2)
    reserve = reserve_any(np.arange(2))
    reference = divide(labels, PublicSet(1.0, (0.9, 0.1), reserve))
    other = divide(labels, PublicSet(size, (1.0 - share, share), reserve))
    for part, same in zip(reference.clients, other.clients, strict=True):
        np.testing.assert_array_equal(part, same)
    np.testing.assert_array_equal(reference.validation, other.validation)
    assert not np.intersect1d(np.concatenate(other.clients), other.public).size
    of_client = np.mean([len(part) for part in other.clients])
    assert len(other.public) == pytest.approx(size * of_client, abs=2)


@pytest.mark.parametrize(
    ("good", "share"), [(2, 0.99), (5, 0.9), (8, 0.99), (1, 1.0), (None, None)]
)
def test_reserve_keeps_clients_the_same_for_many_classes(
    good: int | None, share: float | None
) -> None:
    labels = draw_labels(20_000, 10)
    counts = np.bincount(labels)
    order = np.random.default_rng(2).permutation(10)
    even = share_good_classes(counts, order, None, None)
    reference = divide(labels, PublicSet(1.0, even, reserve_any(order)), clients=20)
    shares = share_good_classes(counts, order, good, share)
    other = divide(labels, PublicSet(1.0, shares, reserve_any(order)), clients=20)
    for part, same in zip(reference.clients, other.clients, strict=True):
        np.testing.assert_array_equal(part, same)


def test_smaller_public_set_is_part_of_the_larger() -> None:
    labels = draw_labels(3000, 2)
    reserve = reserve_any(np.arange(2))
    large = divide(labels, PublicSet(1.0, (0.8, 0.2), reserve))
    small = divide(labels, PublicSet(0.25, (0.8, 0.2), reserve))
    assert set(small.public.tolist()) < set(large.public.tolist())


def test_good_classes_share_what_they_are_given() -> None:
    counts, order = np.array([10, 20, 30, 40]), np.array([2, 0, 1, 3])
    assert share_good_classes(counts, order, 2, 0.9) == pytest.approx((0.45, 0.05, 0.45, 0.05))
    assert share_good_classes(counts, order, 2, None) == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert share_good_classes(counts, order, 4, 0.5) == pytest.approx((0.25,) * 4)
    with pytest.raises(InvalidInput, match=r"public_classes must lie in 1\.\.4.*got 5"):
        share_good_classes(counts, order, 5, 0.9)


def test_public_set_that_would_empty_a_class_is_refused() -> None:
    labels = (np.arange(1000) < 80).astype(np.int64)
    with pytest.raises(InvalidInput, match="rows of class 1, but at most half of the"):
        divide(labels, PublicSet(1.0, (0.5, 0.5)))
