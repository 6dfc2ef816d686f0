"""Every draw of a run has a stream of its own, found from the seed, the purpose and the round.

Nothing needs to be remembered between rounds, so a run that is resumed draws what it would have
drawn.  What belongs to the federation (oracle, participation, acceptance, arrivals) never shares a
stream with what belongs to the learner's choice, so that neither depends on the other.
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """What a draw is for."""

    ORACLE = 1
    PARTICIPATION = 2
    ACCEPTANCE = 3
    ARRIVAL = 4
    ACTION = 5
    CLIENT = 6
    DECOY = 7
    INITIAL = 8
    RESPONSE = 9
    POLICY = 10
    FINAL = 11


def make_generator(seed: int, stream: Stream, *place: int) -> np.random.Generator:
    """The generator of a stream at a place, such as a round, or a round and a client."""
    return np.random.default_rng(_sequence(seed, stream, place))


def draw_seed(seed: int, stream: Stream, *place: int) -> int:
    """A seed in 0 .. 2^63 - 1 for something that takes a number instead of a generator."""
    return _to_seed(_sequence(seed, stream, place))


def make_generator_and_seed(
    seed: int, stream: Stream, *place: int
) -> tuple[np.random.Generator, int]:
    """What `make_generator` and `draw_seed` give at one place, for half the work."""
    sequence = _sequence(seed, stream, place)
    return np.random.default_rng(sequence), _to_seed(sequence)


def _to_seed(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, stream: Stream, place: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(stream), *place))
