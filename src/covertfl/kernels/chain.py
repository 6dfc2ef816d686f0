"""Chains of moves, which a kernel that works on many weights at once carries out by itself.

A move is a group of jobs that start from the same weights; it leads to the mean of their results,
weighted by their rows.  A client's training is a move of one job, a round of FedAvg one of several.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from covertfl.arrays import FloatArray
from covertfl.kernels.job import LocalJob

Moves = Sequence[Sequence[LocalJob]]


@dataclass(frozen=True)
class Stops:
    """After how many moves the weights of a chain are rated.

    Parameters
    ----------
    coarse : on few examples, rising, at least one
    full : on more examples, beside the first of the best among `coarse`
    """

    coarse: Sequence[int]
    full: Collection[int] = ()


@dataclass(frozen=True, eq=False)
class RatedChain:
    """Accuracies along a chain.

    Parameters
    ----------
    coarse : (k,) at its stops, on few examples
    full : on more examples, by number of moves
    is_finite : whether its last weights are, and all outputs that were rated
    """

    coarse: FloatArray
    full: Mapping[int, float]
    is_finite: bool
