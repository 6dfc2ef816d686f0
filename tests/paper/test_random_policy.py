"""Optimal minus random, from outcomes that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from paper import random_policy, table_mnist
from paper.experiment import Request
from paper.trials.cells import CellStore
from paper.trials.covert_runs import RunOutcome

from covertfl.evaluation.horizon import HorizonEvaluation

EXACT = HorizonEvaluation(0.0, 0.0, 0.5, 0.25, 1.0, 1.0, 1.0, 0.0)


def test_difference_is_optimal_minus_random_paired_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = {"optimal": (0.9, 0.8, 0.7), "random": (0.6, 0.5, 0.4)}

    def known(*_: Any) -> tuple[list[table_mnist.Outcomes], int]:
        outcomes = {
            (policy, 0): [
                RunOutcome([0.1, last], [0.1, 0.1], 0.1, 0.1, 0.0, 0.25, True, 2, EXACT)
                for last in found
            ]
            for policy, found in learners.items()
        }
        return [outcomes], 0

    monkeypatch.setattr(table_mnist, "compute_outcomes", known)
    result = random_policy.run(Request(), CellStore(tmp_path))
    assert result["difference"]["mean"] == pytest.approx(0.3)
    assert result["difference"]["interval"] == pytest.approx([0.3, 0.3])
    assert {row["policy"]: row["learner"]["mean"] for row in result["rows"]} == {
        "optimal": 0.8,
        "random": 0.5,
    }
