"""`solve --method spga` and `fit --policy` from the command line to the files they write."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.cli import app as cli
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.policy_file import read_policy
from covertfl.decision.problem_file import read_preset
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.experience import SimulatedSource
from tests.support.paper_queues import TEXT_ORACLE, reference_queue

EXAMPLE_LOG = str(resources.files("covertfl") / "data" / "participation.csv")
QUEUE_FILE = """
[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]
[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, charged = "when-obfuscating" }
[queue]
arrival_prob   = 0.1
arrival_size   = 4
learning_limit = 1.0
capacity       = 40
overflow_cost  = 0.0
"""
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process; what it prints on standard output."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            assert not stop.code, capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.fixture
def queue_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.toml"
    path.write_text(QUEUE_FILE)
    return path


def content(text: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(text)
    assert described.pop("seconds") > 0.0
    return described


def test_queue_search_reports_the_optimum_and_the_gap(run: Run, queue_file: Path) -> None:
    arguments = ("solve", queue_file, "--method", "spga", "--iterations", 150, "--seed", 7)
    described = content(run(*arguments, "--runs", 2, "--json"))
    assert (described["problem"], described["method"]) == ("queue", "spga")
    assert (described["iterations"], described["seed"]) == (150, 7)
    assert len(described["runs"]) == 2
    assert described["gap"] in [item["gap"] for item in described["runs"]]
    assert -1e-6 < described["gap"] < 0.2
    optimum = solve_queue(reference_queue())
    assert described["optimum"] == pytest.approx(optimum.cost)
    assert set(content(run("solve", queue_file, "--json"))) <= set(described)
    # The same seed gives the same numbers; the first run does not depend on how many follow.
    assert content(run(*arguments, "--runs", 2, "--json")) == described
    alone = content(run(*arguments, "--json"))
    assert alone["runs"] == described["runs"][:1]
    other = content(run(*arguments[:-1], 8, "--json"))
    assert other["privacy_cost"] != alone["privacy_cost"]


def test_queue_search_writes_and_draws(run: Run, queue_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    policy, picture = tmp_path / "policy.json", tmp_path / "search.png"
    arguments = ("solve", queue_file, "--method", "spga", "--iterations", 150)
    printed = run(*arguments, "--policy-out", policy, "--plot", picture)
    assert "optimum" in printed
    written = read_policy(policy)
    assert isinstance(written, QueueTable)
    assert written.table.shape == (3, 2, 41)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_horizon_search(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    arguments = ("solve", "--preset", "sound/main", "--method", "spga")
    described = content(run(*arguments, "--json", "--policy-out", policy))
    assert (described["problem"], described["method"]) == ("horizon", "spga")
    assert (described["iterations"], described["seed"]) == (2000, 0)
    assert 0.0 < described["gap"] < 0.05
    assert len(described["thresholds"]) == 45
    assert all(row == described["thresholds"][0] for row in described["thresholds"])
    exact = solve_horizon(read_preset("sound/main").problem).expected_cost  # type: ignore[arg-type]
    assert np.all(np.array(described["expected_cost"]) >= np.array(exact) - 1e-9)
    assert isinstance(read_policy(policy), HorizonTable)
    assert content(run(*arguments, "--json")) == described
    assert "stationary" in run(*arguments)


# --- fit ----------------------------------------------------------------------------------------


def write_log(path: Path, *, with_arrivals: bool = True) -> Path:
    source = SimulatedSource(TEXT_ORACLE, 0.1, 3, generator=np.random.default_rng(8))
    rounds = source.next_rounds(2_000)
    columns = {
        "round": np.arange(len(rounds)),
        "clients": rounds.oracle_state + 1,
        "examples": 100 * rounds.success,
        "success": rounds.success.astype(int),
    }
    if with_arrivals:
        columns["arrival"] = rounds.arrival
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return path


@pytest.mark.slow
def test_fit_goes_from_a_log_to_a_queue_policy(run: Run, tmp_path: Path) -> None:
    log, policy = write_log(tmp_path / "log.csv"), tmp_path / "policy.json"
    arguments = ("fit", log, "--cuts", "2,3", "--policy", policy)
    described = json.loads(run(*arguments, "--seed", 3, "--json"))
    assert described["policy"]["problem"] == "queue"
    assert 0.0 <= described["policy"]["gap"] < 0.1
    written = read_policy(policy)
    assert isinstance(written, QueueTable)
    # The same seed, the same policy; written for people as well.
    assert "Policy written to" in run(*arguments, "--seed", 3)
    again = read_policy(policy)
    assert np.array_equal(again.table, written.table)
    run(*arguments, "--seed", 4)
    assert not np.array_equal(read_policy(policy).table, written.table)


def test_fit_goes_from_a_log_to_a_horizon_policy(run: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", with_arrivals=False)
    policy = tmp_path / "policy.json"
    sizes = ("--rounds", 10, "--updates", 4, "--iterations", 300)
    described = json.loads(run("fit", log, "--cuts", "2,3", "--policy", policy, *sizes, "--json"))
    assert described["policy"]["problem"] == "horizon"
    assert described["policy"]["gap"] >= 0.0
    written = read_policy(policy)
    assert isinstance(written, HorizonTable)
    assert written.table.shape == (10, 3, 5)


def test_fit_searches_only_if_asked(run: Run) -> None:
    described = json.loads(run("fit", EXAMPLE_LOG, "--min-examples", 6800, "--json"))
    assert "policy" not in described
