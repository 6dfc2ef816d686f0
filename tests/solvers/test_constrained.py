"""The constrained problem (9): against a linear program, every policy, and published numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import Infeasible, NoSolution, SolverFailed, SplitChain, Unstable
from covertfl.solvers import constrained
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.occupation_lp import solve_occupation_lp
from covertfl.solvers.structure import examine_queue_solution
from tests.support.literal_queue import EveryPolicy, LiteralQueue
from tests.support.paper_queues import (
    FALLING_COST,
    TEXT_ORACLE,
    constant_cost_queue,
    frozen_queue,
    reference_queue,
    sound_queue,
    tracking_queue,
    uneven_queue,
)
from tests.support.solution_checks import check_independently, tolerance
from tests.support.strategies import (
    CHARGED,
    OBJECTIVES,
    SHAPES,
    find_limit_range,
    on_grid,
    place_limit,
    queue_problems,
)

SHARES = on_grid(1, 19, 20)


# --- against the linear program ---------------------------------------------------------------


def compare_with_the_linear_programme(
    max_examples: int,
) -> tuple[Counter[str], Counter[tuple[str, str, str]]]:
    """Solve random problems in both ways; return the outcomes and the kinds of problems solved."""
    outcomes: Counter[str] = Counter()
    kinds: Counter[tuple[str, str, str]] = Counter()

    @settings(max_examples=max_examples)
    @given(queue_problems(), SHARES)
    def compare(problem: QueueProblem, share: float) -> None:
        least, free = find_limit_range(problem)
        # If the limit has hardly any room, its multiplier is undetermined.
        assume(free - least > 1e-3 * free)
        problem = problem.with_limit(least + share * (free - least))
        exact, programme = attempt_both(problem)
        outcomes[f"exact {type(exact).__name__}"] += 1
        if isinstance(exact, NoSolution):
            return
        cost = problem.learning_cost
        kinds[problem.objective, cost.shape, cost.charged] += 1
        check_independently(exact)
        if isinstance(programme, NoSolution):
            outcomes["programme refused"] += 1
            return
        outcomes["compared"] += 1
        assert abs(exact.cost - programme.cost) <= tolerance(exact)
        assert abs(exact.cost - programme.lower_bound) <= tolerance(exact)

    compare()
    return outcomes, kinds


@pytest.mark.slow
def test_exact_agrees_with_the_linear_programme_on_every_kind_of_problem() -> None:
    outcomes, kinds = compare_with_the_linear_programme(max_examples=260)
    assert outcomes["compared"] >= 200
    # Refusals are for queues that can be run in two ways that rarely meet.
    refused = outcomes["exact SplitChain"] + outcomes["exact SolverFailed"]
    assert refused <= 0.15 * outcomes["compared"]
    assert set(outcomes) <= {
        "compared",
        "programme refused",
        "exact QueueSolution",
        "exact SplitChain",
        "exact SolverFailed",
    }
    assert outcomes["programme refused"] <= 0.05 * outcomes["compared"]
    for position, values in enumerate((OBJECTIVES, SHAPES, CHARGED)):
        met = Counter(kind[position] for kind in kinds.elements())
        assert all(met[value] >= 10 for value in values), met


def attempt_both(
    problem: QueueProblem,
) -> tuple[QueueSolution | NoSolution, QueueSolution | NoSolution]:
    answers: list[QueueSolution | NoSolution] = []
    for solve in (solve_queue, solve_occupation_lp):
        try:
            answers.append(solve(problem))
        except NoSolution as refusal:
            answers.append(refusal)
    return answers[0], answers[1]


# --- against every policy -----------------------------------------------------------------------


def interpolate_hull(limited: FloatArray, minimised: FloatArray, limit: float) -> float:
    """Least minimised cost at the limit on the lower convex hull of all points."""
    within = limited <= limit + 1e-12
    best = float(minimised[within].min())
    order = np.argsort(limited[~within])
    front: list[tuple[float, float]] = []  # beyond the limit only cheaper points help
    for x, y in zip(limited[~within][order], minimised[~within][order], strict=True):
        if y < (front[-1][1] if front else best):
            front.append((float(x), float(y)))
    for x, y in front:
        weight = (limit - limited[within]) / (x - limited[within])
        best = min(best, float(((1.0 - weight) * minimised[within] + weight * y).min()))
    return best


@pytest.mark.slow
@settings(max_examples=120)
@given(queue_problems(max_states=2, max_capacity=3, max_choices=12), SHARES)
def test_tiny_queues_against_the_hull_of_every_policy(problem: QueueProblem, share: float) -> None:
    try:
        problem = place_limit(problem, share)
        solution = solve_queue(problem)
    except (SplitChain, SolverFailed):
        assume(False)
    every = EveryPolicy.of(LiteralQueue.of(problem))
    limited, minimised = (
        (every.learning, every.privacy)
        if problem.objective == "privacy"
        else (every.privacy, every.learning)
    )
    expected = interpolate_hull(limited, minimised, problem.limit)
    scale = max(expected, solution.multiplier * problem.limit, 1e-3)
    assert abs(solution.cost - expected) <= 1e-8 * scale
    check_independently(solution)


# --- published numbers --------------------------------------------------------------------------


def test_reference_queue() -> None:
    solution = solve_queue(reference_queue())
    assert solution.cost == pytest.approx(0.705722339, abs=5e-10)
    assert solution.evaluation.learning_cost == pytest.approx(1.0, abs=1e-9)
    assert solution.mixing is not None
    mixing = solution.mixing
    assert (mixing.oracle, mixing.arrival, mixing.backlog) == (0, 0, 17)
    assert mixing.learn_prob == pytest.approx(0.515, abs=5e-4)
    assert abs(solution.certificate_gap) <= 1e-12
    check_independently(solution)


@pytest.mark.parametrize(
    ("arrival_prob", "arrival_size", "optimum"), [(0.03, 10, 0.2208), (0.1, 4, 0.3054)]
)
def test_tracking_queues(arrival_prob: float, arrival_size: int, optimum: float) -> None:
    solution = solve_queue(tracking_queue(arrival_prob, arrival_size))
    assert solution.cost == pytest.approx(optimum, abs=5e-5)
    assert solution.evaluation.learning_cost == pytest.approx(0.4, abs=1e-9)
    check_independently(solution)


def test_sound_queue_grows_its_capacity_until_it_does_not_matter() -> None:
    reported: list[str] = []
    solution = solve_queue(sound_queue(limit=25.0), on_progress=reported.append)
    assert solution.problem.capacity is not None
    assert solution.evaluation.full_prob < 1e-9
    assert solution.evaluation.learning_cost == pytest.approx(25.0, abs=1e-8)
    assert reported and reported[-1] == f"capacity {solution.problem.capacity}"
    # Little's law: the limit is a promise about the mean backlog.
    assert solution.evaluation.mean_backlog == pytest.approx(25.0 / 0.6, rel=1e-8)
    larger = sound_queue(limit=25.0).with_capacity(2 * solution.problem.capacity)
    assert solve_queue(larger).cost == pytest.approx(solution.cost, rel=1e-7)


def test_sound_queue_with_an_unreachable_limit() -> None:
    with pytest.raises(Infeasible, match=r"learning_limit = 20 .* best reachable value is 20\.75"):
        solve_queue(sound_queue(limit=20.0))
    with pytest.raises(Infeasible) as refusal:
        solve_queue(sound_queue(limit=20.0))
    assert refusal.value.best == pytest.approx(20.75, abs=5e-3)
    assert solve_queue(sound_queue(limit=refusal.value.best * 1.001)).cost > 0.9


def test_queue_of_the_documented_problem_file() -> None:
    solution = solve_queue(sound_queue(arrival_prob=0.05, limit=3.0))
    assert solution.cost == pytest.approx(0.127196, abs=5e-7)
    assert examine_queue_solution(solution).monotone_in_backlog


def test_a_loose_limit_leaves_the_cheapest_way_to_keep_up() -> None:
    # The best state alone can do 0.2 updates a round, at 0.3 / 0.95 each: nothing is cheaper.
    solution = solve_queue(sound_queue(arrival_prob=0.05, limit=50.0))
    assert solution.cost == pytest.approx(0.2 * 0.3 / 0.95, rel=1e-9)
    assert solution.multiplier == 0.0
    assert solution.evaluation.learning_cost < 50.0
    assert solution.evaluation.full_prob < 1e-9


# --- no solution --------------------------------------------------------------------------------


def test_constant_cost_has_no_capacity_that_is_large_enough() -> None:
    with pytest.raises(Unstable, match=r"unstable under this cost: .* still full .* a drift of"):
        solve_queue(constant_cost_queue(capacity=None))


@pytest.mark.parametrize("arrival_prob", [0.2, 1.0])
def test_more_work_than_can_be_done_is_unstable(arrival_prob: float) -> None:
    service = float(compute_stationary_distribution(TEXT_ORACLE) @ TEXT_ORACLE.success)
    drift = 4.0 * arrival_prob - service
    with pytest.raises(Unstable, match=f"grows by {drift:.6g} a round or more"):
        solve_queue(sound_queue(arrival_prob=arrival_prob, limit=1e6))


@pytest.mark.slow
@settings(max_examples=40)
@given(queue_problems(), on_grid(1, 9, 10))
def test_unreachable_limits_name_the_best_reachable_value(
    problem: QueueProblem, share: float
) -> None:
    least, _ = find_limit_range(problem)
    assume(least > 1e-6)
    with pytest.raises(Infeasible) as refusal:
        solve_queue(problem.with_limit(share * least))
    assert refusal.value.best == pytest.approx(least, rel=1e-10)
    assert problem.limit_name in str(refusal.value)


# --- structure ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        reference_queue(),
        reference_queue(capacity=200),
        sound_queue(limit=21.0),
        sound_queue(limit=25.0),
        sound_queue(limit=100.0),
        sound_queue(arrival_prob=0.05, limit=3.0),
        sound_queue(arrival_prob=0.05, limit=50.0),
    ],
)
def test_growing_costs_give_threshold_policies_on_the_papers_numbers(problem: QueueProblem) -> None:
    assert examine_queue_solution(solve_queue(problem)).monotone_in_backlog


def test_near_the_edge_of_a_buffer_the_policy_is_distorted() -> None:
    # The same kind of problem cut off at 17: close to the edge it pays to let updates go (D7).
    problem = QueueProblem(
        TEXT_ORACLE,
        FALLING_COST,
        LearningCost("linear", 0.6, "always"),
        arrival_prob=0.1,
        arrival_size=4,
        limit=6.0,
        capacity=17,
        overflow_cost=1.0,
    )
    solution = solve_queue(problem)
    assert not examine_queue_solution(solution).monotone_in_backlog
    check_independently(solution)


def test_a_privacy_limit_of_nothing_means_never_learning() -> None:
    """With nothing to spend the queue stays full: l(7) = 0.1 and one update lost in five rounds."""
    problem = QueueProblem(
        Oracle(np.eye(1), np.array([0.5])),
        np.array([1.7]),
        LearningCost("constant", 0.1, "when-obfuscating"),
        arrival_prob=0.2,
        arrival_size=1,
        limit=0.0,
        objective="learning",
        capacity=7,
        overflow_cost=1.0,
    )
    solution = solve_queue(problem)
    assert solution.evaluation.privacy_cost == 0.0
    assert solution.cost == pytest.approx(0.1 + 0.2 * 1.0, rel=1e-12)
    assert solution.policy.table.max() == 0.0


# --- several sizes, costs by state --------------------------------------------------------------


def test_factors_of_1_and_a_single_size_change_nothing() -> None:
    plain = reference_queue()
    cost = replace(plain.learning_cost, by_state=(1.0, 1.0, 1.0))
    by_size = replace(plain, arrival_prob=None, arrival_size=None, arrival_sizes={4: 0.1})
    expected = solve_queue(plain)
    for same in (replace(plain, learning_cost=cost), by_size):
        found = solve_queue(same)
        assert found.policy.table.tobytes() == expected.policy.table.tobytes()
        assert (found.cost, found.multiplier) == (expected.cost, expected.multiplier)
        assert found.mixing == expected.mixing


def test_a_size_may_be_split_in_two_indexes_with_the_same_optimum() -> None:
    """Sizes 41 and 42 fill a queue of 40 alike, but for what is lost: at no cost they are one."""
    plain = replace(reference_queue(), arrival_prob=0.02, arrival_size=41)
    split = replace(plain, arrival_prob=None, arrival_size=None, arrival_sizes={41: 0.01, 42: 0.01})
    assert solve_queue(split).cost == pytest.approx(solve_queue(plain).cost, rel=1e-9)


def test_an_automatic_capacity_does_not_matter_with_costs_by_state() -> None:
    automatic = solve_queue(uneven_queue(capacity=None))
    assert automatic.problem.capacity is not None
    assert automatic.evaluation.full_prob < 1e-9
    larger = uneven_queue(capacity=None).with_capacity(2 * automatic.problem.capacity)
    assert solve_queue(larger).cost == pytest.approx(automatic.cost, rel=1e-9)
    # A cost that is charged always leaves the backlog after the arrival to decide on.
    table, mixing = np.array(automatic.policy.table[:, :, :60]), automatic.mixing
    assert mixing is not None
    table[mixing.oracle, mixing.arrival, mixing.backlog] = np.nan
    for index, size in ((1, 1), (2, 4)):
        early, late = table[:, index, 1:50], table[:, 0, 1 + size : 50 + size]
        assert np.all((early == late) | np.isnan(early) | np.isnan(late))


def test_monotonicity_in_the_oracle_state_is_reported_and_not_assumed() -> None:
    """Where the states differ in the cost of a backlog alone, the optimum learns in the dearest."""
    cost = LearningCost("linear", 0.6, "when-obfuscating", by_state=(5.0, 1.0, 0.0))
    oracle = replace(TEXT_ORACLE, success=np.full(3, 0.5))
    problem = replace(reference_queue(), oracle=oracle, learning_cost=cost, arrival_prob=0.05)
    problem = replace(problem, privacy_cost=np.ones(3), limit=0.1)
    solution = solve_queue(problem)
    assert solution.cost == pytest.approx(solve_occupation_lp(problem).cost, rel=1e-6)
    report = examine_queue_solution(solution)
    assert report.monotone_in_oracle is False and report.counterexample is not None
    assert not report.theory_applies
    assert any("depends on the oracle state" in note for note in report.notes)


def test_a_search_that_is_stopped_at_once_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained, "MOST_WORK", 0)
    with pytest.raises(SolverFailed, match="0 states in all were evaluated; the oracle stays"):
        solve_queue(sound_queue())


def test_an_oracle_that_hardly_ever_moves_is_solved_or_refused_by_its_longest_stay() -> None:
    solution = solve_queue(frozen_queue(0.1, arrival_prob=0.05, limit=5.0))
    assert solution.cost == pytest.approx(0.05 * 0.3 / 0.95)  # the best state does all the work
    with pytest.raises(SplitChain, match=r"stays in state 0 for 5e\+12 rounds"):
        solve_queue(frozen_queue(1e-12, arrival_prob=0.05, limit=5.0))


def test_the_cheapest_policy_is_found_by_evaluating_one() -> None:
    """With so generous a limit it learns in the best state alone, which attains the bound."""
    solution = solve_queue(replace(sound_queue(limit=1e6), arrival_prob=0.26, arrival_size=1))
    assert (solution.iterations, solution.multiplier, solution.mixing) == (1, 0.0, None)
    assert solution.cost == pytest.approx(solution.lower_bound)
