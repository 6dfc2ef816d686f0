"""From a log straight to a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.fitting.log import ParticipationLog
from covertfl.fitting.oracle import FittedOracle, fit_oracle
from covertfl.fitting.policy import LogPolicy, extract_experience, search_on_log
from covertfl.solvers.spga import score as spga_score
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.search import search_policy
from tests.support.paper_queues import TEXT_ORACLE


def recorded(count: int, arrival_size: int) -> Experience:
    source = SimulatedSource(TEXT_ORACLE, 0.1, arrival_size, generator=np.random.default_rng(8))
    return source.next_rounds(count)


def fit(rounds: Experience, *, with_arrivals: bool) -> FittedOracle:
    columns = {
        "clients": rounds.oracle_state.astype(np.float64),
        "success": rounds.success.astype(np.float64),
    }
    if with_arrivals:
        columns["arrival"] = rounds.arrival.astype(np.float64)
    log = ParticipationLog("log", np.arange(len(rounds)), columns)
    return fit_oracle(log, cuts=[1.0, 2.0])


def search(fitted: FittedOracle, **changes: Any) -> LogPolicy:
    options: dict[str, Any] = {
        "seed": 1,
        "iterations": 2000,
        "rounds": 12,
        "updates": 4,
        "on_progress": lambda _detail, _share: None,
    }
    return search_on_log(fitted, **options | changes)


def test_experience_is_the_log_as_recorded() -> None:
    columns = {
        "clients": np.array([1.0, 9.0, 5.0, 9.0, 1.0, 5.0]),
        "success": np.array([0.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
        "arrival": np.array([0.0, 4.0, 0.0, 0.0, 2.0, 0.0]),
    }
    fitted = fit_oracle(ParticipationLog("log", np.arange(6), columns), cuts=[4.0, 8.0])
    rounds = extract_experience(fitted)
    assert rounds.oracle_state.tolist() == [0, 2, 1, 2, 0, 1]
    assert rounds.arrival.tolist() == [0, 4, 0, 0, 2, 0]
    assert rounds.success.tolist() == [False, True, True, True, False, False]
    assert not extract_experience(fitted, with_arrivals=False).arrival.any()


def test_arrivals_give_a_queue_policy() -> None:
    reported: list[tuple[str, float]] = []
    fitted = fit(recorded(3_000, 3), with_arrivals=True)
    found = search(fitted, on_progress=lambda detail, share: reported.append((detail, share)))
    assert isinstance(found.problem, QueueProblem)
    assert isinstance(found.policy, QueueTable)
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


def test_no_arrivals_give_a_horizon_policy() -> None:
    found = search(fit(recorded(3_000, 3), with_arrivals=False))
    assert isinstance(found.problem, FiniteHorizon)
    assert isinstance(found.policy, HorizonTable)
    assert found.policy.table.shape == (12, 3, 5)
    assert np.all(found.policy.table == found.policy.table[0])  # stationary
    assert found.gap is not None and 0.0 <= found.gap < 0.1
    assert found.describe()["problem"] == "horizon"


def test_arrivals_that_cannot_be_served_play_no_part_in_a_horizon() -> None:
    """All updates are owed at the beginning: the same policy with and without the column."""
    rounds = recorded(2_000, 9)
    with_column, without = (search(fit(rounds, with_arrivals=w)) for w in (True, False))
    assert isinstance(with_column.problem, FiniteHorizon)
    assert np.array_equal(with_column.policy.table, without.policy.table)
    assert with_column.gap == without.gap


def test_fitted_probabilities_are_not_searched_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is handed costs and the recorded rounds, in their order."""
    rounds = recorded(2_000, 3)
    handed: dict[str, Any] = {}

    def note(rules: Any, source: Any, *rest: Any, **options: Any) -> SpgaRun:
        handed.update(rules=rules, rounds=source.next_rounds(2_000))
        return search_policy(rules, source, *rest, **options)

    monkeypatch.setattr("covertfl.solvers.spga.search.search_policy", note)
    search(fit(rounds, with_arrivals=True), iterations=5)
    assert all(np.shape(part) != (3, 3) for part in handed["rules"])
    for name in ("oracle_state", "arrival", "success"):
        assert np.array_equal(getattr(handed["rounds"], name), getattr(rounds, name))


def test_gap_that_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spga_score, "measure_gap", lambda *_: float("nan"))
    found = search(fit(recorded(2_000, 3), with_arrivals=True), iterations=5)
    assert found.gap is None and found.describe()["gap"] is None
    assert "no optimum to compare" in found.sentence


def test_model_without_an_optimum_is_said() -> None:
    problem = search(fit(recorded(2_000, 9), with_arrivals=True)).problem
    found = LogPolicy(problem, HorizonTable(np.zeros((1, 3, 2))), None)
    assert "no optimum to compare" in found.sentence
    assert found.describe()["gap"] is None
