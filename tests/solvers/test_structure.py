"""The structure report: assumptions by name, orders that hold, and counterexamples where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import QueueTable, build_mixture_table
from covertfl.decision.problem import FiniteHorizon, LearningCost, Problem, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.errors import Infeasible
from covertfl.evaluation.bounds import service_capacity
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.structure import (
    check_assumptions,
    examine_horizon_solution,
    examine_queue_solution,
    find_queue_thresholds,
)
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE
from tests.support.solution_checks import check_independently
from tests.support.strategies import ordered_queue_problems

SURE = Oracle(np.ones((1, 1)), np.ones(1))


def queue_preset(name: str) -> QueueProblem:
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem


def make_horizon(**changes: object) -> FiniteHorizon:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 10, 4)
    return replace(problem, **changes)  # type: ignore[arg-type]


def verdicts(problem: Problem) -> dict[str, bool | None]:
    return {item.name: item.holds for item in check_assumptions(problem)}


def reason(problem: Problem, name: str) -> str:
    return next(item.reason for item in check_assumptions(problem) if item.name == name)


# --- assumptions --------------------------------------------------------------------------------


def test_all_computable_assumptions_of_the_sound_reading_hold() -> None:
    expected = {"M1": True, "M2": True, "M3": True, "M4": None, "M5": True}
    assert verdicts(make_horizon()) == expected
    assert verdicts(queue_preset("sound/queue").with_capacity(50)) == expected


def test_m1_names_the_rows_of_the_seven_state_matrix() -> None:
    problem = read_preset("sound/states7").problem
    assert verdicts(problem) == {"M1": False, "M2": True, "M3": True, "M4": None, "M5": True}
    # By hand: row 2 ends in 0.03, row 3 in 0.025.
    assert reason(problem, "M1") == (
        "rows 2 and 3: the probability of state 6 or better is 0.03 after state 2 but only 0.025 "
        "after state 3"
    )


def test_m2_names_the_state() -> None:
    rising = make_horizon(privacy_cost=np.array([0.3, 0.8, 1.8]))
    assert verdicts(rising)["M2"] is False
    assert reason(rising, "M2") == "privacy rises from 0.3 in oracle state 0 to 0.8 in 1"
    free = make_horizon(privacy_cost=np.array([1.0, 0.5, 0.0]))
    assert verdicts(free)["M2"] is False
    assert reason(free, "M2") == "privacy[2] = 0 is not positive"
    assert verdicts(make_horizon(privacy_cost=np.ones(3)))["M2"] is True


@pytest.mark.parametrize(
    ("values", "holds", "why"),
    [
        ((0.0, 1.0, 2.0, 4.0, 8.0), True, "convex"),
        ((0.0, 0.0, 0.0, 0.0, 0.0), True, "convex"),
        ((0.0, 1.0, 1.5, 4.0, 8.0), False, "l(2) - l(1) = 0.5 is below l(1) - l(0) = 1"),
        ((0.0, 1.0, 0.5, 0.6, 0.7), False, "l falls from 1 to 0.5 at 2"),
        ((1.0, 2.0, 3.0, 4.0, 5.0), False, "l(0) = 1 is not 0"),
    ],
)
def test_m3(values: tuple[float, ...], holds: bool, why: str) -> None:
    problem = make_horizon(learning_cost=LearningCost("table", values=values))
    assert verdicts(problem)["M3"] is holds
    assert why in reason(problem, "M3")


def test_m3_covers_the_backlog_of_a_full_queue() -> None:
    cost = LearningCost("table", values=(0.0, 1.0, 2.0, 4.0, 5.0))
    queue = replace(queue_preset("sound/queue"), capacity=4, overflow_cost=9.0, learning_cost=cost)
    assert "l(4) - l(3) = 1 is below" in reason(queue, "M3")


@pytest.mark.parametrize("shape", ["linear", "quadratic", "triangular"])
def test_growing_shapes_are_convex_and_a_constant_is_a_step(shape: str) -> None:
    growing = make_horizon(learning_cost=LearningCost(shape, 1e-9))  # type: ignore[arg-type]
    assert verdicts(growing)["M3"] is True
    assert verdicts(make_horizon(learning_cost=LearningCost("constant", 1.0)))["M3"] is False


def test_m5_names_the_state() -> None:
    problem = make_horizon(oracle=Oracle(TEXT_ORACLE.transition, np.array([0.1, 0.95, 0.43])))
    assert verdicts(problem)["M5"] is False
    assert reason(problem, "M5") == "success falls from 0.95 in oracle state 1 to 0.43 in 2"


# --- queue --------------------------------------------------------------------------------------


def test_the_constant_cost_is_the_example_of_a_policy_without_thresholds() -> None:
    """The text's queue with the costs in falling order: learn while short, give up when long."""
    problem = replace(queue_preset("paper-text/queue"), privacy_cost=FALLING_COST)
    solution = solve_queue(problem)
    assert solution.evaluation.privacy_cost == pytest.approx(0.4232, abs=5e-5)
    assert solution.evaluation.full_prob == pytest.approx(0.043, abs=5e-4)
    report = examine_queue_solution(solution)
    assert not report.monotone_in_backlog
    assert not report.theory_applies
    assert find_queue_thresholds(solution) is None
    holds = {item.name: item.holds for item in report.assumptions}
    assert holds == {"M1": True, "M2": True, "M3": False, "M4": None, "M5": True}
    example = report.counterexample
    assert example is not None
    assert (example["direction"], example["oracle"]) == ("backlog", 0)
    assert example["next_backlog"] > example["backlog"]
    assert example["next_learn_prob"] < example["learn_prob"]
    table = solution.policy.table
    assert table[0, example["arrival"], example["backlog"]] == example["learn_prob"]
    assert table[0, example["arrival"], example["next_backlog"]] == example["next_learn_prob"]
    assert "not increasing in the backlog" in example["text"]
    # Each of these states is visited, so this is no artefact of the edge.
    assert solution.evaluation.mass[0].min() > 1e-4
    check_independently(solution)
    # The worst state learns at 1..6, mixes at 7, obfuscates from 8 to capacity - 1.
    without_arrival = table[0, 0]
    assert without_arrival[1:7].tolist() == [1.0] * 6
    assert 0.0 < without_arrival[7] < 1.0
    assert without_arrival[8:40].tolist() == [0.0] * 32
    assert np.all(table[1:, :, 1:] == 1.0)


def test_notes_say_what_the_theory_does_not_cover() -> None:
    solution = solve_queue(queue_preset("paper-code/queue"))
    report = examine_queue_solution(solution)
    assert len(report.notes) == 2
    assert "charged only when obfuscating" in report.notes[0]
    assert "full queue" in report.notes[1]
    assert not report.theory_applies
    assert report.monotone_in_backlog  # all the same
    sound = examine_queue_solution(solve_queue(queue_preset("sound/queue")))
    assert sound.theory_applies and sound.notes == ()
    assert sound.monotone_in_backlog and sound.monotone_in_oracle
    assert sound.counterexample is None and sound.monotone_in_rounds is None


def with_table(problem: QueueProblem, table: FloatArray) -> QueueSolution:
    policy = QueueTable(table)
    evaluation = evaluate_queue_policy(problem, policy)
    return QueueSolution(problem, "exact", policy, evaluation, 0.0, None, 0.0, 1)


def small_queue() -> QueueProblem:
    cost = LearningCost("linear", 0.6, "always")
    return QueueProblem(TEXT_ORACLE, FALLING_COST, cost, 0.1, 2, 1.0, capacity=8, overflow_cost=1.0)


def test_thresholds_of_a_two_threshold_policy_are_its_own() -> None:
    problem = small_queue()
    first = np.array([[5, 9], [3, 2], [1, 1]])
    certain = np.array([[7, 9], [4, 2], [1, 1]])
    table = build_mixture_table(problem, first, certain, np.full((3, 2), 0.25)).table
    assert find_queue_thresholds(with_table(problem, table)) == [
        [[5, 7], None],
        [[3, 4], [2, 2]],
        [[1, 1], [1, 1]],
    ]
    # Never certain: one beyond the capacity.
    half = np.where(np.arange(9) > 0, 0.5, 0.0) * np.ones((3, 2, 1))
    assert find_queue_thresholds(with_table(problem, half)) == [[[1, 9]] * 2] * 3


def test_a_reversal_in_the_oracle_state_is_reported_and_keeps_the_thresholds() -> None:
    problem = small_queue()
    first = np.array([[1, 1], [3, 3], [1, 1]])
    solution = with_table(
        problem, build_mixture_table(problem, first, first, np.ones((3, 2))).table
    )
    report = examine_queue_solution(solution)
    assert report.monotone_in_backlog and not report.monotone_in_oracle
    assert report.counterexample is not None
    assert report.counterexample["text"] == (
        "not increasing in the oracle state: with arrival 0 it learns with chance 1 at "
        "oracle state 0, backlog 1, but 0 at oracle state 1, backlog 1"
    )
    assert find_queue_thresholds(solution) == [[[1, 1]] * 2, [[3, 3]] * 2, [[1, 1]] * 2]


def test_states_without_mass_play_no_part() -> None:
    """A certain server keeps the backlog at 1 or less; what the policy says above is not judged."""
    cost = LearningCost("linear", 1.0, "always")
    problem = QueueProblem(SURE, np.ones(1), cost, 0.3, 1, 1.0, capacity=8, overflow_cost=1.0)
    table = np.ones((1, 2, 9))
    table[:, :, 0] = 0.0
    table[:, :, 5] = 0.5
    solution = with_table(problem, table)
    assert solution.evaluation.mass[:, :, 2:].max() == pytest.approx(0.0, abs=1e-12)
    assert examine_queue_solution(solution).monotone_in_backlog
    assert find_queue_thresholds(solution) == [[[1, 1], [1, 1]]]


@given(ordered_queue_problems(), st.sampled_from((0.2, 0.5, 0.7)))
@settings(max_examples=30)
def test_convex_costs_give_policies_that_grow_with_the_backlog(
    problem: QueueProblem, utilisation: float
) -> None:
    """With room enough, M1 to M5 and a convex cost give thresholds."""
    prob = utilisation * service_capacity(problem) / problem.largest_arrival
    endless = replace(problem, arrival_prob=prob, capacity=None, overflow_cost=None)
    with pytest.raises(Infeasible) as refusal:
        solve_queue(endless.with_limit(0.0))
    solution = solve_queue(endless.with_limit(1.3 * refusal.value.best))
    report = examine_queue_solution(solution)
    assert report.monotone_in_backlog, report.counterexample
    assert find_queue_thresholds(solution) is not None
    for o, e in np.ndindex(*solution.policy.table.shape[:2]):
        probs = solution.policy.table[o, e][solution.evaluation.mass[o, e] > 1e-9]
        assert np.all(np.diff(probs) >= -1e-12)


# --- horizon ------------------------------------------------------------------------------------


def test_a_middling_state_that_is_about_to_become_good_waits() -> None:
    """M1, M2, M3 and M5 hold, and yet the threshold rises with the oracle state (D5)."""
    problem = FiniteHorizon(
        Oracle(
            np.array([[0.9, 0.1, 0.0], [0.05, 0.05, 0.9], [0.0, 0.1, 0.9]]),
            np.array([0.5, 0.52, 0.9]),
        ),
        np.array([1.0, 0.95, 0.1]),
        LearningCost("triangular", 3.0),
        rounds=4,
        updates=4,
    )
    solution = solve_horizon(problem)
    assert solution.thresholds is not None
    assert solution.thresholds[1].tolist() == [1, 2, 1]
    report = examine_horizon_solution(solution)
    assert verdicts(problem) == {"M1": True, "M2": True, "M3": True, "M4": None, "M5": True}
    assert report.monotone_in_backlog and report.monotone_in_rounds
    assert not report.monotone_in_oracle
    assert report.counterexample is not None
    assert report.counterexample == {
        "text": "with 2 rounds left the threshold is 1 in oracle state 0 and 2 in the better "
        "state 1",
        "rounds_left": 2,
        "oracle_state": 0,
        "threshold": 1,
        "threshold_of_better": 2,
    }


def test_the_main_experiment_has_every_order() -> None:
    problem = read_preset("sound/main").problem
    assert isinstance(problem, FiniteHorizon)
    report = examine_horizon_solution(solve_horizon(problem))
    assert report.monotone_in_backlog and report.monotone_in_oracle and report.monotone_in_rounds
    assert report.counterexample is None
    assert report.theory_applies


def test_a_step_as_terminal_cost_has_no_thresholds() -> None:
    """Finishing is worth something, being nearly done is not: with much left it gives up."""
    problem = FiniteHorizon(SURE, np.ones(1), LearningCost("constant", 2.5), rounds=4, updates=4)
    report = examine_horizon_solution(solve_horizon(problem))
    assert not report.monotone_in_backlog
    assert report.monotone_in_oracle  # there is one state only
    assert not report.monotone_in_rounds
    assert report.counterexample is not None
    assert report.counterexample["text"].startswith("with 1 rounds left in oracle state 0")
    assert not report.theory_applies
