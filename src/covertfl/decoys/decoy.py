"""The decoy protocol: how a decoy trajectory moves after its queries (equation (5) of the paper).

A decoy has no state besides its weights, so that a run can be resumed from them.  Its training
consists of local jobs, like that of the clients, and the engine runs all of them together: `plan`
returns the jobs, and `move` turns their results into new weights.  A decoy that needs the clients'
replies sets `needs_replies`; they are then in the view.

To add a decoy, write its module and enter it in `registry`:

    class StillDecoy:
        needs_replies = False

        def plan(self, view, *, generator):
            return []

        def move(self, view, results, *, generator):
            return view.weights
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from covertfl.arrays import IntArray
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Float32Array, Vector


@dataclass(frozen=True, eq=False)
class DecoyView:
    """What a decoy may use when it moves.

    Parameters
    ----------
    weights : (P,) its own, as they were just sent
    learner : (P,) the true weights of this round
    replies : (k, P) valid replies to its query, weights or gradients; empty unless `needs_replies`
    examples : (k,) number of examples behind each reply
    moves : number of its moves so far
    predict : returns (n, outputs) raw outputs of the model for given weights and features
    is_steady : whether somebody measures how long a plan and its jobs take, so that their amount
        must not depend on weights or moves; a plan may then have further jobs after its own, whose
        results are discarded
    """

    weights: Vector
    learner: Vector
    replies: Float32Array
    examples: IntArray
    moves: int
    predict: Callable[[Vector, Float32Array], Float32Array]
    is_steady: bool = False


class Decoy(Protocol):
    """Rule by which a decoy trajectory moves."""

    needs_replies: bool

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return the jobs whose results the move needs; none if it needs no training."""
        ...

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the move."""
        ...
