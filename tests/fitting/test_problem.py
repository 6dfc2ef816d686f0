"""A fitted oracle becomes a problem file that can be read, planned with and solved."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import parse_problem
from covertfl.errors import Infeasible, InvalidInput
from covertfl.fitting.log import ParticipationLog, read_log
from covertfl.fitting.oracle import ArrivalFit, FittedOracle, fit_oracle
from covertfl.fitting.problem import default_privacy_cost, format_oracle_section, format_problem
from covertfl.solvers.constrained import solve_queue
from tests.support.example_log import EXAMPLE_LOG


def fit_example() -> FittedOracle:
    return fit_oracle(read_log(EXAMPLE_LOG), cuts=(8.0, 15.0), min_examples=6800.0)


def test_the_queue_of_the_example_log() -> None:
    fitted = fit_example()
    loaded = parse_problem(format_problem(fitted), "fitted")
    problem = loaded.problem
    assert isinstance(problem, QueueProblem)
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
    rng, fitted = np.random.default_rng(6), fit_example()
    draws = rng.choice([0, *known], size=5000, p=[0.86, *known.values()])
    columns = {
        name: values.astype(np.float64)
        for name, values in {
            "clients": rng.integers(1, 20, 5000),
            "success": np.ones(5000),
            "arrival": draws,
        }.items()
    }
    log = ParticipationLog("drawn.csv", np.arange(1, 5001), columns)
    fitted = fit_oracle(log, cuts=(8.0, 15.0))
    text = format_problem(fitted)
    problem = parse_problem(text, "fitted").problem
    assert isinstance(problem, QueueProblem) and problem.arrival_sizes is not None
    assert problem.arrival_support.tolist() == [0, 1, 4]
    for size, prob in known.items():
        error = np.sqrt(prob * (1.0 - prob) / 5000)
        assert problem.arrival_sizes[size] == (draws == size).mean()
        assert abs(problem.arrival_sizes[size] - prob) < 4.0 * error
    assert problem.load == pytest.approx(draws.mean())
    assert fitted.arrival is not None
    low, high = fitted.arrival.size_intervals[1]
    assert f"[{low:.3f}, {high:.3f}]\nlearning_limit" in text
    assert solve_queue(problem).evaluation.learning_cost <= problem.limit * (1.0 + 1e-9)


def test_the_limit_it_begins_with_can_be_met_with_room_to_spare() -> None:
    problem = parse_problem(format_problem(fit_example()), "fitted").problem
    assert isinstance(problem, QueueProblem)
    with pytest.raises(Infeasible) as refusal:
        solve_queue(problem.with_limit(0.0))
    assert problem.limit == pytest.approx(1.25 * refusal.value.best, rel=1e-3)
    solution = solve_queue(problem)
    assert solution.evaluation.learning_cost == pytest.approx(problem.limit, rel=1e-9)


def test_without_arrivals_it_is_a_horizon() -> None:
    text = format_problem(replace(fit_example(), arrival=None), rounds=30, updates=7)
    problem = parse_problem(text, "fitted").problem
    assert isinstance(problem, FiniteHorizon)
    assert (problem.rounds, problem.updates) == (30, 7)
    assert problem.learning_cost.shape == "quadratic"
    assert "arrivals" not in text


def test_arrivals_that_cannot_be_served_make_a_horizon_that_says_so() -> None:
    often = (0.99, 1.0)
    flood = ArrivalFit(1.0, often, 40, False, 600, (40,), (1.0,), (often,))
    text = format_problem(replace(fit_example(), arrival=flood))
    assert isinstance(parse_problem(text, "fitted").problem, FiniteHorizon)
    assert "# The log has arrivals, but the queue cannot be stable: 40 updates arrive" in text


def test_arrivals_with_an_oracle_that_cannot_return_make_a_horizon_that_says_so() -> None:
    """States that are never left again have no long-run average."""
    one_way = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    fitted = fit_example()
    fitted = replace(fitted, oracle=replace(fitted.oracle, transition=one_way))
    text = format_problem(fitted)
    assert isinstance(parse_problem(text, "fitted").problem, FiniteHorizon)
    assert "# The log has arrivals, but transition must let every state be reached" in text


@pytest.mark.parametrize(("rounds", "updates", "name"), [(0, 16, "rounds"), (45, -1, "updates")])
def test_a_horizon_that_is_none(rounds: int, updates: int, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be at least 1, got"):
        format_problem(fit_example(), rounds=rounds, updates=updates)


def test_the_oracle_section_shows_what_it_rests_on() -> None:
    text = format_oracle_section(fit_example())
    assert text.startswith("# Fitted to 600 rounds; states by clients, cut at 8, 15;")
    section = tomllib.loads(text)["oracle"]
    assert np.array(section["transition"]).shape == (3, 3)
    rows = [line for line in text.splitlines() if line.endswith(" rounds")]
    assert [int(line.split()[-2]) for line in rows] == fit_example().visits.tolist()
    success = next(line for line in text.splitlines() if line.startswith("success"))
    for prob, (low, high) in zip(section["success"], fit_example().success_interval, strict=True):
        assert f"[{low:.3f}, {high:.3f}]" in success
        assert low < prob < high


def test_a_column_with_any_name_stays_in_the_comment() -> None:
    text = format_problem(replace(fit_example(), column="data\nquality = [ \t#"))
    assert "states by data quality = [ #, cut at" in text.splitlines()[0]
    parse_problem(text, "fitted")


def test_privacy_costs_fall_and_are_the_papers_for_three_states() -> None:
    assert default_privacy_cost(3).tolist() == [1.8, 0.8, 0.3]
    assert default_privacy_cost(2).tolist() == [1.8, 0.3]
    assert default_privacy_cost(5) == pytest.approx([1.8, 1.3, 0.8, 0.55, 0.3])
    for num_states in range(2, 12):
        costs = default_privacy_cost(num_states)
        assert len(costs) == num_states and np.all(np.diff(costs) < 0.0)
