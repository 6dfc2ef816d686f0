"""What a decoy is: where it begins and how it moves after each of its queries that is accepted.

A decoy keeps nothing between rounds but its weights, so that a run can be resumed from them.  Its
training is done by local jobs, as the clients' is, and the engine carries them out together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector


@dataclass(frozen=True, eq=False)
class DecoyView:
    """What a decoy may look at when it moves.

    Parameters
    ----------
    weights : its own, as they were just sent
    learner : the true weights of this round
    replies : (k, P) valid replies to its query, weights or gradients; empty unless it asks for them
    examples : (k,) examples behind each reply
    moves : how often it has moved
    predict : raw outputs of the model with some weights
    """

    weights: Vector
    learner: Vector
    replies: npt.NDArray[np.float32]
    examples: npt.NDArray[np.int64]
    moves: int
    predict: Callable[[Vector, npt.NDArray[np.float32]], npt.NDArray[np.float32]]


class Decoy(Protocol):
    """How a decoy trajectory moves."""

    needs_replies: bool

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Jobs whose results the move needs; none where it needs no training."""
        ...

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """The weights after the move."""
        ...
