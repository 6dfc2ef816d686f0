"""The problems that ship with covertfl have the numbers of the paper and of the notes on it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from covertfl.cli import app as cli
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import (
    list_presets,
    parse_problem,
    read_preset,
    read_preset_text,
)
from covertfl.errors import InvalidInput
from tests.support.same_problem import same_problem

Matrix = list[list[float]]
TEXT_MATRIX: Matrix = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
CODE_MATRIX = [[0.7, 0.3, 0.0], [0.15, 0.7, 0.15], [0.0, 0.15, 0.85]]
TRACKING_MATRIX = [[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.1, 0.2, 0.7]]
SUCCESS, TRACKING_SUCCESS = [0.1, 0.43, 0.95], [0.1, 0.6, 0.9]
FALLING, PRINTED = [1.8, 0.8, 0.3], [0.3, 0.8, 1.8]


def growing_table(capacity: int) -> np.ndarray:
    """From 0.6 to 10 over 0 .. capacity, and nothing at backlog 0."""
    values = np.linspace(0.6, 10.0, capacity + 1)
    values[0] = 0.0
    return values


def test_there_are_fifteen() -> None:
    names = list_presets()
    assert len(names) == len(set(names)) == 15
    assert {name.split("/")[0] for name in names} == {"sound", "paper-text", "paper-code"}
    assert {name.split("/")[1] for name in names} == {
        "queue", "main", "tracking-before", "tracking-after", "states7",
    }  # fmt: skip


def assert_matrix(problem: FiniteHorizon | QueueProblem, matrix: Matrix) -> None:
    assert problem.oracle.transition == pytest.approx(np.array(matrix), abs=1e-15)


def read_queue(name: str) -> QueueProblem:
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem


def read_horizon(name: str) -> FiniteHorizon:
    problem = read_preset(name).problem
    assert isinstance(problem, FiniteHorizon)
    return problem


@pytest.mark.parametrize("reading", ["sound", "paper-text", "paper-code"])
def test_the_queue(reading: str) -> None:
    problem = read_queue(f"{reading}/queue")
    cost = problem.learning_cost
    assert_matrix(problem, TEXT_MATRIX)
    assert problem.oracle.success.tolist() == SUCCESS
    assert (problem.arrival_prob, problem.arrival_size) == (0.1, 4)
    assert problem.objective == "privacy"
    if reading == "sound":
        assert problem.privacy_cost.tolist() == FALLING
        assert (cost.shape, cost.scale, cost.charged) == ("linear", 0.6, "always")
        assert (problem.capacity, problem.limit, problem.full_cost) == (None, 25.0, 0.0)
        return
    assert (problem.capacity, problem.overflow_cost, problem.full_cost) == (40, 0.0, 100.0)
    assert cost.charged == "when-obfuscating"
    if reading == "paper-text":
        assert problem.privacy_cost.tolist() == PRINTED
        assert (cost.shape, cost.scale, problem.limit) == ("constant", 0.6, 0.2)
    else:
        assert problem.privacy_cost.tolist() == FALLING
        assert (cost.shape, problem.limit) == ("table", 0.4)
        assert cost.values == pytest.approx(growing_table(40), abs=1e-9)


@pytest.mark.parametrize(
    ("reading", "matrix", "privacy"),
    [
        ("sound", TEXT_MATRIX, FALLING),
        ("paper-text", TEXT_MATRIX, PRINTED),
        ("paper-code", CODE_MATRIX, FALLING),
    ],
)
def test_the_main_experiment(reading: str, matrix: Matrix, privacy: list[float]) -> None:
    problem = read_horizon(f"{reading}/main")
    assert_matrix(problem, matrix)
    assert problem.oracle.success.tolist() == SUCCESS
    assert problem.privacy_cost.tolist() == privacy
    assert (problem.learning_cost.shape, problem.learning_cost.scale) == ("quadratic", 0.6)
    assert (problem.rounds, problem.updates) == (45, 16)


@pytest.mark.parametrize("reading", ["sound", "paper-text", "paper-code"])
@pytest.mark.parametrize(("name", "prob", "size"), [("before", 0.03, 10), ("after", 0.1, 4)])
def test_the_tracking_experiment(reading: str, name: str, prob: float, size: int) -> None:
    problem = read_queue(f"{reading}/tracking-{name}")
    assert_matrix(problem, TRACKING_MATRIX)
    assert problem.oracle.success.tolist() == TRACKING_SUCCESS
    assert (problem.arrival_prob, problem.arrival_size) == (prob, size)
    assert problem.learning_cost.charged == "when-obfuscating"
    assert problem.full_cost == 100.0
    if reading != "paper-text":
        assert problem.privacy_cost.tolist() == FALLING
        assert (problem.capacity, problem.limit) == (60, 0.4)
        assert problem.learning_cost.values == pytest.approx(growing_table(60), abs=1e-9)


@pytest.mark.parametrize("reading", ["sound", "paper-text", "paper-code"])
def test_seven_states(reading: str) -> None:
    problem = read_horizon(f"{reading}/states7")
    matrix = [
        [0.7, 0.2, 0.05, 0.03, 0.02, 0.0, 0.0],
        [0.4, 0.42, 0.05, 0.03, 0.05, 0.05, 0.0],
        [0.2, 0.3, 0.37, 0.02, 0.04, 0.04, 0.03],
        [0.025, 0.1, 0.2, 0.35, 0.2, 0.1, 0.025],
        [0.03, 0.04, 0.04, 0.02, 0.37, 0.3, 0.2],
        [0.0, 0.05, 0.05, 0.03, 0.05, 0.42, 0.4],
        [0.0, 0.0, 0.02, 0.03, 0.05, 0.2, 0.7],
    ]
    assert_matrix(problem, matrix)
    assert problem.privacy_cost.tolist() == [1.8, 1.4, 1.1, 0.8, 0.5, 0.3, 0.1]
    assert problem.oracle.success.tolist() == [0.01, 0.12, 0.41, 0.75, 0.94, 0.96, 1.0]
    assert (problem.rounds, problem.updates) == (120, 30)


@pytest.mark.parametrize("name", list_presets())
def test_a_printed_preset_is_the_same_problem(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["covertfl", "presets", name])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = parse_problem(capsys.readouterr().out, "printed").problem
    assert same_problem(printed, read_preset(name).problem)
    others = [other for other in list_presets() if other.split("/")[1] != name.split("/")[1]]
    assert not any(same_problem(printed, read_preset(other).problem) for other in others)


def test_an_unknown_preset() -> None:
    for name in ("sound", "sound/", "sound/Queue", "../sound/queue", "sound/queue.toml", ""):
        with pytest.raises(InvalidInput, match=r"preset must be READING/NAME .* got "):
            read_preset_text(name)
