"""The optimisation queue: which updates are owed, for which task, since when.

Updates are done in the order they came.  Each records the round in which it came and the one in
which it was done, so that waits can be compared with Little's law: mean wait = mean backlog /
updates done a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OwedTask:
    """A task with updates still to do.

    Parameters
    ----------
    task : its number, 1, 2, ...
    came : round at whose end it joined the queue; 0 for what is owed from the beginning
    size : updates it came with
    left : updates still to do
    """

    task: int
    came: int
    size: int
    left: int


@dataclass(frozen=True)
class DoneUpdate:
    """An update that was done.

    Parameters
    ----------
    task : the task it belongs to
    came, done : rounds
    finished : whether it was the task's last
    """

    task: int
    came: int
    done: int
    finished: bool


@dataclass(frozen=True)
class UpdateQueue:
    """Tasks that are owed, oldest first.

    Parameters
    ----------
    tasks : with at least one update left each
    arrived : tasks that have come so far
    lost : updates that found no room
    """

    tasks: tuple[OwedTask, ...] = ()
    arrived: int = 0
    lost: int = 0

    @property
    def backlog(self) -> int:
        """Updates owed."""
        return sum(task.left for task in self.tasks)

    def serve(self, round_number: int) -> tuple[UpdateQueue, DoneUpdate]:
        """The queue after its oldest update is done."""
        first, *others = self.tasks
        left = first.left - 1
        done = DoneUpdate(first.task, first.came, round_number, left == 0)
        kept = [OwedTask(first.task, first.came, first.size, left)] if left else []
        return UpdateQueue((*kept, *others), self.arrived, self.lost), done

    def admit(self, size: int, round_number: int, capacity: int | None) -> UpdateQueue:
        """The queue after a task came; what goes beyond the capacity is lost."""
        if size == 0:
            return self
        room = size if capacity is None else max(min(size, capacity - self.backlog), 0)
        number = self.arrived + 1
        new = (OwedTask(number, round_number, size, room),) if room else ()
        return UpdateQueue((*self.tasks, *new), number, self.lost + size - room)

    def pack(self) -> list[list[int]]:
        """The tasks as JSON holds them."""
        return [[task.task, task.came, task.size, task.left] for task in self.tasks]


def unpack_queue(tasks: Sequence[Sequence[int]], arrived: int, lost: int) -> UpdateQueue:
    """The queue from what `pack` gave."""
    return UpdateQueue(tuple(OwedTask(*task) for task in tasks), arrived, lost)
