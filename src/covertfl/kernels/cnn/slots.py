"""Which job of which chain is in which slot of a stack of networks, step by step.

A chain is a sequence of moves, a move a group of jobs that start from the same weights; the next
move starts when all of them have ended.  How many steps each takes is known beforehand, so that
their places are, too.  A slot is filled again as soon as its job has ended, first with jobs of the
chain that has the longest way to go, so that the stack stays full.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

Lengths = Sequence[Sequence[Sequence[int]]]  # steps by chain, move and job; a job may have none

# Slots beyond those that fill the time of the longest chain: there are gaps between moves.
_SLACK = 1.1


@dataclass(frozen=True)
class Stay:
    """A job in a slot, from step `start` up to `stop`."""

    chain: int
    move: int
    job: int  # number in its move
    slot: int
    start: int
    stop: int


@dataclass(frozen=True)
class MoveEnd:
    """The end of a chain's move, before step `time`."""

    time: int
    chain: int
    move: int


@dataclass(frozen=True, eq=False)
class Timetable:
    """The stays of all jobs that have steps, by their starts, and the ends of moves, by time."""

    stays: list[Stay]
    ends: list[MoveEnd]

    @property
    def num_slots(self) -> int:
        """Number of slots in use."""
        return max((stay.slot + 1 for stay in self.stays), default=0)

    @property
    def num_steps(self) -> int:
        """Number of steps until all have ended."""
        return max((stay.stop for stay in self.stays), default=0)


def count_slots(lengths: Lengths, most: int) -> int:
    """Return the slots, up to `most`, that keep a stack full while the longest chain goes on."""
    total = sum(sum(move) for chain in lengths for move in chain)
    longest = max((_measure_way(chain)[0] for chain in lengths), default=0)
    return max(1, min(most, math.ceil(_SLACK * total / max(longest, 1))))


def assign_slots(lengths: Lengths, slots: int) -> Timetable:
    """Return the timetable of chains in a number of slots, at least one."""
    return _Assignment(lengths, slots).run()


class _Assignment:
    """The jobs that wait and run while a timetable is made."""

    def __init__(self, lengths: Lengths, slots: int) -> None:
        self._lengths = lengths
        self._ways = [_measure_way(chain) for chain in lengths]
        self._free = list(range(slots))
        self._waiting: list[tuple[int, int, int, int]] = []  # by falling way, chain, move, job
        self._running: list[tuple[int, int, int, int]] = []  # by stop, slot, chain, move
        self._open = [0] * len(lengths)  # jobs of the current move that have not ended
        self._found = Timetable([], [])

    def run(self) -> Timetable:
        """Return the timetable."""
        for chain in range(len(self._lengths)):
            self._begin(chain, 0, 0)
        self._fill(0)
        while self._running:
            time = self._running[0][0]
            self._end_jobs(time)
            self._fill(time)
        return self._found

    def _begin(self, chain: int, move: int, time: int) -> None:
        """Let the jobs of a move wait; moves without steps end at once."""
        moves, ways = self._lengths[chain], self._ways[chain]
        while move < len(moves) and not any(moves[move]):
            self._found.ends.append(MoveEnd(time, chain, move))
            move += 1
        if move == len(moves):
            return
        after = ways[move + 1]
        jobs = [job for job, steps in enumerate(moves[move]) if steps]
        for job in jobs:
            way = moves[move][job] + after
            heapq.heappush(self._waiting, (-way, chain, move, job))
        self._open[chain] = len(jobs)

    def _fill(self, time: int) -> None:
        """Start jobs in the lowest free slots."""
        while self._waiting and self._free:
            _, chain, move, job = heapq.heappop(self._waiting)
            slot, stop = heapq.heappop(self._free), time + self._lengths[chain][move][job]
            self._found.stays.append(Stay(chain, move, job, slot, time, stop))
            heapq.heappush(self._running, (stop, slot, chain, move))

    def _end_jobs(self, time: int) -> None:
        """End the jobs that stop at a time, and begin the moves that they have waited for."""
        while self._running and self._running[0][0] == time:
            _, slot, chain, move = heapq.heappop(self._running)
            heapq.heappush(self._free, slot)
            self._open[chain] -= 1
            if not self._open[chain]:
                self._found.ends.append(MoveEnd(time, chain, move))
                self._begin(chain, move + 1, time)


def _measure_way(chain: Sequence[Sequence[int]]) -> list[int]:
    """Return the steps from the beginning of each move to the end of the chain; 0 at the end."""
    ways = [0]
    for move in reversed(chain):
        ways.append(ways[-1] + max(move, default=0))
    return ways[::-1]
