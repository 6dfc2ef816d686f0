"""From a log straight to a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.fitting.policy import LogPolicy
from covertfl.solvers.spga import search as spga
from tests.support.participation import PAPER, draw_rounds, fit_log


def record(rounds: int, arrival_size: int, *, with_arrivals: bool = True) -> cf.Fit:
    """Return the fit of a log whose clients are the oracle's states."""
    generator = np.random.default_rng(8)
    states, success = draw_rounds(PAPER, rounds, generator)
    columns = {"clients": states, "success": success.astype(int)}
    arrival = arrival_size * (generator.random(rounds) < 0.1)
    return fit_log({"cuts": (1, 2)}, **columns, **({"arrival": arrival} if with_arrivals else {}))


def search(fitted: cf.Fit, **changes: Any) -> LogPolicy:
    options: dict[str, Any] = {"seed": 1, "iterations": 2000, "rounds": 12, "updates": 4}
    return fitted.search_policy(**options | changes)


def test_arrivals_give_a_queue_policy() -> None:
    reported: list[tuple[str, float]] = []
    found = search(
        record(3_000, 3), on_progress=lambda detail, share: reported.append((detail, share))
    )
    assert isinstance(found.problem, cf.QueueProblem)
    assert isinstance(found.policy, cf.QueueTable)
    assert found.policy.table.shape[:2] == (3, 2)
    assert found.gap is not None and 0.0 <= found.gap < 0.1
    averages = found.evaluation
    assert averages is not None
    assert found.describe() == {
        "problem": "queue",
        "method": "spga",
        "gap": found.gap,
        "privacy_cost": averages.privacy_cost,
        "learning_cost": averages.learning_cost,
        "learning_limit": found.problem.limit,
    }
    assert f"{found.gap:.2%} more than the optimum at the same learning cost" in found.sentence
    assert f"learning cost is {averages.learning_cost:.4g} (limit " in found.sentence
    assert reported[-1][1] == 1.0 and reported[-1][0].startswith("privacy ")
    assert reported[-1][0].endswith(f"(limit {found.problem.limit:g})")


def test_arrivals_that_cannot_be_served_play_no_part_in_a_horizon() -> None:
    """All updates are owed at the beginning: the same policy with and without the column."""
    with_column, found = (search(record(3_000, 9, with_arrivals=w)) for w in (True, False))
    assert isinstance(found.problem, cf.FiniteHorizon)
    assert isinstance(found.policy, cf.HorizonTable)
    assert found.policy.table.shape == (12, 3, 5)
    assert np.all(found.policy.table == found.policy.table[0])  # stationary
    assert found.gap is not None and 0.0 <= found.gap < 0.1
    assert found.describe()["problem"] == "horizon"
    assert isinstance(with_column.problem, cf.FiniteHorizon)
    assert np.array_equal(with_column.policy.table, found.policy.table)
    assert with_column.gap == found.gap
    unknown = replace(found, gap=None)
    assert "no optimum to compare" in unknown.sentence and unknown.describe()["gap"] is None


def test_fitted_probabilities_are_not_searched_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is handed costs and the recorded rounds, in their order."""
    columns: dict[str, list[Any]] = {
        "clients": [1, 9, 5, 9, 1, 5] * 20,
        "success": [0, 1, 1, 1, 0, 0] * 20,
        "arrival": [0, 1, 0, 0, 2, 0] + [0] * 114,
    }
    handed: dict[str, Any] = {}
    real = spga.search_policy

    def note(rules: Any, source: Any, *rest: Any, **options: Any) -> Any:
        handed.update(rules=rules, rounds=source.next_rounds(120))
        return real(rules, source, *rest, **options)

    monkeypatch.setattr(spga, "search_policy", note)
    found = search(fit_log({"cuts": (4, 8)}, **columns), iterations=5)
    assert isinstance(found.problem, cf.QueueProblem)
    assert all(np.shape(part) != (3, 3) for part in handed["rules"])
    seen = handed["rounds"]
    assert seen.oracle_state.tolist() == [0, 2, 1, 2, 0, 1] * 20
    assert seen.arrival.tolist() == columns["arrival"]
    assert seen.success.astype(int).tolist() == columns["success"]


def test_gap_that_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.solvers.spga.score.measure_gap", lambda *_: float("nan"))
    found = search(record(2_000, 3), iterations=5)
    assert found.gap is None and found.describe()["gap"] is None
    assert "no optimum to compare" in found.sentence
