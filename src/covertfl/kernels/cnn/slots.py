"""Jobs in the slots of a stack of networks: which is where, step by step, and its weights.

How many steps each job takes is known beforehand, so that its place is, too.  A slot is filled
again as soon as its job has ended, with the longest job that waits, so that the stack stays full.
Every job starts with a new optimizer: only weights go in and out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from covertfl.kernels.cnn.memory import Send
from covertfl.kernels.cnn.steps import Stretch, count_steps
from covertfl.kernels.job import LocalJob

# Slots beyond those that fill the time of the longest job: the others do not fit without gaps.
_SLACK = 1.1


@dataclass(frozen=True)
class Stay:
    """A job in a slot, from step `start` up to `stop`."""

    job: int
    slot: int
    start: int
    stop: int


def count_slots(lengths: Sequence[int], most: int) -> int:
    """Return the slots, up to `most`, that keep a stack full while the longest job goes on."""
    longest = max(lengths, default=0)
    return max(1, min(most, math.ceil(_SLACK * sum(lengths) / max(longest, 1))))


def assign_slots(lengths: Sequence[int], slots: int) -> list[Stay]:
    """Return the stays of jobs, longest first, by their starts; jobs without steps have none.

    Parameters
    ----------
    lengths : number of steps of each job
    slots : at least one
    """
    free = [(0, slot) for slot in range(slots)]  # by the time from which each is free
    stays = []
    for job in sorted(range(len(lengths)), key=lambda job: -lengths[job]):
        if lengths[job]:
            start, slot = heapq.heappop(free)
            stays.append(Stay(job, slot, start, start + lengths[job]))
            heapq.heappush(free, (start + lengths[job], slot))
    return sorted(stays, key=lambda stay: stay.start)


class JobStack:
    """Weights of jobs, before they enter a slot and after they have left it.

    Parameters
    ----------
    weights : (J, padded) initial weights on the device, which the results replace
    most : largest number of slots
    send : copies an array to the device
    """

    def __init__(
        self, jobs: Sequence[LocalJob], weights: torch.Tensor, most: int, send: Send
    ) -> None:
        self._jobs, self.weights = jobs, weights
        lengths = [count_steps(job) for job in jobs]
        self._stays = stays = assign_slots(lengths, count_slots(lengths, most))
        used = max((stay.slot + 1 for stay in stays), default=1)
        self.slots = weights.new_zeros((used, weights.shape[1]))
        self._entering = _Copies([(stay.start, stay.slot, stay.job) for stay in stays], send)
        self._leaving = _Copies([(stay.stop, stay.slot, stay.job) for stay in stays], send)

    @property
    def num_steps(self) -> int:
        """Number of steps until all jobs have ended."""
        return max((stay.stop for stay in self._stays), default=0)

    def list_stretches(self) -> list[Stretch]:
        """Return the jobs in their slots, in the order of their starts."""
        return [
            Stretch(self._jobs[stay.job], stay.slot, stay.start, stay.stop) for stay in self._stays
        ]

    def exchange(self, time: int) -> None:
        """Take weights out of slots and put others in, before the step of a time."""
        if copies := self._leaving.find(time):
            self.weights.index_copy_(0, copies[1], self.slots.index_select(0, copies[0]))
        if copies := self._entering.find(time):
            self.slots.index_copy_(0, copies[0], self.weights.index_select(0, copies[1]))


class _Copies:
    """Slots and jobs between which weights are copied, by time."""

    def __init__(self, copies: Sequence[tuple[int, int, int]], send: Send) -> None:
        table = np.array(sorted(copies), dtype=np.int64).reshape(-1, 3)
        times, starts, counts = np.unique(table[:, 0], return_index=True, return_counts=True)
        parts = zip(times.tolist(), starts.tolist(), counts.tolist(), strict=True)
        self._parts = {time: slice(start, start + count) for time, start, count in parts}
        self._slots, self._rows = (send(np.ascontiguousarray(table[:, n])) for n in (1, 2))

    def find(self, time: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the slots and the jobs of a time, None if there are none."""
        if time not in self._parts:
            return None
        part = self._parts[time]
        return self._slots[part], self._rows[part]
