"""A test for a daily, weekly or other cycle in the oracle states of a log.

A Markov chain forgets; a cycle does not.  Given its first state and the number of moves between
every two states, every path of a chain of first order is equally probable, whatever its transition
probabilities (Whittle, 1955).  So the periodogram of the log is compared with those of shuffled
paths that have the same moves: uniform ones, from the last exits of all states, which form a
uniformly weighted tree (Wilson, 1996), and random orders of the other exits.  The p-value

    (1 + shuffled paths with a peak at least as high) / (1 + shuffled paths)

is exact for chains of first order of any length: the probability of p <= 1% is at most 1%.  A peak
is the largest power over all periods, each divided by its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray

LEVEL = 0.01
NUM_SHUFFLES = 999
# The seed of the shuffles: the same log has the same p-value.
SHUFFLE_SEED = 24
# The latest rounds that are looked at.
MOST_ROUNDS = 10_000
# Cycles that a log must hold, and rounds.
FEWEST_CYCLES, FEWEST_ROUNDS = 4, 24
# Periods in hours that are looked for if times are known, with the cycle that each belongs to.
PERIODS = {24.0: 24.0, 12.0: 24.0, 168.0: 168.0, 84.0: 168.0}
NAMES = {24.0: "a daily cycle", 168.0: "a weekly cycle"}
# Rounds are at the same time of a cycle if the mean of their phases is at least this long.
SAME_PHASE = 0.9
ROWS_AT_A_TIME = 100  # transformed at a time, to limit memory


@dataclass(frozen=True)
class CycleTest:
    """The strongest cycle of a log, and how probable one as strong is in a Markov chain.

    Parameters
    ----------
    period : of the strongest cycle, in `unit`; None if the log is too short to look for one
    unit : hours if the log has times, else rounds
    p_value : probability of a cycle at least as strong in a Markov chain; None as `period`
    """

    period: float | None
    unit: str
    p_value: float | None

    @property
    def is_found(self) -> bool:
        """Whether there is a cycle, at the 1% level."""
        return self.p_value is not None and self.p_value <= LEVEL

    @property
    def sentence(self) -> str | None:
        """A sentence for the user, None if no cycle was found."""
        if self.period is None or self.p_value is None or not self.is_found:
            return None
        name = f"a cycle of about {self.period:.3g} rounds"
        if self.unit == "hours":
            name = NAMES[self.period]
        return (
            f"The log shows {name} (p = {self.p_value:.2g}), which a Markov chain does not have.  "
            "The fitted transition matrix is the mean over the cycle: its long-run costs hold over "
            "whole cycles, and within a cycle good rounds come more often at some times and less "
            "often at others than it says.  Let runs last whole cycles, or fit the rounds of each "
            "part of the cycle on their own."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl fit --json`."""
        return {**vars(self), "found": self.is_found}


def check_cycle(
    states: IntArray,
    rounds: IntArray,
    hours: FloatArray | None,
    *,
    generator: np.random.Generator,
    num_shuffles: int = NUM_SHUFFLES,
) -> CycleTest:
    """Test the states of rounds for a cycle.

    Parameters
    ----------
    states, rounds : (T,) oracle states, 0 .. W - 1, and round numbers that increase, with gaps
    hours : (T,) when the rounds were; None to look for cycles of any number of rounds
    num_shuffles : at least 99, for a p-value of 1%
    """
    unit = "rounds" if hours is None else "hours"
    latest = rounds > rounds[-1] - MOST_ROUNDS
    states, rounds = states[latest], rounds[latest]
    if len(states) < FEWEST_ROUNDS or states.min() == states.max():
        return CycleTest(None, unit, None)
    breaks = np.flatnonzero(np.diff(rounds) != 1) + 1
    paths = [
        np.vstack([path, shuffle_moves(path, num_shuffles, generator=generator)])
        for path in np.split(states, breaks)
    ]
    values = np.hstack(paths) - states.mean()
    if hours is None:
        periods, power = _transform_rounds(values, rounds - rounds[0])
    else:
        periods, power = _transform_hours(values, hours[latest])
    if not len(periods):
        return CycleTest(None, unit, None)
    relative = power / np.maximum(power.mean(axis=0), np.finfo(np.float64).tiny)
    peaks = relative.max(axis=1)
    strongest = float(periods[int(relative[0].argmax())])
    # Equal up to rounding counts as equal.
    higher = int(np.count_nonzero(peaks[1:] >= peaks[0] * (1.0 - 1e-9)))
    return CycleTest(strongest, unit, (1 + higher) / (1 + num_shuffles))


def _transform_rounds(values: FloatArray, places: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return periods in rounds, (K,), and the power of each row of values at them, (rows, K)."""
    span = int(places[-1]) + 1
    # Twice the span: a period between two Fourier frequencies is not missed.
    waves = np.arange(2 * FEWEST_CYCLES, span + 1)
    power = np.empty((len(values), len(waves)))
    for begin in range(0, len(values), ROWS_AT_A_TIME):
        block = values[begin : begin + ROWS_AT_A_TIME]
        spread = np.zeros((len(block), span))
        spread[:, places] = block
        found = np.fft.rfft(spread, 2 * span, axis=1)[:, waves]
        power[begin : begin + ROWS_AT_A_TIME] = found.real**2 + found.imag**2
    return 2.0 * span / waves, power


def _transform_hours(values: FloatArray, hours: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return periods in hours, (K,), daily or weekly ones, and the power at them, (rows, K)."""
    span = float(hours.max() - hours.min())
    tried = {
        period: np.exp(2j * math.pi * hours / period)
        for period, cycle in PERIODS.items()
        if span >= FEWEST_CYCLES * cycle
    }
    # One round a day, always at noon, shows nothing of the other hours.
    phases = {period: wave for period, wave in tried.items() if abs(wave.mean()) < SAME_PHASE}
    if not phases:
        return np.empty(0), np.empty((len(values), 0))
    power = np.abs(values @ np.stack(list(phases.values()), axis=1)) ** 2
    return np.array([PERIODS[period] for period in phases]), power


def shuffle_moves(
    states: IntArray, count: int, *, generator: np.random.Generator
) -> npt.NDArray[np.int16]:
    """Draw paths uniformly among those with the same first state and the same moves.

    Parameters
    ----------
    states : (T,) a path through states 0 .. W - 1

    Returns
    -------
    (count, T) paths
    """
    num_states, num_moves = int(states.max()) + 1, len(states) - 1
    exits = np.empty((count, num_moves), dtype=np.int16)
    last = _draw_last_exits(states, num_states, count, generator=generator)
    begins = np.concatenate([[0], np.cumsum(np.bincount(states[:-1], minlength=num_states))])
    for state in range(num_states):
        followers = np.sort(states[1:][states[:-1] == state])
        block = exits[:, begins[state] : begins[state + 1]]
        if state == states[-1] and len(followers):
            block[:] = generator.permuted(np.tile(followers, (count, 1)), axis=1)
        elif len(followers):
            for end in np.unique(last[:, state]):
                rows = np.flatnonzero(last[:, state] == end)
                others = np.delete(followers, np.searchsorted(followers, end))
                block[rows, :-1] = generator.permuted(np.tile(others, (len(rows), 1)), axis=1)
                block[rows, -1] = end
    return _walk(int(states[0]), exits, begins[:-1])


def _draw_last_exits(
    states: IntArray, num_states: int, count: int, *, generator: np.random.Generator
) -> IntArray:
    """Draw the last exit of each state, (count, W): a tree towards the path's last state.

    A tree has a probability proportional to the product of its moves' counts: exits that form a
    cycle are drawn again until none does (Wilson, 1996).
    """
    root = int(states[-1])
    leaves = states[:-1] != states[1:]
    followers = [states[1:][leaves & (states[:-1] == state)] for state in range(num_states)]
    # Roots and states that do not occur lead to themselves, and are left alone.
    exits = np.tile(np.arange(num_states), (count, 1))
    drawn = [state for state in range(num_states) if state != root and len(followers[state])]
    again = np.zeros((count, num_states), dtype=np.bool_)
    again[:, drawn] = True
    while again.any():
        for state in drawn:
            rows = np.flatnonzero(again[:, state])
            exits[rows, state] = generator.choice(followers[state], len(rows))
        place, own = exits.copy(), np.arange(num_states)
        again[:] = False
        for _ in range(num_states):
            again[:, drawn] |= (place == own)[:, drawn]
            place = np.take_along_axis(exits, place, axis=1)
    return exits


def _walk(first: int, exits: npt.NDArray[np.int16], begins: IntArray) -> npt.NDArray[np.int16]:
    """Return the paths from `first` that use the exits of each state in their order."""
    count, num_moves = exits.shape
    paths = np.empty((num_moves + 1, count), dtype=np.int16)
    paths[0] = first
    flat, rows = exits.ravel(), np.arange(count)
    following = (begins + rows[:, np.newaxis] * num_moves).ravel()
    here = len(begins) * rows + first
    for move in range(1, num_moves + 1):
        at = following[here]
        following[here] = at + 1
        paths[move] = flat[at]
        here = len(begins) * rows + paths[move]
    return paths.T
