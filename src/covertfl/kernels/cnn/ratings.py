"""Accuracies of weights that are being trained, computed on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from covertfl.kernels.chain import RatedChain, Stops
from covertfl.kernels.cnn.memory import Send

Rater = Callable[[torch.Tensor], torch.Tensor]  # (K,) ratings of stacked weights (K, padded)

# Number of weights that are rated together, to keep the device busy.
_ENOUGH = 64


class ChainRatings:
    """Ratings of chains at their stops, computed for many weights at once.

    Parameters
    ----------
    weights : (C, padded) initial weights
    send : copies an array to the device
    """

    def __init__(
        self, rate: Rater, weights: torch.Tensor, stops: Sequence[Stops], send: Send
    ) -> None:
        self._rate, self._stops, self._send = rate, stops, send
        self._coarse = [frozenset(each.coarse) for each in stops]
        self._best = weights.clone()  # of each chain's first best stop so far
        self._most = torch.full((len(weights),), -1.0, dtype=torch.float64, device=weights.device)
        self._waiting: dict[int, int] = {}  # moves by chain
        self._stacked: list[torch.Tensor] = []
        self._found: list[tuple[dict[int, int], torch.Tensor]] = []
        self._kept: dict[tuple[int, int], torch.Tensor] = {}

    def note(self, weights: torch.Tensor, moved: Sequence[tuple[int, int]]) -> None:
        """Take note of (C, padded) weights of some chains, given with their numbers of moves."""
        for chain, moves in moved:
            if moves in self._stops[chain].full:
                self._kept[chain, moves] = weights[chain].clone()
        rated = [(chain, moves) for chain, moves in moved if moves in self._coarse[chain]]
        for chain, moves in rated:
            # A chain must not wait twice: each rating is compared with the best before it.
            if chain in self._waiting:
                self.settle()
            self._waiting[chain] = moves
            self._stacked.append(weights[chain].clone())
        if len(self._waiting) >= _ENOUGH:
            self.settle()

    def settle(self) -> None:
        """Rate the weights that still wait."""
        if not self._waiting:
            return
        stack = torch.stack(self._stacked)
        ratings = self._rate(stack)
        places = self._send(np.array(list(self._waiting)))
        is_better = ratings > self._most[places]
        self._most[places] = torch.maximum(ratings, self._most[places])
        self._best[places] = torch.where(is_better[:, None], stack, self._best[places])
        self._found.append((self._waiting, ratings))
        self._waiting, self._stacked = {}, []

    def collect(self, rate_fully: Rater, weights: torch.Tensor) -> list[RatedChain]:
        """Return all ratings, given the (C, padded) weights at the end."""
        self.settle()
        rated = rate_fully(torch.stack([*self._best, *self._kept.values()])).tolist()
        full: list[dict[int, float]] = [{} for _ in self._stops]
        for (chain, moves), rating in zip(self._kept, rated[len(full) :], strict=True):
            full[chain][moves] = rating
        by_moves: list[dict[int, float]] = [{} for _ in self._stops]
        for waited, ratings in self._found:
            for (chain, moves), rating in zip(waited.items(), ratings.tolist(), strict=True):
                by_moves[chain][moves] = rating
        found = []
        finite = weights.isfinite().all(dim=1).tolist()
        for chain, stops in enumerate(self._stops):
            coarse = np.array([by_moves[chain][moves] for moves in stops.coarse])
            full[chain].setdefault(stops.coarse[int(coarse.argmax())], rated[chain])
            are_known = np.isfinite([*coarse, *full[chain].values()]).all()
            found.append(RatedChain(coarse, full[chain], finite[chain] and bool(are_known)))
        return found
