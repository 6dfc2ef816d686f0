"""The queue's dynamics and costs worked by hand and against a literal version; bad arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import (
    Action,
    FiniteHorizon,
    LearningCost,
    QueueProblem,
    expected_lost,
    lost_updates,
    next_backlog,
    round_learning_cost,
)
from covertfl.errors import InvalidInput
from tests.support.literal_queue import LEARN, OBFUSCATE, LiteralQueue
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE, reference_queue, sound_queue
from tests.support.strategies import queue_problems

NO_SIZE: dict[str, Any] = {"arrival_prob": None, "arrival_size": None}
TWO_STATES = Oracle(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0.5, 1.0]))


def tiny_queue(**changes: Any) -> QueueProblem:
    """Capacity 3, arrivals of 2, every number simple enough to follow by hand."""
    problem = QueueProblem(
        TWO_STATES,
        np.array([3.0, 1.0]),
        LearningCost("linear", 2.0, "always"),
        arrival_prob=0.25,
        arrival_size=2,
        limit=5.0,
        capacity=3,
        overflow_cost=10.0,
        full_cost=100.0,
    )
    return replace(problem, **changes)


def test_actions_are_numbered_as_in_the_paper() -> None:
    assert (int(Action.OBFUSCATE), int(Action.LEARN)) == (0, 1)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (LearningCost("constant", 0.6), [0.0, 0.6, 0.6, 0.6]),
        (LearningCost("linear", 0.6), [0.0, 0.6, 1.2, 1.8]),
        (LearningCost("quadratic", 0.6), [0.0, 0.6, 2.4, 5.4]),
        (LearningCost("triangular", 0.6), [0.0, 0.6, 1.8, 3.6]),
        (LearningCost("table", values=(0.0, 5.0, 1.0, 7.0)), [0.0, 5.0, 1.0, 7.0]),
    ],
)
def test_shapes(cost: LearningCost, expected: list[float]) -> None:
    np.testing.assert_allclose(cost.at(np.arange(4)), expected, rtol=1e-15)


def test_backlogs_by_hand() -> None:
    problem = tiny_queue()
    # Without an arrival, then with one: rows by arrival, columns by backlog 0..3.
    assert next_backlog(problem, served=False).tolist() == [[0, 1, 2, 3], [2, 3, 3, 3]]
    assert next_backlog(problem, served=True)[:, 1:].tolist() == [[0, 1, 2], [2, 3, 3]]
    assert lost_updates(problem, served=False).tolist() == [[0, 0, 0, 0], [0, 0, 1, 2]]
    assert lost_updates(problem, served=True)[:, 1:].tolist() == [[0, 0, 0], [0, 0, 1]]


def test_costs_by_hand() -> None:
    problem = tiny_queue()
    # Obfuscating: 2 y, 100 more when full, 10 for each update lost; whatever the oracle state.
    obfuscate = [[0.0, 2.0, 4.0, 106.0], [0.0, 2.0, 14.0, 126.0]]
    np.testing.assert_allclose(
        round_learning_cost(problem, Action.OBFUSCATE), np.array([obfuscate, obfuscate])
    )
    # Learning: no full cost; in state 0 half of the tries fail, in state 1 none does.
    learn = round_learning_cost(problem, Action.LEARN)[:, :, 1:]
    np.testing.assert_allclose(learn[0], [[2.0, 4.0, 6.0], [2.0, 4.0 + 5.0, 6.0 + 15.0]])
    np.testing.assert_allclose(learn[1], [[2.0, 4.0, 6.0], [2.0, 4.0, 6.0 + 10.0]])
    np.testing.assert_allclose(
        expected_lost(problem, Action.LEARN)[0, :, 1:], [[0.0, 0.0, 0.0], [0.0, 0.5, 1.5]]
    )


def test_cost_charged_when_obfuscating_only() -> None:
    problem = tiny_queue(learning_cost=LearningCost("linear", 2.0, "when-obfuscating"))
    learn = round_learning_cost(problem, Action.LEARN)[:, :, 1:]
    np.testing.assert_allclose(learn[1], [[0.0, 0.0, 0.0], [0.0, 0.0, 10.0]])
    obfuscate = round_learning_cost(problem, Action.OBFUSCATE)
    np.testing.assert_allclose(obfuscate[1], [[0.0, 2.0, 4.0, 106.0], [0.0, 2.0, 14.0, 126.0]])


@pytest.mark.slow
@given(queue_problems())
def test_costs_and_losses_agree_with_the_literal_queue(problem: QueueProblem) -> None:
    literal = LiteralQueue.of(problem)
    shape = problem.table_shape
    for action, number in ((Action.OBFUSCATE, OBFUSCATE), (Action.LEARN, LEARN)):
        first = 0 if action is Action.OBFUSCATE else 1  # learning at 0 is not admissible
        for ours, theirs in (
            (round_learning_cost(problem, action), literal.learning[number]),
            (expected_lost(problem, action), literal.lost[number]),
        ):
            expected = theirs.reshape(shape)[:, :, first:]
            np.testing.assert_allclose(ours[:, :, first:], expected, atol=1e-12)


def test_derived_numbers() -> None:
    problem = tiny_queue()
    assert (problem.num_levels, problem.table_shape, problem.num_states) == (4, (2, 2, 4), 16)
    assert problem.load == 0.5
    assert problem.limit_name == "learning_limit"
    assert tiny_queue(objective="learning").limit_name == "privacy_limit"
    assert problem.with_limit(7.0).limit == 7.0
    assert reference_queue(capacity=1000).num_states == 6006


def test_a_capacity_given_later_keeps_the_overflow_cost_or_makes_one() -> None:
    assert tiny_queue().with_capacity(9).overflow_cost == 10.0
    automatic = sound_queue()
    assert automatic.capacity is None
    bounded = automatic.with_capacity(64)
    assert bounded.capacity == 64
    # Losing an update costs more than keeping it for any reasonable time.
    assert bounded.overflow_cost is not None and bounded.overflow_cost >= 100 * 0.6 * 64


@pytest.mark.parametrize("action", list(Action))
def test_costs_of_an_automatic_capacity_are_refused(action: Action) -> None:
    with pytest.raises(InvalidInput, match="a numeric capacity is needed"):
        round_learning_cost(sound_queue(), action)


OTHER_COST = LearningCost("table", values=(0.0, 1.0))
BAD_ARGUMENTS: list[tuple[type, dict[str, Any], str]] = [
    # what only Python can pass: the table of bad files has the rest
    (Oracle, {"transition": [[0.5, 0.5]]}, "transition must be square, .* got 1 x 2"),
    (Oracle, {"transition": 1.0}, "transition must be square, .* got a single number"),
    (Oracle, {"transition": [[0.5, 0.5], [1.0]]}, "transition must be numbers in rows of one"),
    (Oracle, {"transition": [["a", "b"], ["c", "d"]]}, "transition must be numbers"),
    (Oracle, {"transition": [[0.5, 0.5], [np.nan, 1.0]]}, "row 1 .* got nan in column 0"),
    (Oracle, {"success": ["often", "seldom"]}, "success must be numbers"),
    (Oracle, {"success": [-0.1, 0.5]}, r"success\[0\] must lie in \[0, 1\], got -0\.1"),
    (LearningCost, {"shape": "cubic"}, "learning.shape must be one of constant, .* got 'cubic'"),
    (LearningCost, {"shape": np.zeros(2)}, r"learning.shape must be one of .* got array\(\[0., 0"),
    (LearningCost, {"charged": []}, r"learning.charged must be always or when-obf.* got \[\]"),
    (LearningCost, {"scale": "0.6"}, "learning.scale must be a number, got '0.6'"),
    (LearningCost, {"scale": True}, "learning.scale must be a number, got True"),
    (LearningCost, {"scale": np.nan}, "learning.scale must be a finite number .* got nan"),
    (LearningCost, {"shape": "table", "values": 3.0}, "learning.values must be one row of numbers"),
    (LearningCost, {"shape": "table", "values": "ab"}, "learning.values must be numbers"),
    (LearningCost, {"shape": "table", "values": (0.0, -1.0)}, r"learning.values\[1\] must .* -1"),
    (QueueProblem, {"privacy_cost": [[1.0, 2.0]]}, "privacy must have one cost for each of the 2"),
    (QueueProblem, {"privacy_cost": ["dear", "cheap"]}, "privacy must be numbers"),
    (QueueProblem, {"privacy_cost": [10**400, 2.0]}, "privacy must be numbers"),
    (QueueProblem, {"oracle": [[1.0]]}, r"oracle must be of type Oracle, got \[\[1.0\]\]"),
    (QueueProblem, {"learning_cost": "linear"}, "learning_cost must be of type LearningCost, got"),
    (QueueProblem, {"limit": None}, "learning_limit must be a number, got None"),
    (QueueProblem, {"limit": -1.0, "objective": "learning"}, "privacy_limit must be .* got -1"),
    (QueueProblem, {"full_cost": 10**400}, "full_cost must be a finite number of at least 0, got"),
    (QueueProblem, {"arrival_prob": "often"}, r"arrival_prob must lie in \(0, 1\], got 'often'"),
    (QueueProblem, {"arrival_prob": np.nan}, r"arrival_prob must lie in \(0, 1\], got nan"),
    (QueueProblem, {"arrival_prob": None}, "arrival_prob is missing: give arrival_prob and arriv"),
    (QueueProblem, {"arrival_size": 2.5}, "arrival_size must be a whole number of at least 1, go"),
    (QueueProblem, {"arrival_size": True}, "arrival_size must be a whole number of at least 1, g"),
    (QueueProblem, {"capacity": True}, "capacity must be a whole number of at least 1, got True"),
    (QueueProblem, {"capacity": 2.5}, "capacity must be a whole number of at least 1, got 2.5"),
    (QueueProblem, {"objective": np.zeros(2)}, "minimise must be privacy or learning, got array"),
    (QueueProblem, {"arrival_sizes": {1: 0.1}}, "takes the place of the other two"),
    (QueueProblem, {**NO_SIZE, "arrival_sizes": {}}, "must have a probability by size, got {}"),
    (QueueProblem, {**NO_SIZE, "arrival_sizes": [0.1]}, "must have a probability by size"),
    (QueueProblem, {**NO_SIZE, "arrival_sizes": {1.5: 0.1}}, "a size in .* must be a whole number"),
    (QueueProblem, {**NO_SIZE, "arrival_sizes": {2: 0.0}}, r"arrival_sizes\.2 must lie in \(0, 1"),
    (QueueProblem, {**NO_SIZE, "arrival_sizes": {2: "x"}}, r"arrival_sizes\.2 must .*, got 'x'"),
    (FiniteHorizon, {"learning_cost": None}, "learning_cost must be of type LearningCost, got No"),
    (FiniteHorizon, {"updates": 0}, "updates must be a whole number of at least 1, got 0"),
    (FiniteHorizon, {"rounds": True}, "rounds must be a whole number of at least 1, got True"),
    (FiniteHorizon, {"rounds": 4.5}, "rounds must be a whole number of at least 1, got 4.5"),
    (FiniteHorizon, {"privacy_cost": [1.0]}, "privacy must have one cost for each of the 3"),
    (FiniteHorizon, {"learning_cost": OTHER_COST}, r"learning.values must have 5 values, one for"),
]


@pytest.mark.parametrize(("kind", "changes", "sentence"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused(kind: type, changes: dict[str, Any], sentence: str) -> None:
    good: dict[type, Any] = {
        Oracle: TWO_STATES,
        LearningCost: LearningCost(),
        QueueProblem: tiny_queue(),
        FiniteHorizon: FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost(), 45, 4),
    }
    with pytest.raises(InvalidInput, match=sentence):
        replace(good[kind], **changes)


def test_lists_are_taken_for_arrays() -> None:
    oracle = Oracle([[0.9, 0.1], [0.2, 0.8]], [0.5, 1.0])
    cost = LearningCost("table", values=[0, 1.0, 2.0, 4.0])
    queue = QueueProblem(oracle, [3.0, 1.0], cost, 0.25, 2, 5.0, capacity=3, overflow_cost=0.0)
    horizon = FiniteHorizon(oracle, [3, 1], cost, rounds=5, updates=3)
    assert cost.values == (0.0, 1.0, 2.0, 4.0)
    for costs in (queue.privacy_cost, horizon.privacy_cost):
        assert costs.tolist() == [3.0, 1.0] and not costs.flags.writeable


# --- finite horizon -----------------------------------------------------------------------------


def test_terminal_cost() -> None:
    cost = LearningCost("quadratic", 0.6)
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, cost, rounds=45, updates=4)
    np.testing.assert_allclose(problem.terminal_cost(), [0.0, 0.6, 2.4, 5.4, 9.6])


def test_costs_by_oracle_state_worked_by_hand() -> None:
    """The factor multiplies l(y) alone: not the full queue's cost, and not that of lost updates."""
    cost = LearningCost("linear", 2.0, "when-obfuscating", by_state=[3.0, 0.5])
    problem = tiny_queue(learning_cost=cost)
    idle = round_learning_cost(problem, Action.OBFUSCATE)
    assert idle[:, 0].tolist() == [[0.0, 6.0, 12.0, 118.0], [0.0, 1.0, 2.0, 103.0]]
    assert idle[:, 1].tolist() == [[0.0, 6.0, 22.0, 138.0], [0.0, 1.0, 12.0, 123.0]]
    assert round_learning_cost(problem, Action.LEARN)[:, 0].tolist() == [[0.0] * 4] * 2
    always = tiny_queue(learning_cost=replace(cost, charged="always"))
    assert round_learning_cost(always, Action.LEARN)[1, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert always.backlog_cost(np.array([0, 1]), np.array([3, 2])).tolist() == [18.0, 2.0]


def test_a_lost_update_is_charged_with_the_largest_factor() -> None:
    plain = sound_queue()
    factors = replace(plain.learning_cost, by_state=(0.5, 0.0, 4.0))
    costly = replace(plain, learning_cost=factors).with_capacity(50)
    unscaled = plain.with_capacity(50).overflow_cost
    assert unscaled is not None
    assert costly.overflow_cost == 4.0 * unscaled


# --- arrivals -----------------------------------------------------------------------------------


def make_queue(**arrivals: Any) -> QueueProblem:
    return QueueProblem(TEXT_ORACLE, FALLING_COST, LearningCost(), limit=3.0, **arrivals)


def test_sizes_ascend_after_none_and_one_size_is_the_same_in_both_forms() -> None:
    problem = make_queue(arrival_sizes={4: 0.25, 1: 0.5})
    assert problem.arrival_support.tolist() == [0, 1, 4]
    assert problem.arrival_probs.tolist() == [0.25, 0.5, 0.25]
    assert (problem.load, problem.largest_arrival) == (1.5, 4)
    one, other = make_queue(arrival_sizes={4: 0.1}), make_queue(arrival_prob=0.1, arrival_size=4)
    for name in ("arrival_support", "arrival_probs"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    assert one.load == other.load == 0.1 * 4


def test_a_size_that_is_not_foreseen_has_the_index_of_the_next_larger_one() -> None:
    problem = make_queue(arrival_sizes={2: 0.1, 5: 0.1})
    assert problem.index_arrivals(np.arange(8)).tolist() == [0, 1, 1, 2, 2, 2, 2, 2]


def test_draws_have_the_probabilities() -> None:
    problem = make_queue(arrival_sizes={1: 0.125, 3: 0.5})
    uniforms = np.arange(16) / 16.0
    assert problem.draw_arrivals(uniforms).tolist() == [1] * 2 + [2] * 8 + [0] * 6
    certain = make_queue(arrival_sizes={1: 0.3, 2: 0.3, 3: 0.4})
    assert certain.arrival_probs[0] == 0.0
    assert certain.draw_arrivals(np.array([0.0, 0.999999999])).tolist() == [1, 3]


def test_a_queue_is_shown_by_what_was_given() -> None:
    shown = repr(reference_queue())
    assert "arrival_prob=" in shown
    assert "arrival_support" not in shown and "arrival_probs" not in shown
