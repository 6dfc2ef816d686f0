"""What a policy costs and shows: against a literal chain, by simulation, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import (
    GreedyPolicy,
    Policy,
    QueueTable,
    build_mixture_table,
    build_sigmoid_table,
    build_threshold_table,
)
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import InvalidInput, SplitChain
from covertfl.evaluation.queue import evaluate_queue_policy, require_settling, simulate_queue_policy
from tests.support.literal_queue import LiteralQueue, count_closed_classes
from tests.support.paper_queues import (
    FALLING_COST,
    TEXT_ORACLE,
    reference_queue,
    sound_queue,
    uneven_queue,
)
from tests.support.strategies import queue_problems

AVERAGES = (
    "privacy_cost",
    "learning_cost",
    "learn_fraction",
    "full_prob",
    "lost_per_round",
    "mean_backlog",
)
NO_POLICY = "policy must have a method learn_prob, got "
# A queue that forgets quickly, with every kind of cost in it.
LIVELY = QueueProblem(
    TEXT_ORACLE,
    FALLING_COST,
    LearningCost("triangular", 0.6, "when-obfuscating"),
    arrival_prob=0.1,
    arrival_size=4,
    limit=1.0,
    capacity=9,
    overflow_cost=2.0,
    full_cost=5.0,
)


def draw_table(problem: QueueProblem, seed: int) -> QueueTable:
    table = np.random.default_rng(seed).random(problem.table_shape)
    table[:, :, 0] = 0.0
    return QueueTable(np.round(table, 1))


# --- exact --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(queue_problems(), st.integers(0, 2**32 - 1))
def test_averages_agree_with_the_literal_queue(problem: QueueProblem, seed: int) -> None:
    policy = draw_table(problem, seed)
    literal = LiteralQueue.of(problem)
    learn = literal.flatten(policy.table)
    assume(count_closed_classes(literal.mix(learn, literal.moves)) == 1)
    ours, expected = evaluate_queue_policy(problem, policy), literal.evaluate(policy.table)
    for name in AVERAGES:
        assert getattr(ours, name) == pytest.approx(
            getattr(expected, name), rel=1e-10, abs=1e-13
        ), name
    np.testing.assert_allclose(ours.mass.ravel(), expected.distribution, rtol=1e-9, atol=1e-13)


@given(queue_problems(), st.integers(0, 2**32 - 1))
def test_what_arrives_is_done_or_lost(problem: QueueProblem, seed: int) -> None:
    policy = draw_table(problem, seed)
    try:
        evaluation = evaluate_queue_policy(problem, policy)
    except SplitChain:
        assume(False)
    done = np.einsum("oey,oey,o->", evaluation.mass, policy.table, problem.oracle.success)
    assert done + evaluation.lost_per_round == pytest.approx(problem.load, rel=1e-10)


def test_a_policy_that_is_no_table_is_tabulated() -> None:
    learn = np.ones(LIVELY.table_shape)
    learn[:, :, 0] = 0.0
    greedy, table = (
        evaluate_queue_policy(LIVELY, policy) for policy in (GreedyPolicy(), QueueTable(learn))
    )
    assert greedy.privacy_cost == table.privacy_cost


def test_settling_is_when_the_average_from_an_empty_queue_has_come_close() -> None:
    problem = reference_queue(capacity=12)
    policy = build_threshold_table(problem, [[6, 6], [2, 2], [1, 1]])
    evaluation = evaluate_queue_policy(problem, policy)
    literal = LiteralQueue.of(problem)
    learn = literal.flatten(policy.table)
    moves, costs = literal.mix(learn, literal.moves), literal.mix(learn, literal.learning)
    distribution = np.array([float(y == 0 and e == 0) for _, e, y in literal.states])
    distribution /= distribution.sum()
    rounds = int(np.ceil(evaluation.settling_rounds))
    assert 50 < rounds < 50_000
    total = 0.0
    for _ in range(rounds):
        total += float(distribution @ costs)
        distribution = distribution @ moves
    assert total / rounds == pytest.approx(evaluation.learning_cost, rel=0.011)


def make_split_queue() -> tuple[QueueProblem, QueueTable]:
    """Certain success, single arrivals: short queues stay short, long ones are given up."""
    oracle = Oracle(np.array([[1.0]]), np.array([1.0]))
    problem = QueueProblem(
        oracle,
        np.array([1.0]),
        LearningCost("constant", 0.6, "when-obfuscating"),
        arrival_prob=0.5,
        arrival_size=1,
        limit=0.2,
        capacity=9,
        overflow_cost=0.0,
    )
    learn = np.zeros(problem.table_shape)
    learn[:, :, 1:4] = 1.0
    return problem, QueueTable(learn)


def test_several_closed_classes_are_refused() -> None:
    problem, policy = make_split_queue()
    sentence = r"2 closed classes, .*backlog 9\.\.9.*backlog 0\.\.1"
    with pytest.raises(SplitChain, match=sentence):
        evaluate_queue_policy(problem, policy)


def test_averages_that_take_for_ever_to_show_are_refused() -> None:
    # The same queue, which leaves either class with probability 1e-12.
    problem, policy = make_split_queue()
    nearly = np.array(policy.table)
    nearly[:, :, 4:] = 1e-13
    nearly[:, :, 1:4] = 1.0 - 1e-13
    evaluation = evaluate_queue_policy(problem, QueueTable(nearly))
    assert evaluation.settling_rounds > 1e9
    with pytest.raises(SplitChain, match="belongs to no start state"):
        require_settling(evaluation)
    require_settling(evaluate_queue_policy(LIVELY, GreedyPolicy()))


def test_tables_and_capacities_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"learn_prob must be 3 x 2 x 10 .* got 3 x 2 x 8"):
        evaluate_queue_policy(LIVELY, QueueTable(np.zeros((3, 2, 8))))
    with pytest.raises(InvalidInput, match="a numeric capacity is needed"):
        evaluate_queue_policy(sound_queue(), GreedyPolicy())


# --- simulated ----------------------------------------------------------------------------------

POLICIES: dict[str, Policy] = {
    "greedy": GreedyPolicy(),
    "threshold": build_threshold_table(LIVELY, [[6, 5], [3, 2], [1, 1]]),
    "mixture (13)": build_mixture_table(LIVELY, [[4], [2], [1]], [[8], [5], [1]], 0.3),
    "sigmoid (14)": build_sigmoid_table(LIVELY, np.array([2.0, 6.0, 0.4])[:, None, None], 0.7),
    "table": draw_table(LIVELY, 11),
}


@pytest.mark.parametrize("name", POLICIES)
def test_simulation_agrees_with_the_exact_averages(name: str) -> None:
    policy = POLICIES[name]
    exact = evaluate_queue_policy(LIVELY, policy)
    sample = simulate_queue_policy(
        LIVELY, policy, rounds=1000, runs=400, burn_in=300, generator=np.random.default_rng(17)
    )
    for average in AVERAGES:
        drawn = getattr(sample, average)
        assert drawn.shape == (400,)
        # Runs are independent, so their spread gives the standard error of their mean.
        error = drawn.std(ddof=1) / np.sqrt(len(drawn))
        assert abs(drawn.mean() - getattr(exact, average)) <= 4.0 * error + 1e-12, average


def test_the_same_seed_gives_the_same_runs() -> None:
    once, again, other = (
        simulate_queue_policy(
            LIVELY, GreedyPolicy(), rounds=50, runs=3, generator=np.random.default_rng(seed)
        )
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(once.privacy_cost, again.privacy_cost)
    assert not np.array_equal(once.privacy_cost, other.privacy_cost)


def test_the_first_round_begins_where_it_is_told() -> None:
    sample = simulate_queue_policy(
        LIVELY, GreedyPolicy(), rounds=1, runs=5, backlog=9, generator=np.random.default_rng(0)
    )
    assert np.all(sample.mean_backlog == 9.0) and np.all(sample.full_prob == 1.0)
    later = simulate_queue_policy(
        LIVELY,
        GreedyPolicy(),
        rounds=1,
        runs=50,
        backlog=9,
        burn_in=5,
        generator=np.random.default_rng(0),
    )
    assert later.mean_backlog.mean() < 9.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *(({"rounds": wrong}, "rounds must be a whole") for wrong in (0, "5", None, 1.5, True)),
        *(({"runs": wrong}, "runs must be a whole number") for wrong in (0, "2", [2], 2.5)),
        *(({"burn_in": wrong}, "burn_in must be a whole number") for wrong in (-1, "0", None)),
        *(({"generator": wrong}, "generator must be of type") for wrong in (None, 0)),
        *(({"policy": wrong}, NO_POLICY) for wrong in (None, "greedy", GreedyPolicy)),
        ({"problem": None}, "problem must be of type QueueProblem, got None"),
        ({"backlog": None}, "backlog must be a whole number of at least 0, got None"),
        ({"backlog": 10}, r"backlog must lie in 0\.\.9, got 10"),
        ({"backlog": -1}, "backlog must be a whole number of at least 0, got -1"),
    ],
)
def test_bad_simulations_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"problem": LIVELY, "policy": GreedyPolicy(), "rounds": 5, "runs": 2}
    with pytest.raises(InvalidInput, match=sentence):
        simulate_queue_policy(**good | {"generator": np.random.default_rng(0)} | arguments)


@pytest.mark.parametrize("wrong", [None, 1, "greedy", GreedyPolicy, np.zeros((3, 2, 10))])
def test_what_is_no_policy_or_problem_is_not_evaluated(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=NO_POLICY):
        evaluate_queue_policy(LIVELY, wrong)
    with pytest.raises(InvalidInput, match="problem must be of type QueueProblem"):
        evaluate_queue_policy(wrong, GreedyPolicy())


def test_simulation_and_evaluation_agree_on_several_sizes_and_costs_by_state() -> None:
    problem = uneven_queue(capacity=12)
    generator = np.random.default_rng(8)
    table = generator.random(problem.table_shape)
    table[:, :, 0] = 0.0
    exact = evaluate_queue_policy(problem, QueueTable(table))
    sample = simulate_queue_policy(
        problem, QueueTable(table), rounds=400, runs=1000, burn_in=100, generator=generator
    )
    for name, values in vars(sample).items():
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - getattr(exact, name)) < 4.0 * error, name
