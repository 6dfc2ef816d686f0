"""`cf.solve` and what it returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from tests.support.paper_queues import reference_queue

HORIZON = "sound/main"


@pytest.mark.parametrize("method", ["exact", "lp"])
def test_a_queue_is_solved_by_name_and_by_object(method: Any) -> None:
    solution = cf.solve(reference_queue(), method)
    assert solution.cost == pytest.approx(0.705722, abs=1e-6)
    assert solution.method == method
    assert isinstance(solution.policy, cf.QueueTable)


def test_a_preset_a_file_and_an_object_are_one_problem(tmp_path: Path) -> None:
    from covertfl.decision.problem_file import read_preset_text

    file = tmp_path / "problem.toml"
    file.write_text(read_preset_text("sound/queue"))
    problem = cf.load_problem("sound/queue")
    costs = [cf.solve(source).cost for source in ("sound/queue", file, str(file), problem)]
    assert costs == [costs[0]] * 4
    assert costs[0] == pytest.approx(0.768433, abs=1e-6)


def test_the_cost_of_a_horizon_is_weighed_by_the_stationary_distribution() -> None:
    problem = cf.load_problem(HORIZON)
    solution = cf.solve(problem)
    transition = problem.oracle.transition
    stationary = np.linalg.matrix_power(transition, 5000)[0]
    expected = solution.to_dict()["expected_cost"]
    assert solution.cost == pytest.approx(float(stationary @ expected), rel=1e-12)


def test_a_search_says_how_far_it_is_from_the_optimum() -> None:
    shares: list[float] = []
    solution = cf.solve(
        reference_queue(), "spga", iterations=100, on_progress=lambda _, share: shares.append(share)
    )
    exact = cf.solve(reference_queue()).cost
    assert solution.method == "spga" and "gap" in repr(solution)
    assert solution.to_dict()["optimum"] == exact
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_a_horizon_search_has_a_policy_and_no_picture() -> None:
    solution = cf.solve(HORIZON, "spga", iterations=5)
    assert isinstance(solution.policy, cf.HorizonTable)
    assert solution.cost >= cf.solve(HORIZON).cost
    assert "gap" in repr(solution)
    with pytest.raises(cf.InvalidInput, match="no curve to draw"):
        solution.plot()


@pytest.mark.parametrize(
    ("problem", "options"), [(reference_queue(), {"method": "lp"}), (HORIZON, {})]
)
def test_results_show_themselves(problem: Any, options: dict[str, Any]) -> None:
    solution = cf.solve(problem, **options)
    assert repr(solution).startswith("<Solution: method") and "cost" in repr(solution)
    assert "<table>" in solution._repr_html_()
    assert json.loads(json.dumps(solution.to_dict(), allow_nan=False))["method"] == solution.method
    assert solution.structure.theory_applies in (True, False)


@pytest.mark.parametrize("problem", ["sound/queue", HORIZON])
def test_a_plot_is_a_figure(problem: str) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    assert isinstance(cf.solve(problem).plot(), figure.Figure)


def test_a_queue_has_averages_and_a_horizon_expected_costs() -> None:
    queue, horizon = cf.solve(reference_queue()), cf.solve(HORIZON)
    assert queue.privacy_cost == queue.cost and queue.gap is None
    assert queue.learning_cost == pytest.approx(1.0, abs=1e-9)
    assert len(horizon.expected_cost) == 3
    with pytest.raises(cf.InvalidInput, match="a horizon has expected_cost"):
        horizon.learn_fraction  # noqa: B018
    with pytest.raises(cf.InvalidInput, match="a queue has average costs"):
        queue.expected_cost  # noqa: B018


def test_a_solution_cannot_be_changed() -> None:
    solution = cf.solve(HORIZON)
    with pytest.raises(AttributeError):
        solution.seconds = 0.0  # type: ignore[misc]


def test_a_policy_is_written_for_a_run(tmp_path: Path) -> None:
    solution = cf.solve(HORIZON)
    solution.save_policy(str(tmp_path / "policy.json"))
    written = cf.read_policy(tmp_path / "policy.json")
    assert np.array_equal(written.table, solution.policy.table)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((5,), "problem must be a problem, the name of a preset or a path, got 5"),
        ((None,), "problem must be"),
        (("no/such",), "no/such"),
        (("a\0b",), "problem must name a file or folder"),
        (("\ud800",), "problem must name a file or folder"),
        (("sound/queue", ["exact"]), "method must be one of"),
        (("sound/queue", "guess"), "method must be one of exact, lp, spga, got 'guess'"),
        ((HORIZON, "lp"), "method lp is for queue problems"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(arguments: Any, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.solve(*arguments)


@pytest.mark.parametrize("options", [{"seed": -1}, {"runs": 0}, {"iterations": 2.5}, {"runs": "x"}])
def test_wrong_options_of_a_search_are_refused(options: Any) -> None:
    with pytest.raises(cf.InvalidInput, match=f"{next(iter(options))} must be a whole number"):
        cf.solve("sound/queue", "spga", **options)
