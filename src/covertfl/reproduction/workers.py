"""Experiments in several processes at the same time, the long ones in parts.

While one process prepares its work, a GPU trains for another.  A part of an experiment is the
experiment with some of its seeds; what it computes is stored, and the whole finds it there.
Experiments that need no GPU have processes of their own.  Each computes its parts on a core of its
own: several threads of one process would wait for each other, and all of them for those that use
the GPU.  An experiment that cannot be divided may use the cores of the others, too.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Condition
from typing import Any

from covertfl.errors import CovertflError
from covertfl.experiments.experiment import Experiment, Request

# Processes that use the GPU, and most of those that do not; each loads all libraries.
GPU_PROCESSES, MOST_CPU_PROCESSES = 4, 12
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
    """Return the tasks of experiments."""
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
        """Return the next task of a kind, as soon as there is one; None if none is left.

        Parts come last, so that what cannot be divided does not.
        """
        with self._changed:
            while not self._has_failed:
                kind = [n for n in self._left if self._tasks[n].uses_gpu == uses_gpu]
                ready = [n for n in kind if self._done.issuperset(self._tasks[n].needs)]
                if ready:
                    number = min(ready, key=lambda n: (self._tasks[n].is_part, n))
                    self._left.remove(number)
                    self._begun.setdefault(self._tasks[number].name, time.perf_counter())
                    return number, self._tasks[number]
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
    check: Callable[[], None],
    on_progress: Callable[[str, float], None],
    on_result: Callable[[Result, float], None],
) -> None:
    """Carry out tasks in several processes.

    Parameters
    ----------
    work : can be sent to another process
    check : raises if tasks cannot be carried out, and loads what they need: called here and by the
        processes that use the GPU, at the same time
    on_progress : called with what is being done, and the share of tasks that are done
    on_result : called with each result and the seconds since its experiment was begun
    """
    board = Board(tasks)
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None when a worker has ended

    def follow(worker: Worker, uses_gpu: bool) -> None:
        try:
            worker.wait()
            while (taken := board.take(uses_gpu=uses_gpu)) is not None:
                number, task = taken
                calls.put(partial(on_progress, *board.describe()))
                result = worker.carry_out(task)
                seconds = board.finish(number)
                if result is not None:
                    calls.put(partial(on_result, result, seconds))
        except BaseException as error:
            calls.put(partial(_raise, error))
        else:
            calls.put(None)

    with ExitStack() as stack:
        on_gpu = min(GPU_PROCESSES, sum(task.uses_gpu for task in tasks))
        cores = list_cores()
        on_cpu = cores[: sum(not task.uses_gpu for task in tasks)]
        pool = stack.enter_context(ThreadPoolExecutor(on_gpu + len(on_cpu)))
        stack.callback(board.fail)  # after processes are ended
        workers = [stack.enter_context(start_worker(work, check)) for _ in range(on_gpu)]
        check()
        for worker in workers:
            worker.wait()
            pool.submit(follow, worker, True)
        # Not before the others have loaded their libraries, or the GPU would wait for that.
        for core in on_cpu:
            worker = stack.enter_context(start_worker(work, core=core, cores=cores))
            pool.submit(follow, worker, False)
        for _ in range(on_gpu + len(on_cpu)):
            while (call := calls.get()) is not None:
                call()


def _raise(error: BaseException) -> None:
    raise error


def list_cores() -> list[int]:
    """Return the cores for processes without a GPU, one for each.

    One is left for each process with a GPU if there are enough.
    """
    known = sorted(find_cores(), reverse=True)
    return known[: min(max(len(known) - GPU_PROCESSES, 1), MOST_CPU_PROCESSES)]


def find_cores() -> set[int]:
    """Return the cores that this process may use; where it cannot choose, they are just numbers."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def use_cores(cores: Collection[int]) -> None:
    """Restrict this thread, and those that it starts, to some cores where that is possible."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


class Worker:
    """A process that carries out tasks, and its end of the connection."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self._process, self._connection = process, connection
        self._is_ready = False

    def wait(self) -> None:
        """Wait until the process has loaded what it needs."""
        if not self._is_ready:
            self._receive("the work")
            self._is_ready = True

    def carry_out(self, task: Task) -> Result | None:
        """Let the process carry out a task; return its result or raise its error."""
        with suppress(OSError):  # a process that has ended is noticed where its answer is read
            self._connection.send(task)
        result: Result | None = self._receive(task.name)
        return result

    def _receive(self, what: str) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise CovertflError(
                f"the process for {what} ended with status {self._process.exitcode}"
            ) from None
        if isinstance(answer, CovertflError):
            raise answer
        return answer


@contextmanager
def start_worker(
    work: Work,
    check: Callable[[], None] | None = None,
    *,
    core: int | None = None,
    cores: Sequence[int] = (),
) -> Iterator[Worker]:
    """Start a process that carries out tasks until the block ends.

    Parameters
    ----------
    check : called first, by a process that uses the GPU
    core : of a process without a GPU
    cores : that such a process may use for an experiment that is not divided
    """
    # A new process, not a copy of this one: it must not inherit a GPU.
    context = multiprocessing.get_context("spawn")
    own, its = context.Pipe()
    arguments = (its, work, check, core, cores)
    process = context.Process(target=_carry_out, args=arguments, daemon=True)
    before = find_cores()
    if core is not None:
        use_cores({core})  # libraries count the cores as they are loaded
    try:
        process.start()
    finally:
        use_cores(before)
    its.close()
    try:
        yield Worker(process, own)
    finally:
        process.terminate()
        process.join()


def _carry_out(
    connection: Connection,
    work: Work,
    check: Callable[[], None] | None,
    core: int | None,
    cores: Sequence[int],
) -> None:
    """Carry out tasks as they come, and send the results or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt
    if check is not None:
        with suppress(CovertflError):  # the parent process finds it, too
            check()
    if core is not None and hasattr(os, "nice"):
        os.nice(NICENESS)
    connection.send(None)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if core is not None:
            use_cores({core} if task.is_part else cores)
        try:
            connection.send(work(task))
        except CovertflError as error:
            connection.send(error)
