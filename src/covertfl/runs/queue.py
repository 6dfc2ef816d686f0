"""The optimisation queue: the updates that are owed, their tasks and when they arrived.

Updates are served in the order of arrival.  Each update records the rounds of its arrival and of
its completion, so that waits can be compared with Little's law: mean wait = mean backlog / mean
number of updates done in a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OwedTask:
    """A task in the queue.

    Parameters
    ----------
    task : number of the task, from 1
    came : round at the end of which it joined the queue; 0 if it is owed from the start
    size : updates it arrived with
    left : updates still owed
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
    task : number of its task
    came, done : rounds of its arrival and completion
    finished : whether it was the last update of its task
    """

    task: int
    came: int
    done: int
    finished: bool


@dataclass(frozen=True)
class UpdateQueue:
    """The tasks with updates owed, oldest first.

    Parameters
    ----------
    tasks : tasks with at least one update left
    arrived : number of tasks that have arrived so far
    lost : number of updates that exceeded the capacity
    """

    tasks: tuple[OwedTask, ...] = ()
    arrived: int = 0
    lost: int = 0

    @property
    def backlog(self) -> int:
        """Number of updates owed."""
        return sum(task.left for task in self.tasks)

    def serve(self, round_number: int) -> tuple[UpdateQueue, DoneUpdate]:
        """Return the queue without its oldest update, and that update."""
        first, *others = self.tasks
        left = first.left - 1
        done = DoneUpdate(first.task, first.came, round_number, left == 0)
        kept = [OwedTask(first.task, first.came, first.size, left)] if left else []
        return UpdateQueue((*kept, *others), self.arrived, self.lost), done

    def admit(self, size: int, round_number: int, capacity: int | None) -> UpdateQueue:
        """Return the queue after a task of `size` updates arrives; those over capacity are lost."""
        if size == 0:
            return self
        room = size if capacity is None else max(min(size, capacity - self.backlog), 0)
        number = self.arrived + 1
        new = (OwedTask(number, round_number, size, room),) if room else ()
        return UpdateQueue((*self.tasks, *new), number, self.lost + size - room)

    def pack(self) -> list[list[int]]:
        """Return the tasks as JSON values."""
        return [[task.task, task.came, task.size, task.left] for task in self.tasks]


def unpack_queue(tasks: Sequence[Sequence[int]], arrived: int, lost: int) -> UpdateQueue:
    """Return the queue from tasks written by `UpdateQueue.pack`."""
    return UpdateQueue(tuple(OwedTask(*task) for task in tasks), arrived, lost)
