"""What is observed and decided before a query."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from covertfl.decision.policy import HorizonTable
from covertfl.runs.actions import decide, draw_arrival
from covertfl.runs.federation import start_run
from tests.support.played_runs import FUNCTION_HORIZON, build, play
from tests.support.small_runs import FUNCTION_QUEUE


def test_arrivals_have_the_probability_of_the_problem() -> None:
    federation = build(FUNCTION_QUEUE)
    sizes = [draw_arrival(federation, number) for number in range(1, 5001)]
    assert set(sizes) == {0, 2}
    assert stats.binomtest(sizes.count(2), 5000, 0.1).pvalue > 1e-3
    assert draw_arrival(build(FUNCTION_HORIZON), 1) == 0


def test_an_arrival_that_the_problem_does_not_foresee_has_the_next_larger_index() -> None:
    """From a file of arrivals: 2 is taken as 3, and 9 as the largest."""
    sizes = {"arrival_prob": None, "arrival_size": None, "arrival_sizes": {"1": 0.1, "3": 0.05}}
    federation = replace(build(FUNCTION_QUEUE, queue=sizes), arrivals={1: 2, 2: 9, 3: 1})
    state, seen = start_run(federation), []
    for number in range(4):
        decision = decide(federation, replace(state, round=number), federation.policy)
        seen.append((decision.arrival, decision.observation.arrival))
    assert seen == [(2, 2), (9, 2), (1, 1), (0, 0)]


def test_actions_are_drawn_with_the_probability_of_the_policy() -> None:
    federation = build(FUNCTION_HORIZON, policy={"kind": "random"}, horizon={"rounds": 10})
    state, learned = start_run(federation), 0
    for seed in range(1000):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        decision = decide(seeded, state, seeded.policy)
        assert decision.learn_prob == pytest.approx(0.4)
        learned += decision.learns
    assert stats.binomtest(learned, 1000, 0.4).pvalue > 1e-3


def test_random_places_every_set_of_rounds_equally_often() -> None:
    federation = build(
        FUNCTION_HORIZON, policy={"kind": "random"}, horizon={"rounds": 5, "updates": 2}
    )
    placed: Counter[tuple[int, ...]] = Counter()
    for seed in range(800):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        state, rounds = start_run(federation), []
        for number in range(1, 6):
            decision = decide(seeded, state, seeded.policy)
            if decision.learns:
                rounds.append(number)
            queries = state.learning_queries + decision.learns
            state = replace(state, round=number, learning_queries=queries)
        placed[tuple(rounds)] += 1
    assert len(placed) == 10
    assert stats.chisquare(list(placed.values())).pvalue > 1e-3


def test_several_decoys_are_queried_equally_often() -> None:
    decoy, policy = {"kind": "random", "count": 3}, {"kind": "always-obfuscate"}
    federation = build(decoy=decoy, policy=policy, rounds=1500)
    state = start_run(federation)
    counts: Counter[int] = Counter()
    for number in range(1500):
        counts[decide(federation, replace(state, round=number), federation.policy).trajectory] += 1
    assert set(counts) == {1, 2, 3}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_which_decoy_is_queried_does_not_move_the_actions() -> None:
    actions = [
        [record["action"] for record in play(build(decoy={"count": count}))[1]] for count in (1, 2)
    ]
    assert actions[0] == actions[1]


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
