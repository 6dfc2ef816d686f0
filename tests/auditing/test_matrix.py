"""The matrix: every policy with every decoy, trained, audited and drawn."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from covertfl.auditing.matrix import find_colour_ends, run_matrix
from tests.support.commands import Run, refuse
from tests.support.small_runs import QUEUE, make_run


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([[0.11, np.nan], [0.12, 0.31]], (0.1, 0.35)),
        ([[0.0, 1.0]], (0.0, 1.0)),
        ([[0.5, 0.5]], (0.5, 0.55)),
        ([[1.0]], (0.95, 1.0)),
        ([[np.nan]], (0.0, 1.0)),
    ],
)
def test_colours_end_where_the_data_do(
    values: list[list[float]], ends: tuple[float, float]
) -> None:
    assert find_colour_ends(np.array(values)) == pytest.approx(ends)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run of one update with the oracle of the paper's main experiment."""
    file = tmp_path / "run.toml"
    file.write_text(
        'task = "digits"\nrounds = 4\nupdates = 1\n[data]\nmodel = "logistic"\n'
        "[federation]\nclients = 6\nparticipation = [2, 4, 6]\nbatch_size = 20\n"
    )
    return file


@pytest.mark.slow
def test_every_policy_meets_every_decoy(run_file: Path, tmp_path: Path, run: Run) -> None:
    """Exchangeable runs stand beside them, with replicas and rounds of their own."""
    out = tmp_path / "out"
    arguments = ("audit", "--matrix", run_file, "--out", out, "--seeds", "1")
    content = run(*arguments, "--json").content
    cells = [(row["policy"], row["decoy"]) for row in content["rows"]]
    policies = ("greedy", "optimal", "minority", "random")
    decoys = [decoy for policy, decoy in cells if policy == "greedy"]
    assert {"random", "public", "adversarial"} <= set(decoys)
    replicas = [("exchangeable, K = 2", "replica"), ("exchangeable, K = 4", "replica")]
    assert cells == [*((policy, decoy) for policy in policies for decoy in decoys), *replicas]
    schemes = [row["scheme"] for row in content["rows"]]
    assert set(schemes[:-2]) == {"scheduled"} and schemes[-2:] == ["exchangeable"] * 2
    assert [row["bound"]["value"] for row in content["rows"][-2:]] == [0.5, 0.25]
    rounds = [len(row["learner"]["exposure_by_round"]) for row in content["rows"]]
    assert set(rounds[:-2]) == {4} and rounds[-2:] == [17, 26]  # accepted 2 and 4 times, with 95%
    assert json.loads((out / "matrix.json").read_text()) == content
    assert (out / "matrix.png").read_bytes().startswith(b"\x89PNG")
    # What is in it by round says which queries were true.
    assert stat.S_IMODE((out / "matrix.json").stat().st_mode) == 0o600
    shown = run(*arguments).out  # finished runs are kept
    assert "greedy" in shown and "matrix.png" in shown


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 1])
def test_a_smaller_matrix_leaves_the_other_seeds_of_a_larger_one_out(
    seeds: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.getbasetemp() / "matrix"
    told: list[float] = []
    content = run_matrix(
        make_run(),
        out,
        seeds=seeds,
        names=("optimal-random",),
        on_progress=lambda _, share: told.append(share),
    )
    assert content["rows"][0]["runs"] == seeds and told == sorted(told)


@pytest.mark.slow
def test_a_queue_has_the_policies_that_need_no_horizon(tmp_path: Path) -> None:
    kinds = ("greedy", "optimal", "minority", "random")
    names = [*(f"{policy}-random" for policy in kinds), "exchangeable-2", "exchangeable-4"]
    content = run_matrix(make_run(QUEUE, rounds=8), tmp_path, seeds=1, names=names)
    assert [row["policy"] for row in content["rows"]] == ["greedy", "optimal"]
    assert {(row["scheme"], row["decoy"]) for row in content["rows"]} == {("scheduled", "random")}


@pytest.mark.slow
def test_a_matrix_may_start_from_a_run_of_any_scheme(tmp_path: Path) -> None:
    names, schemes = ("greedy-public", "exchangeable-4"), ["scheduled", "exchangeable"]
    rows = []
    for scheme in schemes:
        run = make_run(horizon={"rounds": 4, "updates": 1}, scheme=scheme)
        rows.append(run_matrix(run, tmp_path / scheme, seeds=1, names=names)["rows"])
    assert rows[0] == rows[1]
    assert [row["scheme"] for row in rows[0]] == schemes


def test_a_matrix_needs_a_folder(run_file: Path, run: Run) -> None:
    assert refuse(run("audit", "--matrix", run_file), 2) == (
        "--matrix needs --out and no folders of runs"
    )
