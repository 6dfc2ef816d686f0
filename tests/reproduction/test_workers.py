"""Experiments in several processes, in parts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.experiments.experiment import Experiment, Request
from covertfl.reproduction.workers import Board, Task, divide_seeds, plan_tasks, run_tasks

GPU = Request(device="cuda")


def make(name: str, seeds: tuple[int, int] | None, *, gpu: bool, after: str | None = None) -> Any:
    parts = 2 if gpu else 4
    return Experiment(name, name, "nowhere", lambda request, store: {}, gpu, seeds, parts, after)


def test_seeds_are_divided_without_gaps() -> None:
    table = make("table", (10, 3), gpu=True)
    parts = divide_seeds(table, GPU)
    assert [list(part.list_seeds(1, 1)) for part in parts] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    parts = divide_seeds(make("main", (10, 3), gpu=False), Request(first_seed=7, quick=True))
    assert [list(part.list_seeds(1, 1)) for part in parts] == [[7], [8], [9]]
    assert (
        divide_seeds(table, Request(seeds=1)) == divide_seeds(make("a", None, gpu=True), GPU) == []
    )


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
        assert all(tasks[part].is_part for part in parts) and not tasks[whole].is_part
        assert tasks[whole].needs == tuple(parts) and tasks[whole].request == GPU
    for part, before in zip(named["curve"][:4], named["main"][:4], strict=True):
        assert tasks[part].needs == (before,)
        assert tasks[part].request.first_seed == tasks[before].request.first_seed
    assert tasks[named["other"][0]].needs == tuple(named["curve"][:4])
    assert tasks[named["theory"][0]].needs == ()


def test_a_task_is_taken_when_those_it_needs_are_done() -> None:
    tasks = [
        Task("a", GPU, True, True),
        Task("a", GPU, False, True, (0,)),
        Task("b", GPU, False, False),
    ]
    board = Board(tasks)
    assert board.take(uses_gpu=True) == (0, tasks[0])
    assert board.take(uses_gpu=False) == (2, tasks[2])
    assert board.describe() == ("a, b", 0.0)
    assert board.finish(0) >= 0.0
    assert board.take(uses_gpu=True) == (1, tasks[1])
    assert board.take(uses_gpu=False) is None
    assert board.describe() == ("a, b", 1 / 3)
    other = Board(tasks)
    other.fail()
    assert other.take(uses_gpu=True) is None


def work(task: Task) -> dict[str, Any] | None:
    if task.name == "bad":
        raise InvalidInput("this one fails")
    return None if task.is_part else {"name": task.name, "process": os.getpid()}


def test_tasks_are_carried_out_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.reproduction.workers.GPU_PROCESSES", 2)
    monkeypatch.setattr("covertfl.reproduction.workers.CPU_PROCESSES", 1)
    experiments = [make("table", (4, 2), gpu=True), make("theory", None, gpu=False)]
    told: list[tuple[str, float]] = []
    found: list[dict[str, Any]] = []

    def add(result: dict[str, Any], seconds: float) -> None:
        assert seconds >= 0.0
        found.append(result)

    tasks = plan_tasks(experiments, GPU)
    run_tasks(tasks, work, on_progress=lambda *what: told.append(what), on_result=add)
    assert sorted(result["name"] for result in found) == ["table", "theory"]
    assert next(r for r in found if r["name"] == "theory")["process"] != os.getpid()
    assert len(told) == len(tasks) and all(0.0 <= share < 1.0 for _, share in told)
    bad = [*tasks, Task("bad", GPU, False, False)]
    with pytest.raises(InvalidInput, match="this one fails"):
        run_tasks(bad, work, on_progress=lambda *what: None, on_result=lambda *what: None)
