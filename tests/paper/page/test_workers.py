"""Experiments in several processes, in parts."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paper.experiment import Experiment, Request
from paper.page.workers import (
    Board,
    Task,
    count_gpu_processes,
    divide,
    list_cores,
    plan_tasks,
    run_tasks,
    start_worker,
)

from covertfl.errors import CovertflError, InvalidInput

GPU = Request(device="cuda")
CHECKED: list[int] = []  # processes that have called `check`


def make(name: str, seeds: tuple[int, int] | None, *, gpu: bool, after: str | None = None) -> Any:
    parts = 2 if gpu else 4
    return Experiment(
        name, name, "nowhere", lambda request, store: {}, gpu, seeds, parts, after=after
    )


def test_seeds_are_divided_without_gaps() -> None:
    table = make("table", (10, 3), gpu=True)
    parts = divide(table, GPU)
    assert [list(part.list_seeds(1, 1)) for part in parts] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    parts = divide(make("main", (10, 3), gpu=False), Request(first_seed=7, quick=True))
    assert [list(part.list_seeds(1, 1)) for part in parts] == [[7], [8], [9]]
    assert divide(table, Request(seeds=1)) == divide(make("a", None, gpu=True), GPU) == []


def test_parts_come_before_the_whole_and_after_those_they_share() -> None:
    experiments = [
        make("main", (100, 2), gpu=False),
        make("curve", (100, 2), gpu=False, after="main"),
        make("table", (10, 2), gpu=True),
        make("theory", None, gpu=False),
        make("other", None, gpu=False, after="curve"),
    ]
    tasks = plan_tasks(experiments, GPU)
    named = {
        name: [n for n, task in enumerate(tasks) if task.name == name]
        for name in ("main", "curve", "table", "theory", "other")
    }
    assert {name: len(numbers) for name, numbers in named.items()} == {
        "main": 5, "curve": 5, "table": 3, "theory": 1, "other": 1
    }  # fmt: skip
    for name in ("main", "curve", "table"):
        *parts, whole = named[name]
        assert [tasks[part].part for part in parts] == list(range(len(parts)))
        assert tasks[whole].part is None and tasks[whole].request == GPU
        assert tasks[whole].needs[: len(parts)] == tuple(parts)
    for part, before in zip(named["curve"][:4], named["main"][:4], strict=True):
        assert tasks[part].needs == (before,)
        assert tasks[part].request.first_seed == tasks[before].request.first_seed
    assert tasks[named["other"][0]].needs == tuple(named["curve"][:4])
    assert tasks[named["theory"][0]].needs == ()


def test_parts_of_another_kind_need_nothing_and_come_first() -> None:
    table = make("table", (10, 2), gpu=True)
    own = replace(make("own", (10, 2), gpu=True, after="table"), run_part=print, is_long=True)
    tasks = plan_tasks([table, own], GPU)
    assert [(task.name, task.part) for task in tasks] == [
        ("table", 0), ("table", 1), ("table", None), ("own", 0), ("own", 1), ("own", None)
    ]  # fmt: skip
    assert tasks[3].needs == tasks[4].needs == () and tasks[3].request == GPU
    assert tasks[5].needs == (3, 4, 0, 1)
    board = Board(tasks)
    taken = [board.take(uses_gpu=True) for _ in range(4)]
    assert [each and each[0] for each in taken] == [3, 4, 0, 1]


def test_a_task_is_taken_when_those_it_needs_are_done() -> None:
    tasks = [Task("a", GPU, 0, True), Task("a", GPU, None, True, (0,)), Task("b", GPU, None, False)]
    board = Board(tasks)
    assert board.take(uses_gpu=True) == (0, tasks[0])
    assert board.take(uses_gpu=False) == (2, tasks[2])
    assert board.describe() == ("a, b", 0.0)
    assert board.finish(0) >= 0.0
    assert board.take(uses_gpu=True) == (1, tasks[1])
    assert board.take(uses_gpu=False) is None
    assert board.describe() == ("a, b", 1 / 3)
    divided = Board([tasks[0], Task("c", GPU, None, True)])
    assert divided.take(uses_gpu=True) == (1, Task("c", GPU, None, True))
    other = Board(tasks)
    other.fail()
    assert other.take(uses_gpu=True) is None


def work(task: Task) -> dict[str, Any] | None:
    if task.name == "bad":
        raise InvalidInput("this one fails")
    if task.name == "dead":
        os._exit(3)
    if task.name == "long":
        time.sleep(60.0)
    if task.part is not None:
        return None
    affinity = os.sched_getaffinity(0)
    return {
        "name": task.name,
        "process": os.getpid(),
        "affinity": affinity,
        "checked": os.getpid() in CHECKED,
    }


def check() -> None:
    CHECKED.append(os.getpid())


def test_tasks_are_carried_out_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paper.page.workers.GPU_PROCESSES", 2)
    experiments = [make("table", (4, 2), gpu=True), make("theory", None, gpu=False)]
    told: list[tuple[str, float]] = []
    found: list[dict[str, Any]] = []

    def add(result: dict[str, Any], seconds: float) -> None:
        assert seconds >= 0.0
        found.append(result)

    tasks = plan_tasks(experiments, GPU)
    run_tasks(
        tasks,
        work,
        check=check,
        prepare=check,
        count_room=lambda: 1,
        on_progress=lambda *what: told.append(what),
        on_result=add,
    )
    by_name = {result["name"]: result for result in found}
    assert set(by_name) == {"table", "theory"} and len(found) == 2
    assert len({os.getpid(), *(result["process"] for result in found)}) == 3
    assert os.getpid() in CHECKED and by_name["table"]["checked"]
    assert not by_name["theory"]["checked"]
    assert by_name["theory"]["affinity"] == set(list_cores())
    assert by_name["table"]["affinity"] == os.sched_getaffinity(0)
    assert len(told) == len(tasks) and all(0.0 <= share < 1.0 for _, share in told)


def report_cores(task: Task) -> dict[str, Any]:
    return {"cores": os.sched_getaffinity(0)}


def test_parts_have_a_core_each() -> None:
    core, cores = list_cores()[0], os.sched_getaffinity(0)
    with start_worker(report_cores, core=core, cores=sorted(cores)) as worker:
        worker.wait()
        for part, wanted in ((0, {core}), (None, cores), (1, {core})):
            assert worker.carry_out(Task("a", GPU, part, False)) == {"cores": wanted}


def run_quietly(tasks: list[Task], check: Callable[[], None]) -> None:
    run_tasks(
        tasks,
        work,
        check=check,
        prepare=check,
        count_room=lambda: 9,
        on_progress=lambda *what: None,
        on_result=lambda *what: None,
    )


def test_an_error_ends_the_work_and_all_processes() -> None:
    tasks = [Task("bad", GPU, None, False), Task("long", GPU, None, False)]
    with pytest.raises(InvalidInput, match="this one fails"):
        run_quietly(tasks, check)
    with pytest.raises(InvalidInput, match="no data"):
        run_quietly([Task("table", GPU, None, True)], fail)
    with pytest.raises(CovertflError, match="the process for dead ended with status 3"):
        run_quietly([Task("dead", GPU, None, False)], check)
    assert not multiprocessing.active_children()


def fail() -> None:
    raise InvalidInput("no data")


def test_cores_are_left_for_processes_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, on_gpu, wanted in ((2, 2, [1]), (6, 3, [5, 4, 3, 2, 1]), (64, 8, range(63, 51, -1))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, given=given: set(range(given)))
        assert count_gpu_processes() == on_gpu and list_cores() == list(wanted)
