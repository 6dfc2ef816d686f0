"""Searches and costs: small forms of the figures' experiments."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from paper import figure_cost, figure_spga, figure_tracking
from paper.cells import CellStore
from paper.experiment import Request, load_queue

from covertfl.decision.policy import QueueTable
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import default_settings


def test_thresholds_of_parameters_by_hand() -> None:
    parameters = np.zeros((1, 3, 2, 2))
    parameters[0, 0, :, 0], parameters[0, 1, :, 0], parameters[0, 2, :, 0] = 10.0, 20.0, 0.25
    assert figure_spga.effective_thresholds(parameters).tolist() == [[17.5, 17.5]]


def test_last_switch_by_hand() -> None:
    assert figure_spga.find_last_switch(np.array([0.0, 1.0, 0.0, 0.4, 1.0, 1.0])) == 4
    assert figure_spga.find_last_switch(np.array([0.0, 1.0, 0.5])) is None


def test_optimum_of_the_tracking_queues() -> None:
    """D21; the policies have not the form (13)."""
    costs = []
    for when in ("before", "after"):
        solution = solve_queue(load_queue(f"sound/tracking-{when}"))
        found = figure_spga.describe_optimum(solution)
        assert not found["has_threshold_form"]
        assert found["thresholds"][0] > found["thresholds"][1] > found["thresholds"][2]
        costs.append(found["privacy_cost"])
    assert costs == pytest.approx([0.2208, 0.3054], abs=5e-5)


def test_a_short_search_is_described() -> None:
    problem = load_queue("paper-code/queue")
    settings = default_settings(problem, iterations=150, rollout=200)
    found = figure_spga.run_variant(problem, settings, 3)
    assert found["costs"]["runs"] == 3
    paths = found["paths"]
    assert paths["iterations"][0] == 1 and paths["iterations"][-1] == 150
    for state in paths["states"]:
        assert len(state["mean"]) == len(paths["iterations"])
        assert np.all(np.array(state["low"]) <= np.array(state["high"]))


def test_gap_is_that_at_the_learning_cost_of_the_run() -> None:
    """A short search misses the limit, and is not compared with the optimum at the limit."""
    problem = load_queue("paper-code/queue")
    optimum = solve_queue(problem)
    settings = default_settings(problem, iterations=20, rollout=200)
    found = figure_spga.evaluate_run(optimum, solve_spga(problem, settings, seed=1)[0])
    assert abs(found["learning"] / problem.limit - 1.0) > 0.05
    there = solve_queue(replace(problem, limit=found["learning"])).evaluation
    assert there.learning_cost == pytest.approx(found["learning"])
    assert found["gap"] == pytest.approx(found["privacy"] / there.privacy_cost - 1.0)


def test_runs_that_give_up_are_counted_apart() -> None:
    judged = [
        {"privacy": 0.5, "learning": 1.0, "gap": 0.1},
        {"privacy": 0.3, "learning": 1.2, "gap": 0.3},
        {"privacy": 0.3, "learning": 1.2, "gap": float("nan")},
        {"privacy": 0.0, "learning": 50.0, "gap": 9.0},
        {"privacy": float("nan"), "learning": float("nan"), "gap": float("nan")},
    ]
    found = figure_spga.summarise_costs(judged, 1.0)
    assert (found["gave_up"], found["keep_limit"]) == (2, 1)
    assert found["privacy_cost"]["mean"] == pytest.approx(1.1 / 3, abs=1e-5)
    assert found["gap"]["mean"] == pytest.approx(0.2)
    assert figure_spga.summarise_costs(judged[-1:], 1.0)["gap"] is None


def test_tracking_changes_half_way() -> None:
    before, after = (load_queue(f"sound/tracking-{w}") for w in ("before", "after"))
    settings = default_settings(before, iterations=80, rollout=50, tracking=True)
    at_change, at_end = figure_tracking.track_change(before, after, settings, 0)
    assert len(at_change.history.privacy_cost) == 40
    assert len(at_end.history.privacy_cost) == 80
    alone, unchanged = figure_tracking.track_change(before, before, settings, 0)
    assert np.array_equal(alone.history.parameters, at_change.history.parameters)
    assert np.array_equal(at_end.history.parameters[:40], at_change.history.parameters)
    # The rounds of the second half are another system's.
    late = (at_end.history.privacy_cost[40:], unchanged.history.privacy_cost[40:])
    assert not np.array_equal(*late)


def test_tracking_ends_near_the_optimum_of_the_changed_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact privacy costs are 0.2208 and 0.3054, the limit 0.4 (D21)."""
    sizes = {"ITERATIONS": 1600, "CHANGE_AT": 800, "ROLLOUT": 1000, "LAST": 200}
    for name, value in sizes.items():
        monkeypatch.setattr(figure_tracking, name, value)
    result = figure_tracking.run_figure(Request(seeds=4), CellStore(tmp_path))
    first, second = result["stages"]
    for stage, exact, slack in ((first, 0.2208, 0.12), (second, 0.3054, 0.05)):
        assert stage["optimum"]["privacy_cost"] == pytest.approx(exact, abs=5e-5)
        assert stage["late_privacy"]["mean"] == pytest.approx(exact, rel=slack)
        assert stage["late_learning"]["mean"] == pytest.approx(0.4, rel=0.15)
        assert stage["costs"]["gap"]["mean"] < slack


# --- figure-cost ----------------------------------------------------------------------------------


def test_prices_give_vertices_and_jumps() -> None:
    queue, _ = figure_cost.load_problems("sound")
    prices = np.geomspace(0.002, 2.0, 60)
    solved, policies = figure_cost.sweep_price(queue, prices.tolist())
    assert solved == prices.tolist()
    shares = np.array(
        [
            evaluate_queue_policy(queue, QueueTable(learn.astype(float))).learn_fraction
            for learn in policies
        ]
    )
    assert 1 < figure_cost.count_vertices(policies) < len(prices)
    assert np.all(np.diff(shares) >= -1e-12)  # a dearer backlog never means less learning
    assert len(figure_cost.find_jumps(shares, 0.05)) >= 1
    # Nothing happens between two prices with the same vertex.
    same = [a.tobytes() == b.tobytes() for a, b in pairwise(policies)]
    assert np.all(np.diff(shares)[same] == 0.0)


def test_limits_give_no_jumps() -> None:
    queue, _ = figure_cost.load_problems("sound")
    found = figure_cost.compute_limit_curve(queue, 50, 1)
    assert found["largest_jump"] < 0.06  # steps of a smooth curve
    assert found["mixing"] > 40


def test_many_tables_are_simulated_side_by_side() -> None:
    queue, _ = figure_cost.load_problems("sound")
    _, policies = figure_cost.sweep_price(queue, [0.005, 0.05, 1.0])
    tables = np.stack(policies).astype(float)
    exact = [evaluate_queue_policy(queue, QueueTable(table)).learn_fraction for table in tables]
    found = figure_cost.simulate_tables(queue, tables, 10, generator=np.random.default_rng(0))
    assert found == pytest.approx(exact, abs=0.04)


def test_horizon_exposure_rises_with_the_terminal_cost() -> None:
    _, horizon = figure_cost.load_problems("paper-text")
    found = figure_cost.compute_horizon_curve(replace(horizon, rounds=12, updates=4), 15, 300)
    assert np.all(np.diff(found["exact"]) >= -1e-9)
    assert found["largest_error"] < 0.06
