"""Experiments in several processes at the same time, the long ones in parts.

While one process prepares its work, a GPU trains for another.  A part of an experiment is the
experiment with some of its seeds; what it computes is stored, and the whole finds it there.
Experiments that need no GPU have processes of their own.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from threading import Condition, Lock
from typing import Any

from covertfl.errors import CovertflError
from covertfl.experiments.experiment import Experiment, Request

GPU_PROCESSES, CPU_PROCESSES = 4, 4
# Priority of processes without a GPU, so that the others do not let a GPU wait.
NICENESS = 10

Result = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """An experiment, or a part of it whose result is not asked for.

    Parameters
    ----------
    needs : numbers of the tasks that come first
    """

    name: str
    request: Request
    is_part: bool
    uses_gpu: bool
    needs: tuple[int, ...] = ()


Work = Callable[[Task], Result | None]  # carries out a task; the result of a whole experiment


def plan_tasks(experiments: Sequence[Experiment], request: Request) -> list[Task]:
    """Return the tasks of experiments, in the order in which they are begun."""
    tasks: list[Task] = []
    parts: dict[str, list[int]] = {}
    for experiment in experiments:
        name, uses_gpu = experiment.name, experiment.uses_gpu
        before = parts.get(experiment.after or "", [])
        divided = divide_seeds(experiment, request)
        own: list[int] = []
        for place, some in enumerate(divided):
            needs = before[place : place + 1] if len(before) == len(divided) else before
            own.append(len(tasks))
            tasks.append(Task(name, some, True, uses_gpu, tuple(needs)))
        parts[name] = own or [len(tasks)]
        tasks.append(Task(name, request, False, uses_gpu, tuple(own or before)))
    return tasks


def divide_seeds(experiment: Experiment, request: Request) -> list[Request]:
    """Return the request in parts of nearly equal numbers of seeds; none if there is one part."""
    if experiment.seeds is None:
        return []
    seeds = request.list_seeds(*experiment.seeds)
    parts = min(experiment.parts, len(seeds))
    if parts < 2:
        return []
    ends = [seeds.start + len(seeds) * part // parts for part in range(parts + 1)]
    return [
        replace(request, first_seed=start, seeds=stop - start)
        for start, stop in itertools.pairwise(ends)
    ]


class Board:
    """The tasks that are left, which several workers take from."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks, self._changed = tasks, Condition()
        self._left, self._done = list(range(len(tasks))), set[int]()
        self._begun: dict[str, float] = {}
        self._has_failed = False

    def take(self, *, uses_gpu: bool) -> tuple[int, Task] | None:
        """Return the next task of a kind, as soon as there is one; None if none is left."""
        with self._changed:
            while not self._has_failed:
                kind = [n for n in self._left if self._tasks[n].uses_gpu == uses_gpu]
                ready = [n for n in kind if self._done.issuperset(self._tasks[n].needs)]
                if ready:
                    self._left.remove(ready[0])
                    self._begun.setdefault(self._tasks[ready[0]].name, time.perf_counter())
                    return ready[0], self._tasks[ready[0]]
                if not kind:
                    break
                self._changed.wait()
            return None

    def finish(self, number: int) -> float:
        """Note that a task is done; return the seconds since its experiment was begun."""
        with self._changed:
            self._done.add(number)
            self._changed.notify_all()
            return time.perf_counter() - self._begun[self._tasks[number].name]

    def fail(self) -> None:
        """Let nobody begin another task."""
        with self._changed:
            self._has_failed = True
            self._changed.notify_all()

    def describe(self) -> tuple[str, float]:
        """Return what is being done, and the share of tasks that are done."""
        with self._changed:
            open_tasks = set(range(len(self._tasks))) - self._done - set(self._left)
            names = dict.fromkeys(self._tasks[number].name for number in sorted(open_tasks))
            return ", ".join(names), len(self._done) / len(self._tasks)


def run_tasks(
    tasks: Sequence[Task],
    work: Work,
    *,
    on_progress: Callable[[str, float], None],
    on_result: Callable[[Result, float], None],
) -> None:
    """Carry out tasks in several processes, this one among them.

    Parameters
    ----------
    work : can be sent to another process
    on_progress : called with what is being done, and the share of tasks that are done
    on_result : called with each result and the seconds since its experiment was begun
    """
    board, lock = Board(tasks), Lock()

    def follow(carry_out: Work, uses_gpu: bool) -> None:
        try:
            while (taken := board.take(uses_gpu=uses_gpu)) is not None:
                number, task = taken
                with lock:
                    on_progress(*board.describe())
                result = carry_out(task)
                seconds = board.finish(number)
                if result is not None:
                    with lock:
                        on_result(result, seconds)
        except BaseException:
            board.fail()
            raise

    with ExitStack() as stack:
        kinds = []
        for uses_gpu, most in ((True, GPU_PROCESSES), (False, CPU_PROCESSES)):
            kinds += [uses_gpu] * min(most, sum(task.uses_gpu == uses_gpu for task in tasks))
        pool = stack.enter_context(ThreadPoolExecutor(len(kinds)))
        others = [
            stack.enter_context(_start_process(work, 0 if uses_gpu else NICENESS))
            for uses_gpu in kinds[1:]
        ]
        waiting = [
            pool.submit(follow, other, kind) for other, kind in zip(others, kinds[1:], strict=True)
        ]
        stack.callback(board.fail)  # before processes are ended
        follow(work, kinds[0])
        for each in as_completed(waiting):
            each.result()


@contextmanager
def _start_process(work: Work, niceness: int) -> Iterator[Work]:
    """Start a process that carries out tasks until the block ends; yield a function to do so."""
    # A new process, not a copy of this one: it must not inherit a GPU.
    context = multiprocessing.get_context("spawn")
    own, its = context.Pipe()
    process = context.Process(target=_carry_out, args=(its, work, niceness), daemon=True)
    process.start()
    its.close()

    def carry_out(task: Task) -> Result | None:
        try:
            own.send(task)
            answer = own.recv()
        except (EOFError, OSError):
            process.join()
            raise CovertflError(
                f"the process for {task.name} ended with status {process.exitcode}"
            ) from None
        if isinstance(answer, CovertflError):
            raise answer
        result: Result | None = answer
        return result

    try:
        yield carry_out
    finally:
        process.terminate()
        process.join()


def _carry_out(connection: Connection, work: Work, niceness: int) -> None:
    """Carry out tasks as they come, and send the results or the error."""
    if hasattr(os, "nice"):
        os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            connection.send(work(task))
        except CovertflError as error:
            connection.send(error)
