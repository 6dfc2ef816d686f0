"""Experiments in several processes at the same time, the long ones in parts.

While some processes prepare their work, a GPU trains for others.  What a part of an experiment
computes is stored, and the whole finds it there.
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
from paper.experiment import Experiment, Request

# Most processes that use the GPU, and most that do not; each loads all libraries.
GPU_PROCESSES, CPU_PROCESSES = 8, 12
# Priority of processes without a GPU, so that the others do not let a GPU wait.
NICENESS = 10

Result = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """An experiment, or a part of it whose result is not asked for.

    Parameters
    ----------
    part : number of the part, None for the whole
    needs : numbers of the tasks that come first
    is_long : whether it is begun before others that are ready
    """

    name: str
    request: Request
    part: int | None
    uses_gpu: bool
    needs: tuple[int, ...] = ()
    is_long: bool = False


Calls = SimpleQueue[Callable[[], None] | None]  # to be made; None when a worker has ended
Work = Callable[[Task], Result | None]  # carries out a task; the result of a whole experiment


def plan_tasks(experiments: Sequence[Experiment], request: Request) -> list[Task]:
    """Return the tasks of experiments."""
    tasks: list[Task] = []
    parts: dict[str, list[int]] = {}
    for experiment in experiments:
        name, uses_gpu = experiment.name, experiment.uses_gpu
        before, own = parts.get(experiment.after or "", []), list[int]()
        divided = divide(experiment, request)
        for place, some in enumerate(divided):
            needs = before[place : place + 1] if len(before) == len(divided) else before
            if experiment.run_part is not None:
                needs = []
            own.append(len(tasks))
            tasks.append(Task(name, some, place, uses_gpu, tuple(needs), experiment.is_long))
        parts[name] = own or [len(tasks)]
        is_long = experiment.is_long and not own
        tasks.append(Task(name, request, None, uses_gpu, (*own, *before), is_long))
    return tasks


def divide(experiment: Experiment, request: Request) -> list[Request]:
    """Return the requests of an experiment's parts; none if there is one part.

    Unless the experiment has another way, each has nearly the same number of seeds.
    """
    if experiment.run_part is not None:
        return [request] * experiment.parts
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

        Long ones come first, and parts last, so that what cannot be divided does not.
        """
        with self._changed:
            while not self._has_failed:
                kind = [n for n in self._left if self._tasks[n].uses_gpu == uses_gpu]
                ready = [n for n in kind if self._done.issuperset(self._tasks[n].needs)]
                if ready:
                    number = min(ready, key=self._rank)
                    self._left.remove(number)
                    self._begun.setdefault(self._tasks[number].name, time.perf_counter())
                    return number, self._tasks[number]
                if not kind:
                    break
                self._changed.wait()
            return None

    def _rank(self, number: int) -> tuple[bool, bool, int]:
        task = self._tasks[number]
        return not task.is_long, task.part is not None, number

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
    prepare: Callable[[], None],
    count_room: Callable[[], int],
    on_progress: Callable[[str, float], None],
    on_result: Callable[[Result, float], None],
) -> None:
    """Carry out tasks in several processes.

    Parameters
    ----------
    work : can be sent to another process
    check : raises if tasks cannot be carried out
    prepare : loads what they need, in the processes that use the GPU, at the same time
    count_room : returns the number of processes, at least 1, that the GPU has memory for
    on_progress : called with what is being done, and the share of tasks that are done
    on_result : called with each result and the seconds since its experiment was begun
    """
    board = Board(tasks)
    calls: Calls = SimpleQueue()
    follow = partial(_follow, board, calls, on_progress, on_result)
    with ExitStack() as stack:
        cores = list_cores()
        on_cpu = cores[: sum(not task.uses_gpu for task in tasks)]
        most = min(count_gpu_processes(), sum(task.uses_gpu for task in tasks))
        pool = stack.enter_context(ThreadPoolExecutor(most + len(on_cpu)))
        stack.callback(board.fail)  # after processes are ended
        workers = [stack.enter_context(start_worker(work, prepare)) for _ in range(most)]
        check()
        room = count_room() if workers else 0
        on_gpu = workers[:room]
        for worker in workers[room:]:
            worker.end()
        for worker in on_gpu:
            worker.wait()
            pool.submit(follow, worker, True)
        # Not before the others have loaded their libraries, or the GPU would wait for that.
        for core in on_cpu:
            worker = stack.enter_context(start_worker(work, core=core, cores=cores))
            pool.submit(follow, worker, False)
        for _ in range(len(on_gpu) + len(on_cpu)):
            while (call := calls.get()) is not None:
                call()


def _follow(
    board: Board,
    calls: Calls,
    on_progress: Callable[[str, float], None],
    on_result: Callable[[Result, float], None],
    worker: Worker,
    uses_gpu: bool,
) -> None:
    """Give a worker one task after the other; callbacks are called by whoever reads `calls`."""
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


def _raise(error: BaseException) -> None:
    raise error


def count_gpu_processes() -> int:
    """Return how many processes may use the GPU: two cores prepare and receive the work of each."""
    return min(GPU_PROCESSES, max(len(find_cores()) // 2, 2))


def list_cores() -> list[int]:
    """Return the cores for processes without a GPU, one for each.

    One for every two processes with a GPU is left to these if there are enough; they have priority
    on the others.
    """
    known = sorted(find_cores(), reverse=True)
    return known[: min(max(len(known) - count_gpu_processes() // 2, 1), CPU_PROCESSES)]


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
            self._receive("experiments")
            self._is_ready = True

    def carry_out(self, task: Task) -> Result | None:
        """Let the process carry out a task; return its result or raise its error."""
        with suppress(OSError):  # a process that has ended is noticed where its answer is read
            self._connection.send(task)
        result: Result | None = self._receive(task.name)
        return result

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.terminate()
        self._process.join()

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
    prepare: Callable[[], None] | None = None,
    *,
    core: int | None = None,
    cores: Sequence[int] = (),
) -> Iterator[Worker]:
    """Start a process that carries out tasks until the block ends.

    Parameters
    ----------
    prepare : called first, by a process that uses the GPU
    core : of a process without a GPU
    cores : that such a process may use for an experiment that is not divided
    """
    # A new process, not a copy of this one: it must not inherit a GPU.
    context = multiprocessing.get_context("spawn")
    own, its = context.Pipe()
    arguments = (its, work, prepare, core, cores)
    process = context.Process(target=_carry_out, args=arguments, daemon=True)
    before = find_cores()
    if core is not None:
        use_cores({core})  # libraries count the cores as they are loaded
    try:
        process.start()
    finally:
        use_cores(before)
    its.close()
    worker = Worker(process, own)
    try:
        yield worker
    finally:
        worker.end()


def _carry_out(
    connection: Connection,
    work: Work,
    prepare: Callable[[], None] | None,
    core: int | None,
    cores: Sequence[int],
) -> None:
    """Carry out tasks as they come, and send the results or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt
    if prepare is not None:
        with suppress(CovertflError):  # the parent process finds what is wrong, too
            prepare()
    if core is not None and hasattr(os, "nice"):
        os.nice(NICENESS)
    connection.send(None)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if core is not None:
            use_cores(cores if task.part is None else {core})
        try:
            connection.send(work(task))
        except CovertflError as error:
            connection.send(error)
