"""A fitted oracle becomes a problem file that can be read, planned with and solved."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.fitting.oracle import ArrivalFit
from tests.support.participation import EXAMPLE_LOG, fit_log


def fit_example(**changes: Any) -> cf.Fit:
    """Return the fit of the example log, with some of its estimates replaced."""
    return cf.Fit(replace(cf.fit(EXAMPLE_LOG, cuts=(8, 15), min_examples=6800).details, **changes))


def test_the_queue_of_the_example_log() -> None:
    fitted = fit_example().details
    loaded = fit_example().make_problem()
    problem = loaded.problem
    assert isinstance(problem, cf.QueueProblem)
    assert problem.oracle.transition.tolist() == fitted.oracle.transition.tolist()
    assert problem.oracle.success.tolist() == fitted.oracle.success.tolist()
    assert problem.privacy_cost.tolist() == [1.8, 0.8, 0.3]
    assert fitted.arrival is not None
    assert problem.arrival_prob == fitted.arrival.arrival_prob
    assert problem.arrival_size == fitted.arrival.arrival_size
    assert problem.capacity is None
    assert loaded.evidence is not None
    assert loaded.evidence.transition_counts.tolist() == fitted.transition_counts.tolist()
    assert loaded.evidence.success_counts.tolist() == fitted.success_counts.tolist()


def test_a_log_with_two_sizes_gives_them_back() -> None:
    """Drawn from sizes 1 and 4: estimates within 4 standard errors, intervals in the comment."""
    known = {1: 0.1, 4: 0.04}
    rng = np.random.default_rng(6)
    draws = rng.choice([0, *known], size=5000, p=[0.86, *known.values()])
    fitted = fit_log(
        {"cuts": (8, 15)}, clients=rng.integers(1, 20, 5000), success=[1] * 5000, arrival=draws
    )
    text = fitted.format_problem()
    problem = fitted.make_problem().problem
    assert isinstance(problem, cf.QueueProblem) and problem.arrival_sizes is not None
    assert problem.arrival_support.tolist() == [0, 1, 4]
    for size, prob in known.items():
        error = np.sqrt(prob * (1.0 - prob) / 5000)
        assert problem.arrival_sizes[size] == (draws == size).mean()
        assert abs(problem.arrival_sizes[size] - prob) < 4.0 * error
    assert problem.load == pytest.approx(draws.mean())
    assert fitted.details.arrival is not None
    low, high = fitted.details.arrival.size_intervals[1]
    assert f"[{low:.3f}, {high:.3f}]\nlearning_limit" in text
    assert cf.solve(problem).learning_cost <= problem.limit * (1.0 + 1e-9)


def test_the_limit_it_begins_with_can_be_met_with_room_to_spare() -> None:
    problem = fit_example().make_problem().problem
    assert isinstance(problem, cf.QueueProblem)
    with pytest.raises(cf.Infeasible) as refusal:
        cf.solve(problem.with_limit(0.0))
    assert problem.limit == pytest.approx(1.25 * refusal.value.best, rel=1e-3)
    assert cf.solve(problem).learning_cost == pytest.approx(problem.limit, rel=1e-9)


def test_without_arrivals_it_is_a_horizon() -> None:
    fitted = fit_example(arrival=None)
    text = fitted.format_problem(rounds=30, updates=7)
    problem = fitted.make_problem(rounds=30, updates=7).problem
    assert isinstance(problem, cf.FiniteHorizon)
    assert (problem.rounds, problem.updates) == (30, 7)
    assert problem.learning_cost.shape == "quadratic"
    assert "arrivals" not in text


def test_arrivals_that_cannot_be_served_make_a_horizon_that_says_so() -> None:
    often = (0.99, 1.0)
    flood = ArrivalFit(1.0, often, 40, False, 600, (40,), (1.0,), (often,))
    fitted = fit_example(arrival=flood)
    assert isinstance(fitted.make_problem().problem, cf.FiniteHorizon)
    said = "# The log has arrivals, but the queue cannot be stable: 40 updates arrive"
    assert said in fitted.format_problem()


def test_arrivals_with_an_oracle_that_cannot_return_make_a_horizon_that_says_so() -> None:
    """States that are never left again have no long-run average."""
    one_way = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    fitted = fit_example(oracle=replace(fit_example().oracle, transition=one_way))
    assert isinstance(fitted.make_problem().problem, cf.FiniteHorizon)
    said = "# The log has arrivals, but transition must let every state be reached"
    assert said in fitted.format_problem()


def test_the_oracle_section_shows_what_it_rests_on() -> None:
    text = fit_example().format_problem()
    assert text.startswith("# Fitted to 600 rounds; states by clients, cut at 8, 15;")
    section = tomllib.loads(text)["oracle"]
    assert np.array(section["transition"]).shape == (3, 3)
    rows = [line for line in text.splitlines() if line.endswith(" rounds")]
    assert [int(line.split()[-2]) for line in rows] == fit_example().details.visits.tolist()
    success = next(line for line in text.splitlines() if line.startswith("success"))
    for prob, (low, high) in zip(
        section["success"], fit_example().details.success_interval, strict=True
    ):
        assert f"[{low:.3f}, {high:.3f}]" in success
        assert low < prob < high


def test_a_column_with_any_name_stays_in_the_comment() -> None:
    fitted = fit_example(column="data\nquality = [ \t#")
    assert "states by data quality = [ #, cut at" in fitted.format_problem().splitlines()[0]
    fitted.make_problem()


@pytest.mark.parametrize(
    ("states", "costs"),
    [(2, [1.8, 0.3]), (3, [1.8, 0.8, 0.3]), (5, [1.8, 1.3, 0.8, 0.55, 0.3]), (9, None)],
)
def test_privacy_costs_fall_and_are_the_papers_for_three_states(
    states: int, costs: list[float] | None
) -> None:
    fitted = cf.fit(EXAMPLE_LOG, states=states, column="examples", min_examples=6800)
    found = fitted.make_problem().problem.privacy_cost
    assert len(found) == states and np.all(np.diff(found) < 0.0)
    assert costs is None or found == pytest.approx(costs)
