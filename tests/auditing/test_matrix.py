"""The matrix: every policy with every decoy, trained, audited and drawn."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from covertfl.auditing.matrix import find_colour_ends, render_matrix, run_matrix
from covertfl.cli.audit import find_matrix_rounds
from covertfl.decision.problem_file import read_preset
from covertfl.display.tables import print_tables
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from tests.support.small_runs import QUEUE, make_run

DECOYS = ("random", "public")


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


@pytest.mark.slow
def test_every_policy_meets_every_decoy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[float] = []
    content = run_matrix(
        make_run(),
        tmp_path,
        seeds=1,
        decoys=DECOYS,
        on_progress=lambda _, share: told.append(share),
    )
    cells = [(row["policy"], row["decoy"]) for row in content["rows"]]
    policies = ("greedy", "optimal", "minority", "random")
    assert cells == [(policy, decoy) for policy in policies for decoy in DECOYS]
    assert all(set(EAVESDROPPERS) >= set(row["eavesdroppers"]) for row in content["rows"])
    assert len({tuple(row["eavesdroppers"]) for row in content["rows"]}) == 1
    assert told == sorted(told)
    assert json.loads((tmp_path / "matrix.json").read_text()) == content
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
    # What is in it by round says which queries were true.
    assert stat.S_IMODE((tmp_path / "matrix.json").stat().st_mode) == 0o600
    print_tables(render_matrix(content))
    assert "greedy" in capsys.readouterr().out


@pytest.mark.slow
def test_exchangeable_runs_stand_beside_the_paper_s_policies(tmp_path: Path) -> None:
    """Only with replicas, which no other policy has, and with rounds of their own."""
    content = run_matrix(
        make_run(),
        tmp_path,
        seeds=1,
        policies=("optimal",),
        decoys=("random",),
        replicas={2: 16, 4: 20},
    )
    cells = [(row["policy"], row["decoy"]) for row in content["rows"]]
    assert cells == [
        ("optimal", "random"),
        ("exchangeable, K = 2", "replica"),
        ("exchangeable, K = 4", "replica"),
    ]
    assert [row["bound"]["value"] for row in content["rows"][1:]] == [0.5, 0.25]
    assert [len(row["learner"]["exposure_by_round"]) for row in content["rows"]] == [12, 16, 20]


def test_the_matrix_has_the_rounds_of_the_plan() -> None:
    """Those of docs/exchangeable.md for the main experiment."""
    assert find_matrix_rounds(read_preset("sound/main").problem) == {2: 115, 4: 204}
    assert find_matrix_rounds(make_run(QUEUE).problem) == {}


@pytest.mark.slow
def test_a_smaller_matrix_leaves_the_other_seeds_of_a_larger_one_out(tmp_path: Path) -> None:
    runs = []
    for seeds in (2, 1):
        content = run_matrix(
            make_run(), tmp_path, seeds=seeds, policies=("optimal",), decoys=("random",)
        )
        runs.append(content["rows"][0]["runs"])
    assert runs == [2, 1]


@pytest.mark.slow
def test_a_queue_has_the_policies_that_need_no_horizon(tmp_path: Path) -> None:
    content = run_matrix(make_run(QUEUE, rounds=8), tmp_path, seeds=1, decoys=("random",))
    assert [row["policy"] for row in content["rows"]] == ["greedy", "optimal"]
