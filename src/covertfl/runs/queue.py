"""The optimisation queue: the updates that are owed, their tasks and when they arrived.

Updates are served in the order of arrival.  Each update records the rounds of its arrival and of
its completion, so that waits can be compared with Little's law: mean wait = mean backlog / mean
number of updates done in a round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from covertfl.errors import InvalidInput
from covertfl.files.table import split_rows
from covertfl.files.text import read_text, shorten

MAX_ARRIVALS = 1_000_000_000  # largest number in a file of arrivals


@dataclass(frozen=True)
class OwedTask:
    """A task in the queue.

    Parameters
    ----------
    task : number of the task, from 1
    came : round at the end of which it joined the queue; 0 if it is owed from the start
    size : updates done and owed
    left : updates still owed
    patience : ends after so many updates in a row without a smaller loss; 0 if the number is fixed
    most : updates that a task with patience has at most
    best : smallest loss so far of a task with patience, None before its first update
    """

    task: int
    came: int
    size: int
    left: int
    patience: int = 0
    most: int = 0
    best: float | None = None

    @property
    def done(self) -> int:
        """Number of updates done."""
        return self.size - self.left

    @cached_property
    def content(self) -> tuple[int | float | None, ...]:
        """All fields but the number, in their order."""
        return (self.came, self.size, self.left, self.patience, self.most, self.best)

    def serve(self, loss: float | None = None) -> OwedTask:
        """Return the task after an update, which a task with patience judges by its loss."""
        served = replace(self, left=self.left - 1)
        # A model that diverges has a loss that is no number, which is never smaller.
        if self.patience == 0 or loss is None or not math.isfinite(loss):
            return served
        if self.best is not None and loss >= self.best:
            return served
        left = min(self.patience, self.most - served.done)
        return replace(served, size=served.done + left, left=left, best=loss)


@dataclass(frozen=True)
class DoneUpdate:
    """An update that was done: rounds of arrival and completion; whether it finished its task."""

    task: int
    came: int
    done: int
    finished: bool


@dataclass(frozen=True)
class UpdateQueue:
    """The tasks with updates owed, oldest first.

    Parameters
    ----------
    arrived, lost : number of tasks that arrived, and of updates that were lost
    """

    tasks: tuple[OwedTask, ...] = ()
    arrived: int = 0
    lost: int = 0

    @cached_property
    def backlog(self) -> int:
        """Number of updates owed."""
        return sum(task.left for task in self.tasks)

    @property
    def needs_loss(self) -> bool:
        """Whether the next update is judged by its loss."""
        return bool(self.tasks) and self.tasks[0].patience > 0

    def serve(self, round_number: int, loss: float | None = None) -> tuple[UpdateQueue, DoneUpdate]:
        """Return the queue without its oldest update, and that update; `loss` as in `OwedTask`."""
        first, *others = self.tasks
        after = first.serve(loss)
        done = DoneUpdate(first.task, first.came, round_number, after.left == 0)
        kept = [after] if after.left else []
        return replace(self, tasks=(*kept, *others)), done

    def admit(self, size: int, round_number: int, capacity: int | None) -> UpdateQueue:
        """Return the queue after a task of `size` updates arrives; those over capacity are lost."""
        if size == 0:
            return self
        room = size if capacity is None else max(min(size, capacity - self.backlog), 0)
        number = self.arrived + 1
        new = (OwedTask(number, round_number, room, room),) if room else ()
        lost = self.lost + size - room
        return replace(self, tasks=(*self.tasks, *new), arrived=number, lost=lost)

    def join(self, tasks: Sequence[OwedTask]) -> UpdateQueue:
        """Return the queue after tasks have joined it; none of their updates is ever lost."""
        return replace(self, tasks=(*self.tasks, *tasks), arrived=self.arrived + len(tasks))

    def leave(self, tasks: Collection[int]) -> UpdateQueue:
        """Return the queue without the tasks of these numbers."""
        return replace(self, tasks=tuple(kept for kept in self.tasks if kept.task not in tasks))


def read_arrivals(path: str) -> Mapping[int, int]:
    """Return the number of updates that arrive by round, from CSV columns round and updates."""
    rows = [entry for entry in split_rows(path, read_text(path, "a file of arrivals")) if entry[1]]
    header = rows[0][1] if rows else []
    if header != ["round", "updates"]:
        came = ",".join(header) or "nothing"
        raise InvalidInput(f"{path}: the first line must be round,updates, got {came}")
    arrivals: dict[int, int] = {}
    for line, cells in rows[1:]:
        place, (first, second, *_) = f"{path} line {line}", [*cells, None]
        number = _parse_whole(first, "round", 1, place)
        if number in arrivals:
            raise InvalidInput(f"{place}: round must occur once, got {number} again")
        arrivals[number] = _parse_whole(second, "updates", 0, place)
    return arrivals


def _parse_whole(text: str | None, name: str, least: int, line: str) -> int:
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if not least <= number <= MAX_ARRIVALS:
        raise InvalidInput(
            f"{line}: {name} must be a whole number in {least}..{MAX_ARRIVALS}, got {shorten(text)}"
        )
    return number
