"""The constrained problem (9): against a linear programme, every policy, and published numbers.

How far two solvers can agree.  HiGHS keeps every balance of the programme to 1e-10, and an error in
a balance costs its dual value, which is of the order of the dearest round.  So "within 1e-8" is
relative to the optimum or the priced limit (multiplier * limit, the other half of the Lagrangian),
whichever is larger, and 1e-10 of the dearest round is allowed on top.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import Infeasible, NoSolution, SolverFailed, SplitChain, Unstable
from covertfl.evaluation.queue import QueueEvaluation, evaluate_queue_policy
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.multiplier import Mixing
from covertfl.solvers.occupation_lp import solve_occupation_lp
from tests.support.literal_queue import EveryPolicy, LiteralEvaluation, LiteralQueue
from tests.support.paper_queues import (
    FALLING_COST,
    TEXT_ORACLE,
    constant_cost_queue,
    reference_queue,
    sound_queue,
    tracking_queue,
)
from tests.support.strategies import (
    CHARGED,
    OBJECTIVES,
    SHAPES,
    find_limit_range,
    on_grid,
    ordered_queue_problems,
    place_limit,
    queue_problems,
)

SHARES = on_grid(1, 19, 20)


def limited_cost(problem: QueueProblem, evaluation: QueueEvaluation | LiteralEvaluation) -> float:
    """The average that the limit bounds."""
    if problem.objective == "privacy":
        return evaluation.learning_cost
    return evaluation.privacy_cost


def minimised_cost(problem: QueueProblem, evaluation: QueueEvaluation | LiteralEvaluation) -> float:
    """The average that is minimised."""
    if problem.objective == "privacy":
        return evaluation.privacy_cost
    return evaluation.learning_cost


def tolerance(solution: QueueSolution) -> float:
    """How far two right answers may lie apart, as said at the top."""
    literal = LiteralQueue.of(solution.problem)
    dearest = float(max(literal.privacy.max(), literal.learning.max()))
    scale = max(solution.cost, solution.multiplier * solution.problem.limit)
    return 1e-8 * scale + 1e-10 * dearest


def check_independently(solution: QueueSolution) -> None:
    """Evaluate the policy anew, and prove by weak duality that none within the limit is better."""
    problem, literal = solution.problem, LiteralQueue.of(solution.problem)
    evaluation = literal.evaluate(solution.policy.table)
    assert minimised_cost(problem, evaluation) == pytest.approx(solution.cost, rel=1e-9, abs=1e-13)
    assert limited_cost(problem, evaluation) <= problem.limit * (1.0 + 1e-9) + 1e-13
    multiplier = solution.multiplier
    weights = (1.0, multiplier) if problem.objective == "privacy" else (multiplier, 1.0)
    bound = literal.bound_below(solution.policy.table, weights) - multiplier * problem.limit
    assert solution.cost - bound <= tolerance(solution)


# --- against the linear programme ---------------------------------------------------------------


def test_exact_agrees_with_the_linear_programme() -> None:
    outcomes: Counter[str] = Counter()
    kinds: Counter[tuple[str, str, str]] = Counter()

    @settings(max_examples=260)
    @given(queue_problems(), SHARES)
    def compare(problem: QueueProblem, share: float) -> None:
        least, free = find_limit_range(problem)
        # Where the limit has hardly any room, its price is anything.
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
    assert outcomes["compared"] >= 200
    # Refusals are for queues that can be run in two ways that hardly ever meet.
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


@settings(max_examples=120)
@given(queue_problems(max_states=2, max_capacity=3), SHARES)
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


def test_constant_cost_gives_up_on_long_queues() -> None:
    solution = solve_queue(constant_cost_queue())
    assert solution.cost == pytest.approx(0.4232, abs=5e-5)
    assert solution.evaluation.full_prob == pytest.approx(0.043, abs=5e-4)
    worst = solution.policy.table[0, 0]
    assert np.all(worst[1:7] == 1.0)
    assert 0.0 < worst[7] < 1.0
    assert np.all(worst[8:40] == 0.0)
    assert np.all(solution.policy.table[1:, :, 1:] == 1.0)
    # Each of those states is visited, so this is no artefact of the edge.
    assert solution.evaluation.mass[0].min() > 1e-4
    assert not is_monotone_in_backlog(solution)
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
    told: list[str] = []
    solution = solve_queue(sound_queue(limit=25.0), on_progress=told.append)
    assert solution.problem.capacity is not None
    assert solution.evaluation.full_prob < 1e-9
    assert solution.evaluation.learning_cost == pytest.approx(25.0, abs=1e-8)
    assert told and told[-1] == f"capacity {solution.problem.capacity}"
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
    assert is_monotone_in_backlog(solution)


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


# --- limits at the end of their range -----------------------------------------------------------


@settings(max_examples=60)
@given(queue_problems(), st.sampled_from((1.0 - 1e-12, 1.0, 1.0 + 1e-9, 1.0 + 1e-6, 1.001)))
def test_limits_at_the_least_reachable_value(problem: QueueProblem, factor: float) -> None:
    least, free = find_limit_range(problem)
    assume(least > 1e-6 and free > 1.01 * least)
    try:
        solution = solve_queue(problem.with_limit(factor * least))
    except SplitChain:
        assume(False)
    evaluation = LiteralQueue.of(problem).evaluate(solution.policy.table)
    assert limited_cost(problem, evaluation) <= factor * least * (1.0 + 1e-9)


@settings(max_examples=60)
@given(queue_problems(), st.sampled_from((1.0, 1.0 + 1e-9, 1.5)))
def test_limits_that_do_not_bind_have_no_price(problem: QueueProblem, factor: float) -> None:
    _, free = find_limit_range(problem)
    solution = solve_queue(problem.with_limit(factor * free))
    assert solution.multiplier == 0.0
    assert solution.mixing is None
    assert set(np.unique(solution.policy.table)) <= {0.0, 1.0}


# --- Theorem 3 ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(queue_problems(), SHARES)
def test_the_optimum_randomises_in_at_most_one_state(problem: QueueProblem, share: float) -> None:
    try:
        solution = solve_queue(place_limit(problem, share))
    except (SplitChain, SolverFailed):
        assume(False)
    table = solution.policy.table
    mixed = [tuple(int(i) for i in place) for place in np.argwhere((table > 0.0) & (table < 1.0))]
    if solution.mixing is None:
        assert mixed == []
        return
    place = (solution.mixing.oracle, solution.mixing.arrival, solution.mixing.backlog)
    assert mixed in ([], [place])
    assert table[place] == solution.mixing.learn_prob


def take_apart(solution: QueueSolution, mixing: Mixing) -> list[QueueEvaluation]:
    """The two policies that differ in the one state: the one that learns there, the other."""
    evaluations = []
    for prob in (1.0, 0.0):
        table = np.array(solution.policy.table)
        table[mixing.oracle, mixing.arrival, mixing.backlog] = prob
        evaluations.append(evaluate_queue_policy(solution.problem, QueueTable(table)))
    return evaluations


@pytest.mark.parametrize(
    ("problem", "printed", "exact"),
    [
        (reference_queue(), 0.579, 0.515),
        (constant_cost_queue(), None, None),
        (tracking_queue(0.03, 10), None, None),
        (tracking_queue(0.1, 4), None, None),
        (sound_queue(arrival_prob=0.05, limit=3.0), None, None),
    ],
)
def test_the_printed_weight_misses_the_limit_and_ours_meets_it(
    problem: QueueProblem, printed: float | None, exact: float | None
) -> None:
    solution = solve_queue(problem)
    mixing = solution.mixing
    assert mixing is not None
    learning, other = take_apart(solution, mixing)
    # Both are optimal at the critical multiplier, on either side of the limit.
    assert learning.learning_cost < problem.limit < other.learning_cost
    price = solution.multiplier
    assert learning.privacy_cost + price * learning.learning_cost == pytest.approx(
        other.privacy_cost + price * other.learning_cost, rel=1e-9
    )
    # Equation (12) and its correction with the stationary masses (deviation D8).
    alpha = (problem.limit - other.learning_cost) / (learning.learning_cost - other.learning_cost)
    place = (mixing.oracle, mixing.arrival, mixing.backlog)
    m1, m2 = learning.mass[place], other.mass[place]
    p = alpha * m1 / (alpha * m1 + (1.0 - alpha) * m2)
    assert mixing.learn_prob == pytest.approx(p, rel=1e-8)
    if printed is not None:
        assert alpha == pytest.approx(printed, abs=5e-4)
        assert p == pytest.approx(exact, abs=5e-4)
    as_printed = np.array(solution.policy.table)
    as_printed[place] = alpha
    missed = evaluate_queue_policy(solution.problem, QueueTable(as_printed)).learning_cost
    assert abs(missed - problem.limit) > 1e-4 * problem.limit
    assert solution.evaluation.learning_cost == pytest.approx(problem.limit, rel=1e-9)


# --- the frontier -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [reference_queue(), tracking_queue(0.1, 4)])
def test_the_optimal_cost_is_convex_and_falls_with_the_limit(base: QueueProblem) -> None:
    least, free = find_limit_range(base)
    limits = least + (free - least) * np.linspace(0.002, 1.0, 30) ** 2
    solutions = [solve_queue(base.with_limit(float(limit))) for limit in limits]
    costs = np.array([solution.cost for solution in solutions])
    prices = np.array([solution.multiplier for solution in solutions])
    slopes = np.diff(costs) / np.diff(limits)
    assert np.all(slopes <= 1e-12)
    assert np.all(np.diff(slopes) >= -1e-9 * np.abs(slopes[:-1]))
    # The multiplier is the price of the limit: it lies between the slopes on either side.
    assert np.all(prices[:-1] >= -slopes * (1.0 - 1e-9))
    assert np.all(prices[1:] <= -slopes * (1.0 + 1e-9))


def mirror(solution: QueueSolution) -> QueueProblem:
    """The problem that limits what was minimised to what it came to, and minimises the other."""
    objective = "learning" if solution.problem.objective == "privacy" else "privacy"
    return replace(solution.problem, objective=objective, limit=solution.cost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "problem",
    [
        reference_queue(),
        constant_cost_queue(),
        tracking_queue(0.03, 10),
        sound_queue(limit=25.0),
        sound_queue(arrival_prob=0.05, limit=3.0),
    ],
)
def test_the_mirrored_problem_gives_back_the_limit(problem: QueueProblem) -> None:
    solution = solve_queue(problem)
    back = solve_queue(mirror(solution))
    assert back.cost == pytest.approx(problem.limit, rel=1e-7)
    assert back.evaluation.privacy_cost == pytest.approx(solution.cost, rel=1e-9)
    assert back.multiplier == pytest.approx(1.0 / solution.multiplier, rel=1e-6)


def test_the_mirrored_problem_with_an_automatic_capacity() -> None:
    problem = sound_queue(arrival_prob=0.05, limit=3.0)
    solution = solve_queue(problem)
    back = solve_queue(replace(problem, objective="learning", limit=solution.cost))
    assert back.cost == pytest.approx(3.0, rel=1e-7)


@settings(max_examples=60)
@given(queue_problems(), SHARES)
def test_mirrored_random_problems(problem: QueueProblem, share: float) -> None:
    try:
        problem = place_limit(problem, share)
        solution = solve_queue(problem)
        # Prices far from 1 turn rounding of one cost into errors of the other.
        assume(1e-4 < solution.multiplier < 1e4 and solution.cost > 1e-3 and problem.limit > 1e-3)
        back = solve_queue(mirror(solution))
    except (SplitChain, SolverFailed):
        assume(False)
    assert back.cost == pytest.approx(problem.limit, rel=1e-7)


# --- structure ----------------------------------------------------------------------------------


def is_monotone_in_backlog(solution: QueueSolution) -> bool:
    """Whether more owed never means less learning, among states with mass above 1e-9."""
    table, mass = solution.policy.table, solution.evaluation.mass
    for o, e in np.ndindex(*table.shape[:2]):
        probs = table[o, e][mass[o, e] > 1e-9]
        if np.any(np.diff(probs) < -1e-12):
            return False
    return True


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
    assert is_monotone_in_backlog(solve_queue(problem))


@settings(max_examples=60)
@given(ordered_queue_problems(), st.sampled_from((0.01, 0.1, 0.3, 1.0, 3.0)))
def test_random_ordered_queues_have_threshold_policies(bounded: QueueProblem, slack: float) -> None:
    # M1, M2, M5 and a convex cost charged always, with room for every update (deviations D6, D7).
    service = float(compute_stationary_distribution(bounded.oracle) @ bounded.oracle.success)
    assume(bounded.load <= 0.85 * service)
    problem = replace(bounded, capacity=None, overflow_cost=None, limit=1e-6)
    with pytest.raises(Infeasible) as refusal:
        solve_queue(problem)
    solution = solve_queue(problem.with_limit(refusal.value.best * (1.0 + slack)))
    assert is_monotone_in_backlog(solution)
    assert solution.evaluation.full_prob < 1e-9


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
    assert not is_monotone_in_backlog(solution)
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
