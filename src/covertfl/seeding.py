"""Random streams of a run, one for each purpose and round, derived from the seed.

No generator is kept between rounds, so a resumed run draws what it would have drawn.  The
federation's draws (oracle, participation, acceptance, arrivals) never share a stream with the
learner's actions, so neither depends on the other.
"""

from __future__ import annotations

import enum

import numpy as np

LARGEST_SEED = 2**63 - 1


class Stream(enum.IntEnum):
    """The purpose of a draw; 9, 11 and 13 are retired, and no number is ever used again."""

    ORACLE = 1
    PARTICIPATION = 2
    ACCEPTANCE = 3
    ARRIVAL = 4
    ACTION = 5
    CLIENT = 6
    DECOY = 7
    INITIAL = 8
    POLICY = 10
    MOVE = 12
    ORDER = 14
    FLIP = 15
    CHOICE = 16
    LEVEL = 17


def make_generator(seed: int, stream: Stream, *index: int) -> np.random.Generator:
    """Return the generator of a stream at an index: a round, or a round and a client."""
    return np.random.default_rng(_sequence(seed, stream, index))


def draw_seed(seed: int, stream: Stream, *index: int) -> int:
    """Return a seed in 0 .. 2^63 - 1, for code that takes a number instead of a generator."""
    return make_generator_and_seed(seed, stream, *index)[1]


def make_generator_and_seed(
    seed: int, stream: Stream, *index: int
) -> tuple[np.random.Generator, int]:
    """Return both `make_generator` and `draw_seed` at one index, for half the work."""
    sequence = _sequence(seed, stream, index)
    number = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
    return np.random.default_rng(sequence), number


def _sequence(seed: int, stream: Stream, index: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(stream), *index))
