"""The optimisation queue: the updates that are owed, their tasks and when they arrived.

Updates are served in the order of arrival.  Each update records the rounds of its arrival and of
its completion, so that waits can be compared with Little's law: mean wait = mean backlog / mean
number of updates done in a round.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from covertfl.errors import InvalidInput
from covertfl.files.toml import read_text, shorten

MAX_ARRIVALS = 1_000_000_000  # largest number in a file of arrivals


@dataclass(frozen=True)
class OwedTask:
    """A task in the queue.

    Parameters
    ----------
    task : number of the task, from 1
    came : round at the end of which it joined the queue; 0 if it is owed from the start
    size : updates it joined the queue with
    left : updates still owed
    """

    task: int
    came: int
    size: int
    left: int


@dataclass(frozen=True)
class DoneUpdate:
    """An update that was done: rounds of arrival and completion; whether it finished its task."""

    task: int
    came: int
    done: int
    finished: bool


@dataclass(frozen=True)
class UpdateQueue:
    """The tasks with updates owed, oldest first; how many tasks arrived and updates were lost."""

    tasks: tuple[OwedTask, ...] = ()
    arrived: int = 0
    lost: int = 0

    @property
    def backlog(self) -> int:
        """Number of updates owed."""
        return sum(task.left for task in self.tasks)

    @property
    def next_update(self) -> int:
        """Number, within its task, of the update that is served next; 0 if none is owed."""
        return self.tasks[0].size - self.tasks[0].left + 1 if self.tasks else 0

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
        new = (OwedTask(number, round_number, room, room),) if room else ()
        return UpdateQueue((*self.tasks, *new), number, self.lost + size - room)


def read_arrivals(path: str) -> Mapping[int, int]:
    """Return the number of updates that arrive by round, from CSV columns round and updates."""
    reader = csv.DictReader(io.StringIO(read_text(path, "a file of arrivals")))
    if reader.fieldnames != ["round", "updates"]:
        came = ",".join(reader.fieldnames or []) or "nothing"
        raise InvalidInput(f"{path}: the first line must be round,updates, got {came}")
    arrivals: dict[int, int] = {}
    for row in reader:
        line = f"{path} line {reader.line_num}"
        number = _parse_whole(row["round"], "round", 1, line)
        if number in arrivals:
            raise InvalidInput(f"{line}: round must occur once, got {number} again")
        arrivals[number] = _parse_whole(row["updates"], "updates", 0, line)
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
