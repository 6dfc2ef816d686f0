"""What is observed and decided before a query."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from covertfl.runs.actions import decide
from covertfl.runs.rounds import moves_decoy
from scipy import stats

from covertfl.decision.policy import HorizonTable, Observation
from covertfl.runs.participation import Attendance
from covertfl.runs.round import draw_arrival
from covertfl.runs.state import start_run
from covertfl.schemes.replies import sift_replies
from covertfl.schemes.scheme import Outcome
from tests.support.played_runs import DRAWN_HORIZON, build, play
from tests.support.small_runs import DRAWN_QUEUE

NOBODY = np.zeros(0, dtype=np.int64)
FAILED = Outcome(Attendance(NOBODY, NOBODY), 0, sift_replies([], 1, 1), False)


def test_decisions_and_costs_are_those_of_the_oracle_state() -> None:
    factors = [0.5, 1.0, 3.0]
    cost = {"learning": {"shape": "linear", "scale": 0.6, "by_state": factors}}
    federation = build(DRAWN_QUEUE, rounds=300, cost=cost)
    _, records, _ = play(federation)
    for record in records:
        state = record["oracle_state"]
        observation = Observation(state, record["backlog"], int(record["arrival"] > 0))
        assert record["learn_prob"] == federation.policy.policy.learn_prob(observation)
        paid = federation.problem.privacy_cost[state]
        assert record["privacy_cost"] == (paid if record["action"] == "learn" else 0.0)
        owed = factors[state] * 0.6 * record["backlog"] + 5.0 * record["lost"]
        assert record["learning_cost"] == pytest.approx(owed)


def test_arrivals_have_the_probability_of_the_problem() -> None:
    federation = build(DRAWN_QUEUE)
    sizes = [draw_arrival(federation, number) for number in range(1, 5001)]
    assert set(sizes) == {0, 2}
    assert stats.binomtest(sizes.count(2), 5000, 0.1).pvalue > 1e-3
    assert draw_arrival(build(DRAWN_HORIZON), 1) == 0


def test_an_arrival_that_the_problem_does_not_foresee_has_the_next_larger_index() -> None:
    """From a file of arrivals: 2 is taken as 3, and 9 as the largest."""
    sizes = {"arrival_prob": None, "arrival_size": None, "arrival_sizes": {"1": 0.1, "3": 0.05}}
    federation = replace(build(DRAWN_QUEUE, queue=sizes), arrivals={1: 2, 2: 9, 3: 1})
    state, seen = start_run(federation), []
    for number in range(4):
        decision = decide(federation, replace(state, round=number), federation.policy)
        seen.append((decision.arrival, decision.observation.arrival))
    assert seen == [(2, 2), (9, 2), (1, 1), (0, 0)]


def test_actions_are_drawn_with_the_probability_of_the_policy() -> None:
    federation = build(DRAWN_HORIZON, policy={"kind": "random"}, horizon={"rounds": 10})
    state, learned = start_run(federation), 0
    for seed in range(1000):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        decision = decide(seeded, state, seeded.policy)
        assert decision.learn_prob == pytest.approx(0.4)
        learned += decision.learns
    assert stats.binomtest(learned, 1000, 0.4).pvalue > 1e-3


def test_a_secret_hides_what_the_learner_draws_from_those_who_know_the_seed() -> None:
    """Actions, moves of decoys, arrivals and first weights follow the secret.

    The federation follows the seed.
    """
    federation = build(DRAWN_HORIZON, policy={"kind": "random"}, rounds=40)
    queue = build(DRAWN_QUEUE)

    def look(secret: int | None) -> list[list[object]]:
        hidden = replace(federation, settings=replace(federation.settings, secret=secret))
        waiting = replace(queue, settings=replace(queue.settings, secret=secret))
        state = start_run(hidden)
        decided = [decide(hidden, replace(state, round=n), hidden.policy) for n in range(40)]
        return [
            [decision.oracle_state for decision in decided],
            [decision.learns for decision in decided],
            [moves_decoy(hidden.settings, replace(state, round=n), FAILED) for n in range(40)],
            [draw_arrival(waiting, number) for number in range(1, 200)],
            [weights.tobytes() for weights in state.learner.trajectories],
        ]

    public, (states, *others), (again, *different) = look(None), look(2), look(4)
    assert states == again == public[0]
    for number, (one, other) in enumerate(zip(others, different, strict=True), start=1):
        assert one != other != public[number] != one


@pytest.mark.slow
def test_random_places_every_set_of_rounds_equally_often() -> None:
    federation = build(
        DRAWN_HORIZON, policy={"kind": "random"}, horizon={"rounds": 5, "updates": 2}
    )
    placed: Counter[tuple[int, ...]] = Counter()
    for seed in range(800):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        state, rounds = start_run(federation), []
        for number in range(1, 6):
            decision = decide(seeded, state, seeded.policy)
            if decision.learns:
                rounds.append(number)
            queries = (state.queries[0] + decision.learns, state.queries[1] + (not decision.learns))
            state = replace(state, round=number, queries=queries)
        placed[tuple(rounds)] += 1
    assert len(placed) == 10
    assert stats.chisquare(list(placed.values())).pvalue > 1e-3


def test_minority_never_learns_in_half_of_the_rounds() -> None:
    for seed in range(5):
        final, _, _ = play(build(policy={"kind": "minority"}, seed=seed))
        assert 2 * final.learning_queries < 12


def test_optimal_for_measured_probabilities_is_not_that_for_printed_ones() -> None:
    measured, printed = build(), build(federation={"acceptance": "model"})
    tables = measured.policy.policy, printed.policy.policy
    assert isinstance(tables[0], HorizonTable)
    assert isinstance(tables[1], HorizonTable)
    assert not np.array_equal(tables[0].table, tables[1].table)
    assert measured.measured is not None
    assert printed.measured is not None
    np.testing.assert_array_equal(measured.problem.oracle.success, measured.measured)
    np.testing.assert_array_equal(printed.problem.oracle.success, [0.2, 0.5, 0.9])
    np.testing.assert_allclose(printed.measured, measured.measured, atol=0.02)
