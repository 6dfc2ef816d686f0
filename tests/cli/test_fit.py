"""The command `fit`: from a log to a problem, and logs that cannot be used."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import covertfl as cf
from tests.support.commands import EXAMPLE_LOG, Run, refuse
from tests.support.ordinary_user import read_only


def test_from_a_log_to_a_policy(run: Run, tmp_path: Path) -> None:
    problem = tmp_path / "problem.toml"
    arguments = ("fit", EXAMPLE_LOG, "--cuts", "8,15", "--min-examples", "6800")
    outcome = run(*arguments, "-o", problem)
    assert outcome.status == 0
    assert f"next: covertfl plan {problem}" in outcome.out
    plan = run("plan", problem, "--json").content
    assert plan["stable"] is True
    solution = run("solve", problem, "--json").content
    assert solution["structure"]["monotone_in_backlog"] is True
    limit = tomllib.loads(problem.read_text())["queue"]["learning_limit"]
    here = next(point for point in plan["frontier"] if point["limit"] == limit)
    assert here["privacy_cost"] == pytest.approx(solution["privacy_cost"], rel=1e-9)
    content = run(*arguments, "--json").content
    assert np.shape(content["transition"]) == (3, 3)
    assert cf.load_problem(problem).oracle.success.tolist() == content["success"]
    assert "[oracle]" in run(*arguments).out


def test_a_fitted_horizon_carries_its_uncertainty_into_the_plan(run: Run, tmp_path: Path) -> None:
    log, problem = tmp_path / "log.csv", tmp_path / "problem.toml"
    lines = [line.rsplit(",", 1)[0] for line in Path(EXAMPLE_LOG).read_text().splitlines()]
    log.write_text("\n".join(lines) + "\n")
    arguments = ("--min-examples", "6800", "-o", problem, "--rounds", "20", "--updates", "4")
    assert run("fit", log, *arguments).status == 0
    completion = run("plan", problem, "--json").content["completion"]
    for prob, (low, high) in zip(
        completion["minority"], completion["minority_interval"], strict=True
    ):
        assert low < prob < high
    assert "95% interval" in run("plan", problem).out


def test_states_from_a_quality_score(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    generator = np.random.default_rng(0)
    rows = [
        f"{number},20,100,{score:.3f},{int(luck < score)}"
        for number, (score, luck) in enumerate(generator.random((300, 2)), start=1)
    ]
    log.write_text("round,clients,examples,quality,success\n" + "\n".join(rows) + "\n")
    content = run("fit", log, "--column", "quality", "--states", "4", "--json").content
    assert content["column"] == "quality"
    assert len(content["cuts"]) == 3 and content["visits"] == [75] * 4
    assert content["success"] == sorted(content["success"])
    assert "one state" in refuse(run("fit", log, "--json"), 2)  # 20 clients in every round


def test_fit_options_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    assert "give min_examples (--min-examples)" in refuse(run("fit", EXAMPLE_LOG), 2)
    given = ("fit", EXAMPLE_LOG, "--min-examples", "6800")
    assert "--cuts must be numbers" in refuse(run(*given, "--cuts", "8;15"), 2)
    assert "cuts must increase" in refuse(run(*given, "--cuts", "15,8"), 2)
    assert "exclude each other" in refuse(run(*given, "--cuts", "8", "--states", "2"), 2)
    assert "states must be a whole number of at least 2" in refuse(run(*given, "--states", "1"), 2)
    assert "no column speed" in refuse(run(*given, "--column", "speed"), 2)
    assert "(--min-examples) must be" in refuse(run("fit", EXAMPLE_LOG, "--min-examples", "-5"), 2)
    assert run(*given, "--rounds", "0").status == 2


def test_a_fit_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    given = ("fit", EXAMPLE_LOG, "--min-examples", "6800", "-o")
    place = tmp_path / "missing" / "problem.toml"
    assert refuse(run(*given, place), 2) == f"{place} cannot be written: No such file or directory"
    assert "Is a directory" in refuse(run(*given, tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_fit_into_a_folder_that_is_read_only(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(Path(EXAMPLE_LOG).read_text())
    place = tmp_path / "problem.toml"
    with read_only(tmp_path):
        said = refuse(run("fit", tmp_path / "log.csv", "--min-examples", "6800", "-o", place), 2)
    assert said == f"{place} cannot be written: Permission denied"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_the_printed_sections_say_what_the_states_stand_for(run: Run, tmp_path: Path) -> None:
    given = ("fit", EXAMPLE_LOG, "--cuts", "8,15", "--min-examples", "6800")
    problem = tmp_path / "problem.toml"
    printed = run(*given).out
    assert run(*given, "-o", problem).status == 0
    sections = tomllib.loads(printed[printed.index("# Fitted to") :])
    written = tomllib.loads(problem.read_text())
    assert sections == {name: written[name] for name in ("oracle", "states")}
