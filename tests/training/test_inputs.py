"""Participation logs, files of arrivals, and settings that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl import InvalidInput
from covertfl.runs.train import KernelCache, build_federation
from covertfl.training import train
from tests.support.small_runs import DRAWN_QUEUE, HORIZON, QUEUE, make_run, read_rounds, run_small

pytest.importorskip("torch")


def write_log(path: Path, rounds: int = 12, *, most: int = 6) -> Path:
    generator = np.random.default_rng(0)
    lines = ["round,clients,examples,success,arrival"]
    for number in range(1, rounds + 1):
        arrival = 3 * int(generator.random() < 0.2)
        clients, success = generator.integers(0, most + 1), generator.integers(0, 2)
        success = min(success, clients)  # without clients there is no success
        lines.append(f"{number},{clients},100,{success},{arrival}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("acceptance", ["model", "data"])
def test_a_log_is_replayed(tmp_path: Path, acceptance: str) -> None:
    log = write_log(tmp_path / "log.csv", 40)
    federation = {"log": str(log), "acceptance": acceptance}
    run_small(tmp_path / "run", QUEUE, rounds=30, federation=federation)
    rows = [line.split(",") for line in log.read_text().splitlines()[1:31]]
    records = read_rounds(tmp_path / "run")
    assert [len(record["clients"]) for record in records] == [int(row[1]) for row in rows]
    assert [record["arrival"] for record in records] == [int(row[4]) for row in rows]
    nearest = [int(np.argmin(np.abs(np.array([2, 4, 6]) - int(row[1])))) for row in rows]
    assert [record["oracle_state"] for record in records] == nearest
    assert [record["accepted"] for record in records] == [row[3] == "1" for row in rows]
    # Of 100 examples as many whole batches of 20 as the round's clients hold.
    assert all(record["examples"] in (0, 100) or len(record["clients"]) < 2 for record in records)


def test_a_log_with_success_leaves_the_problem_as_it_is(tmp_path: Path) -> None:
    settings = make_run(federation={"log": str(write_log(tmp_path / "log.csv", 40))})
    federation = build_federation(settings, KernelCache())
    assert federation.problem is settings.problem
    assert federation.measured is not None and federation.measured.max() < 0.9


@pytest.mark.parametrize(
    ("rounds", "most", "said"),
    [(8, 6, "at least 12 rounds for this run, got 8"), (12, 9, "clients must be at most 6")],
)
def test_a_log_that_does_not_fit_is_refused(
    tmp_path: Path, rounds: int, most: int, said: str
) -> None:
    log = write_log(tmp_path / "log.csv", rounds, most=most)
    with pytest.raises(InvalidInput, match=said) as caught:
        run_small(tmp_path / "run", federation={"log": str(log)})
    assert "log.csv" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_arrivals_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("round,updates\n2,3\n5,0\n9,1\n500,7\n")
    summary = run_small(tmp_path / "run", DRAWN_QUEUE, rounds=20, arrivals=str(path))
    arrivals = {record["round"]: record["arrival"] for record in read_rounds(tmp_path / "run")}
    assert {number: size for number, size in arrivals.items() if size} == {2: 3, 9: 1}
    assert summary.tasks_arrived == 2


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (HORIZON, {"engine": {"device": "tpu"}}, "device must be cpu or cuda, got 'tpu'"),
        (HORIZON, {"data": {"model": "giant"}}, "mlp or logistic with task = digits, got giant"),
        (HORIZON, {"decoy": {"kind": "ghost"}}, "kind must be one of .*got 'ghost'"),
        (HORIZON, {"federation": {"participation": [2, 6]}}, "must have 3 numbers.*got 2"),
        (HORIZON, {"federation": {"log": "/none.csv"}}, "none.csv: no such file"),
        (HORIZON, {"federation": {"clients": 5000}}, "run.toml"),
        (HORIZON, {"policy": {"kind": "file", "path": "/none.json"}}, "none.json"),
        (QUEUE, {"arrivals": "/none.csv"}, "none.csv"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_a_folder_is_made(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        run_small(tmp_path / "run", base, **changes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", [0, -3])
def test_there_must_be_a_seed(tmp_path: Path, seeds: int) -> None:
    with pytest.raises(InvalidInput, match="seeds must be at least 1"):
        train(make_run(), tmp_path, seeds=seeds)


def test_seeds_must_not_run_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the last seed at most .*, got 2 seeds"):
        train(make_run(seed=2**63 - 1), tmp_path, seeds=2)
