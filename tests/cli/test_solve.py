"""The command `solve`: costs, policies, pictures, refusals and odd but valid problems."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import covertfl as cf
from tests.support.commands import QUEUE_FILE, Run, refuse

MATRIX = "[[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]"


def test_solve_a_queue_file(run: Run, queue_file: Path) -> None:
    content = run("solve", queue_file, "--json").content
    assert content["privacy_cost"] == pytest.approx(0.127196, abs=5e-7)
    assert content["learning_cost"] == pytest.approx(3.0, rel=1e-9)
    assert content["problem"] == "queue" and content["method"] == "exact"
    assert content["capacity"] > 40 and content["full_prob"] < 1e-9
    assert content["structure"]["counterexample"] is None
    assert content["structure"]["assumptions"] == {"M1": True, "M2": True, "M3": True, "M5": True}
    people = run("solve", queue_file)
    assert people.status == 0 and people.err == ""
    assert "0.127196 a round" in people.out


@pytest.mark.parametrize(
    ("preset", "cost", "digits"),
    [
        ("sound/queue", 0.76843, 5e-6),
        ("sound/tracking-before", 0.2208, 5e-5),
        ("sound/tracking-after", 0.3054, 5e-5),
        ("paper-code/tracking-before", 0.2208, 5e-5),
        ("paper-code/tracking-after", 0.3054, 5e-5),
    ],
)
def test_solved_presets(run: Run, preset: str, cost: float, digits: float) -> None:
    content = run("solve", "--preset", preset, "--json").content
    assert content["privacy_cost"] == pytest.approx(cost, abs=digits)


@pytest.mark.parametrize("preset", cf.list_presets())
def test_every_preset_can_be_solved_and_read(run: Run, preset: str) -> None:
    outcome = run("solve", "--preset", preset)
    assert outcome.status == 0 and outcome.err == ""
    assert "What is proven" in outcome.out
    assert all(character == "\n" or character.isprintable() for character in outcome.out)


@pytest.mark.slow
def test_lp_and_exact_agree(run: Run, queue_file: Path) -> None:
    exact = run("solve", queue_file, "--json").content
    check = run("solve", queue_file, "--method", "lp", "--json").content
    assert check["method"] == "lp"
    assert check["capacity"] == exact["capacity"]
    assert check["privacy_cost"] == pytest.approx(exact["privacy_cost"], rel=1e-8)
    assert check["learning_cost"] == pytest.approx(3.0, rel=1e-8)


def test_lp_is_refused_on_a_horizon(run: Run) -> None:
    message = refuse(run("solve", "--preset", "sound/main", "--method", "lp", "--json"), 2)
    assert "method lp is for queue problems" in message


def test_a_queue_policy_written_and_read_costs_what_was_said(
    run: Run, queue_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    content = run("solve", queue_file, "--policy-out", path, "--json").content
    written = json.loads(path.read_text())
    assert written.keys() == {"format", "problem", "learn_prob"} and written["problem"] == "queue"
    assert np.shape(written["learn_prob"]) == (3, 2, content["capacity"] + 1)
    problem, policy = cf.load_problem(queue_file), cf.read_policy(path)
    assert isinstance(problem, cf.QueueProblem) and isinstance(policy, cf.QueueTable)
    evaluation = cf.evaluate_queue_policy(problem.with_capacity(content["capacity"]), policy)
    assert evaluation.privacy_cost == pytest.approx(content["privacy_cost"], rel=1e-12)
    assert evaluation.learning_cost == pytest.approx(content["learning_cost"], rel=1e-12)
    assert evaluation.learn_fraction == pytest.approx(content["learn_fraction"], rel=1e-12)


def test_a_horizon_policy_written_and_read_costs_what_was_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    content = run("solve", "--preset", "sound/main", "--policy-out", path, "--json").content
    written = json.loads(path.read_text())
    assert written["problem"] == "horizon"
    assert np.shape(written["learn_prob"]) == (45, 3, 17)
    problem, policy = cf.load_problem("sound/main"), cf.read_policy(path)
    assert isinstance(problem, cf.FiniteHorizon) and isinstance(policy, cf.HorizonTable)
    costs = [
        cf.evaluate_horizon_policy(problem, policy, first=np.eye(3)[state]).total_cost
        for state in range(3)
    ]
    assert costs == pytest.approx(content["expected_cost"], rel=1e-12)


def test_a_limit_that_cannot_be_met_names_the_best(run: Run, queue_file: Path) -> None:
    queue_file.write_text(QUEUE_FILE.replace("3.0", "1.5"))
    message = refuse(run("solve", queue_file, "--json"), 3)
    assert message == "learning_limit = 1.5 cannot be met: the best reachable value is 1.65617"
    queue_file.write_text(QUEUE_FILE.replace("3.0", "1.6562"))
    assert run("solve", queue_file, "--json").status == 0


def test_a_queue_that_cannot_be_served_names_the_drift(run: Run, queue_file: Path) -> None:
    queue_file.write_text(QUEUE_FILE.replace("0.05", "0.5"))
    message = refuse(run("solve", queue_file), 3)
    assert "2 updates arrive in a round and at most 0.437143 can be done" in message
    assert "grows by 1.56286 a round" in message


def test_a_policy_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "missing" / "policy.json"
    message = refuse(run("solve", "--preset", "sound/main", "--policy-out", place), 2)
    assert message == f"{place} cannot be written: No such file or directory"


def test_without_matplotlib(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = refuse(run("solve", "--preset", "sound/main", "--plot", tmp_path / "x.png"), 4)
    assert "pip install 'covertfl[report]'" in message
    assert list(tmp_path.iterdir()) == []
    assert run("solve", "--preset", "sound/main", "--json").status == 0


# --- odd but valid ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({'"auto"': "1\noverflow_cost = 1.0"}, 0),
        ({'"auto"': "3\noverflow_cost = 1.0"}, 0),  # an arrival does not even fit
        ({"[0.1, 0.43, 0.95]": "[1.0, 1.0, 1.0]"}, 0),
        ({"[0.1, 0.43, 0.95]": "[0.0, 0.0, 0.0]"}, 3),
        ({"[0.1, 0.43, 0.95]": "[0.0, 0.0, 0.0]", '"auto"': "5\noverflow_cost = 0.0"}, 0),
        ({"0.05": "1.0"}, 3),
        ({"0.05": "1.0", '"auto"': "9\noverflow_cost = 0.0", "3.0": "9.0"}, 0),
        ({"[1.8, 0.8, 0.3]": "[1.8e12, 0.8e12, 0.3e12]"}, 0),
        ({"[1.8, 0.8, 0.3]": "[1.8e-12, 0.8e-12, 0.3e-12]"}, 0),
        ({"[1.8, 0.8, 0.3]": "[0.0, 0.0, 0.0]"}, 0),
        ({"scale = 0.6": "scale = 0.6e12", "3.0": "3.0e12"}, 0),
        ({"scale = 0.6": "scale = 0.6e-12", "3.0": "3.0e-12"}, 0),
        ({"3.0": "0.0"}, 3),
        ({"3.0": "8.0"}, 0),  # the best state alone keeps up: the limit does not bind
        ({"learning_limit = 3.0": "privacy_limit = 0.3", '"privacy"': '"learning"'}, 0),
        ({MATRIX: "[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]"}, 0),  # periodic
    ],
)
def test_odd_queues_end_with_an_answer_or_a_sentence(
    run: Run, queue_file: Path, changes: dict[str, str], status: int
) -> None:
    text = QUEUE_FILE
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    queue_file.write_text(text)
    outcome = run("solve", queue_file, "--json")
    if status:
        refuse(outcome, status)
    else:
        assert outcome.content["problem"] == "queue"


def test_scaling_the_privacy_cost_scales_the_optimum(run: Run, queue_file: Path) -> None:
    plain = run("solve", queue_file, "--json").content
    for factor in (1e-12, 1e12):
        costs = [1.8 * factor, 0.8 * factor, 0.3 * factor]
        queue_file.write_text(QUEUE_FILE.replace("[1.8, 0.8, 0.3]", repr(costs)))
        scaled = run("solve", queue_file, "--json").content
        assert scaled["privacy_cost"] == pytest.approx(factor * plain["privacy_cost"], rel=1e-9)
