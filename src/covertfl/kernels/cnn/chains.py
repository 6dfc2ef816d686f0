"""Chains of moves on the device: weights go into slots, through jobs, and back.

Every job starts with a new optimizer, so that only weights have to be moved between slots.  The
weights of a chain change when all jobs of a move have ended: to the mean of their results, weighted
by their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from covertfl.kernels.chain import Moves
from covertfl.kernels.cnn.memory import Send
from covertfl.kernels.cnn.slots import MoveEnd, Stay, assign_slots, count_slots
from covertfl.kernels.cnn.steps import Stretch, count_steps
from covertfl.kernels.job import LocalJob

Moved = list[tuple[int, int]]  # chains whose weights have changed, each with its number of moves


class ChainStack:
    """Weights of chains, of jobs in slots, and of jobs that have ended before their move.

    Parameters
    ----------
    chains : each a sequence of moves, each move a group of jobs
    weights : (C, padded) initial weights on the device
    most : largest number of slots
    send : copies an array to the device
    """

    def __init__(
        self, chains: Sequence[Moves], weights: torch.Tensor, most: int, send: Send
    ) -> None:
        self._chains = chains
        lengths = [[[count_steps(job) for job in move] for move in chain] for chain in chains]
        self._timetable = assign_slots(lengths, count_slots(lengths, most))
        # Results of a move of several jobs wait behind the weights of all chains.
        sizes = [max((len(move) for move in chain if len(move) > 1), default=0) for chain in chains]
        self._places = len(chains) + np.cumsum([0, *sizes])
        self._held = weights.new_empty((int(self._places[-1]), weights.shape[1]))
        self._held[: len(chains)] = weights
        self.slots = weights.new_zeros((max(self._timetable.num_slots, 1), weights.shape[1]))
        self._ends: dict[int, list[MoveEnd]] = {}
        for end in self._timetable.ends:
            self._ends.setdefault(end.time, []).append(end)
        stays = self._timetable.stays
        self._entering = _Copies([(stay.start, stay.slot, stay.chain) for stay in stays], send)
        leaving = [(stay.stop, stay.slot, self._find_place(stay)) for stay in stays]
        self._leaving = _Copies(leaving, send)

    @property
    def weights(self) -> torch.Tensor:
        """The (C, padded) weights of all chains."""
        return self._held[: len(self._chains)]

    @property
    def num_steps(self) -> int:
        """Number of steps until all chains have ended."""
        return self._timetable.num_steps

    def list_stretches(self) -> list[Stretch]:
        """Return the jobs in their slots, in the order of their starts."""
        return [
            Stretch(self._chains[stay.chain][stay.move][stay.job], stay.slot, stay.start, stay.stop)
            for stay in self._timetable.stays
        ]

    def exchange(self, time: int) -> Moved:
        """Take weights out of slots and put others in, before the step of a time."""
        if copies := self._leaving.find(time):
            self._held.index_copy_(0, copies[1], self.slots.index_select(0, copies[0]))
        moved = []
        for end in self._ends.get(time, ()):
            self._end_move(end)
            moved.append((end.chain, end.move + 1))
        if copies := self._entering.find(time):
            self.slots.index_copy_(0, copies[0], self._held.index_select(0, copies[1]))
        return moved

    def _find_place(self, stay: Stay) -> int:
        """Return the row of a job's result: that of its chain if its move has no other job."""
        if len(self._chains[stay.chain][stay.move]) == 1:
            return stay.chain
        return int(self._places[stay.chain]) + stay.job

    def _end_move(self, end: MoveEnd) -> None:
        move, start = self._chains[end.chain][end.move], int(self._places[end.chain])
        if len(move) > 1 and any(len(job.rows) for job in move):
            results = self._held[start : start + len(move)]
            self._held[end.chain] = average_results(results, move)


class _Copies:
    """Slots and rows between which weights are copied, by time."""

    def __init__(self, copies: Sequence[tuple[int, int, int]], send: Send) -> None:
        table = np.array(sorted(copies), dtype=np.int64).reshape(-1, 3)
        times, starts, counts = np.unique(table[:, 0], return_index=True, return_counts=True)
        parts = zip(times.tolist(), starts.tolist(), counts.tolist(), strict=True)
        self._parts = {time: slice(start, start + count) for time, start, count in parts}
        self._slots, self._rows = (send(np.ascontiguousarray(table[:, n])) for n in (1, 2))

    def find(self, time: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the slots and the rows of a time, None if there are none."""
        if time not in self._parts:
            return None
        part = self._parts[time]
        return self._slots[part], self._rows[part]


def average_results(results: torch.Tensor, jobs: Sequence[LocalJob]) -> torch.Tensor:
    """Return the mean of (J, ...) results of jobs, weighted by their rows, at least one in all.

    It is summed in double precision, jobs with more batches first, so that it depends on the jobs
    alone.  The mean of one result, which may have no rows, is the result.
    """
    if len(jobs) == 1:
        return results[0]
    total = torch.zeros_like(results[0], dtype=torch.float64)
    for place in sorted(range(len(jobs)), key=lambda place: -count_steps(jobs[place])):
        if len(jobs[place].rows):
            total.add_(results[place], alpha=len(jobs[place].rows))
    return (total / sum(len(job.rows) for job in jobs)).float()
