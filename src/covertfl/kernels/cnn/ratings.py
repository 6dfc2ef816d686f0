"""Accuracies of weights that are being trained, computed on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from covertfl.arrays import FloatArray

# Number of weights that are rated together, to keep the device busy.
_ENOUGH = 256

# Returns the (K,) ratings of stacked weights (K, padded), those of the chains of these numbers.
Rate = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


@dataclass(frozen=True, eq=False)
class RatedChain:
    """Accuracies along a chain of jobs."""

    coarse: FloatArray  # (k,) at its stops, on few examples
    best: float  # at the first of its best stops, on more examples
    last: float  # at its end, on more examples


class ChainRatings:
    """Ratings of chains at their stops, computed for many weights at once.

    Attribute `best` holds the weights of each chain's first best stop so far.

    Parameters
    ----------
    rate : rates the weights of some chains
    weights : (J, padded) initial weights
    stops : for each chain, the steps after which it is rated, rising, at least one
    """

    def __init__(self, rate: Rate, weights: torch.Tensor, stops: Sequence[Sequence[int]]) -> None:
        self.best = weights.clone()
        self._rate, self._stops = rate, stops
        self._most = torch.full((len(weights),), -1.0, dtype=torch.float64, device=weights.device)
        self._stopping: dict[int, list[int]] = {}
        for number, steps in enumerate(stops):
            for step in dict.fromkeys(steps):
                self._stopping.setdefault(step, []).append(number)
        self._numbers: list[int] = []
        self._waiting: list[torch.Tensor] = []
        self._found: list[tuple[list[int], torch.Tensor]] = []

    def note(self, weights: torch.Tensor, step: int) -> None:
        """Take note of the weights of the chains that stop after a step."""
        numbers = self._stopping.get(step, [])
        if not numbers:
            return
        # A chain must not wait twice, because each rating is compared with the best before it.
        if not set(numbers).isdisjoint(self._numbers):
            self.settle()
        self._waiting.append(weights[torch.tensor(numbers, device=weights.device)])
        self._numbers += numbers
        if len(self._numbers) >= _ENOUGH:
            self.settle()

    def settle(self) -> None:
        """Rate the weights that still wait."""
        if not self._numbers:
            return
        stack = torch.cat(self._waiting)
        ratings = self._rate(stack, self._numbers)
        places = torch.tensor(self._numbers, device=stack.device)
        is_better = ratings > self._most[places]
        self._most[places] = torch.maximum(ratings, self._most[places])
        self.best[places] = torch.where(is_better[:, None], stack, self.best[places])
        self._found.append((self._numbers, ratings))
        self._numbers, self._waiting = [], []

    def collect(self, best: torch.Tensor, last: torch.Tensor) -> list[RatedChain]:
        """Return all ratings, given the (J,) ratings of `best` and of the end on more examples."""
        found: list[list[float]] = [[] for _ in self._stops]
        for numbers, ratings in self._found:
            for number, rating in zip(numbers, ratings.tolist(), strict=True):
                found[number].append(rating)
        chains = []
        for steps, rated, of_best, of_last in zip(
            self._stops, found, best.tolist(), last.tolist(), strict=True
        ):
            by_step = dict(zip(dict.fromkeys(steps), rated, strict=True))
            chains.append(RatedChain(np.array([by_step[step] for step in steps]), of_best, of_last))
        return chains
