"""Streams of random numbers by seed, purpose and place."""

from __future__ import annotations

import numpy as np
from scipy import stats

from covertfl.seeding import Stream, draw_seed, make_generator, make_generator_and_seed


def test_a_place_always_draws_the_same() -> None:
    for stream in Stream:
        first = make_generator(7, stream, 3, 1).random(5)
        np.testing.assert_array_equal(first, make_generator(7, stream, 3, 1).random(5))
        assert draw_seed(7, stream, 3, 1) == draw_seed(7, stream, 3, 1)
        generator, seed = make_generator_and_seed(7, stream, 3, 1)
        np.testing.assert_array_equal(first, generator.random(5))
        assert seed == draw_seed(7, stream, 3, 1)


def test_no_two_places_draw_the_same() -> None:
    places = [(), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]
    draws = [
        (float(make_generator(seed, stream, *place).random()), draw_seed(seed, stream, *place))
        for seed in (0, 1, 2**40, 2**63 - 1)
        for stream in Stream
        for place in places
    ]
    assert len({draw for draw, _ in draws}) == len(draws)
    assert len({seed for _, seed in draws}) == len(draws)


def test_streams_have_numbers_that_never_change() -> None:
    # Another number would change every run that was ever made with a seed.
    assert {stream.name: int(stream) for stream in Stream} == {
        "ORACLE": 1,
        "PARTICIPATION": 2,
        "ACCEPTANCE": 3,
        "ARRIVAL": 4,
        "ACTION": 5,
        "CLIENT": 6,
        "DECOY": 7,
        "INITIAL": 8,
        "POLICY": 10,
        "MOVE": 12,
        "ORDER": 14,
        "FLIP": 15,
        "CHOICE": 16,
        "LEVEL": 17,
    }


def test_seeds_fit_into_63_bits_and_fill_them() -> None:
    seeds = np.array([draw_seed(0, Stream.CLIENT, number) for number in range(2000)])
    assert seeds.min() >= 0
    assert stats.kstest(seeds / 2.0**63, "uniform").pvalue > 1e-3


def test_first_draws_of_neighbouring_places_are_independent() -> None:
    rounds, seeds = 200, 30
    draws = np.array(
        [
            [make_generator(seed, Stream.ORACLE, number).random() for number in range(rounds)]
            for seed in range(seeds)
        ]
    )
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-3
    bound = 4.0 / np.sqrt(draws.size)
    assert abs(np.corrcoef(draws[:, 1:].ravel(), draws[:, :-1].ravel())[0, 1]) < bound
    assert abs(np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]) < bound
