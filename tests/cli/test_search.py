"""`solve --method spga` and `fit --policy` from the command line to the files they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from tests.support.commands import EXAMPLE_LOG, QUEUE_FILE, Run
from tests.support.participation import PAPER, draw_rounds, format_log


@pytest.fixture
def queue_file(tmp_path: Path) -> Path:
    """The queue whose optimum is 0.705722."""
    text = QUEUE_FILE
    for old, new in {
        '"always"': '"when-obfuscating"',
        "0.05": "0.1",
        "3.0": "1.0",
        '"auto"': "40\noverflow_cost = 0.0",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path / "problem.toml"
    path.write_text(text)
    return path


def solve(run: Run, *arguments: object) -> dict[str, Any]:
    described: dict[str, Any] = run("solve", *arguments, "--json").content
    assert described.pop("seconds") > 0.0
    return described


def test_queue_search_reports_the_optimum_and_the_gap(run: Run, queue_file: Path) -> None:
    arguments = (queue_file, "--method", "spga", "--iterations", 150)
    described = solve(run, *arguments, "--seed", 7, "--runs", 2)
    assert (described["problem"], described["method"]) == ("queue", "spga")
    assert (described["iterations"], described["seed"]) == (150, 7)
    assert len(described["runs"]) == 2
    assert described["gap"] in [item["gap"] for item in described["runs"]]
    assert -1e-6 < described["gap"] < 0.2
    assert described["optimum"] == pytest.approx(0.705722, abs=1e-6)
    assert set(solve(run, queue_file)) <= set(described)
    # The same seed gives the same numbers; the first run does not depend on how many follow.
    assert solve(run, *arguments, "--seed", 7, "--runs", 2) == described
    alone = solve(run, *arguments, "--seed", 7)
    assert alone["runs"] == described["runs"][:1]
    assert solve(run, *arguments, "--seed", 8)["privacy_cost"] != alone["privacy_cost"]


def test_queue_search_writes_and_draws(run: Run, queue_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    policy, picture = tmp_path / "policy.json", tmp_path / "search.png"
    arguments = ("solve", queue_file, "--method", "spga", "--iterations", 150)
    assert "optimum" in run(*arguments, "--policy-out", policy, "--plot", picture).out
    written = cf.read_policy(policy)
    assert isinstance(written, cf.QueueTable)
    assert written.table.shape == (3, 2, 41)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_horizon_search(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    arguments = ("--preset", "sound/main", "--method", "spga")
    described = solve(run, *arguments, "--policy-out", policy)
    assert (described["problem"], described["method"]) == ("horizon", "spga")
    assert (described["iterations"], described["seed"]) == (2000, 0)
    assert 0.0 < described["gap"] < 0.05
    assert len(described["thresholds"]) == 45
    assert all(row == described["thresholds"][0] for row in described["thresholds"])
    exact = cf.solve("sound/main").expected_cost
    assert np.all(np.array(described["expected_cost"]) >= np.array(exact) - 1e-9)
    assert isinstance(cf.read_policy(policy), cf.HorizonTable)
    assert solve(run, *arguments) == described
    assert "stationary" in run("solve", *arguments).out


# --- fit ----------------------------------------------------------------------------------------


def write_log(path: Path, *, with_arrivals: bool = True) -> Path:
    generator = np.random.default_rng(8)
    states, success = draw_rounds(PAPER, 3_000, generator)
    columns = {"clients": states + 1, "examples": 100 * success, "success": success.astype(int)}
    if with_arrivals:
        columns["arrival"] = 3 * (generator.random(3_000) < 0.1)
    path.write_text(format_log(**columns))
    return path


@pytest.mark.slow
def test_fit_goes_from_a_log_to_a_queue_policy(run: Run, tmp_path: Path) -> None:
    log, policy = write_log(tmp_path / "log.csv"), tmp_path / "policy.json"
    arguments = ("fit", log, "--cuts", "2,3", "--policy", policy)
    described = run(*arguments, "--seed", 3, "--json").content
    assert described["policy"]["problem"] == "queue"
    assert 0.0 <= described["policy"]["gap"] < 0.1
    written = cf.read_policy(policy)
    assert isinstance(written, cf.QueueTable)
    # The same seed, the same policy; written for people as well.
    assert "Policy written to" in run(*arguments, "--seed", 3).out
    again = cf.read_policy(policy)
    assert np.array_equal(again.table, written.table)
    run(*arguments, "--seed", 4)
    assert not np.array_equal(cf.read_policy(policy).table, written.table)


def test_fit_goes_from_a_log_to_a_horizon_policy(run: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", with_arrivals=False)
    policy = tmp_path / "policy.json"
    sizes = ("--rounds", 10, "--updates", 4, "--iterations", 300)
    described = run("fit", log, "--cuts", "2,3", "--policy", policy, *sizes, "--json").content
    assert described["policy"]["problem"] == "horizon"
    assert described["policy"]["gap"] >= 0.0
    written = cf.read_policy(policy)
    assert isinstance(written, cf.HorizonTable)
    assert written.table.shape == (10, 3, 5)


def test_fit_searches_only_if_asked(run: Run) -> None:
    described = run("fit", EXAMPLE_LOG, "--min-examples", 6800, "--json").content
    assert "policy" not in described
