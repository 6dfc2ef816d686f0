"""The policy that is refreshed during a run: cautious at first, then that of the rounds seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.decision.policy import GreedyPolicy, Observation, QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.fitting.window import fit_window
from covertfl.schemes import policies as live_module
from covertfl.schemes.policies import (
    LIVE_ITERATIONS,
    MAKE_UP_ROUNDS,
    SLOW_MAKE_UP_ROUNDS,
    LiveMethod,
    LiveState,
    PolicySection,
    expect_policy,
    is_due,
    make_cautious_policy,
    make_live_policy,
    make_run_policy,
    refresh_live,
    steer_limit,
)
from covertfl.schemes.scheme import SeenRound
from covertfl.solvers import constrained
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga import search as search_module
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from covertfl.solvers.spga.score import measure_gap
from tests.support.paper_queues import (
    FALLING_COST,
    reference_queue,
    sound_queue,
    tracking_queue,
    unlike_queue,
)
from tests.support.small_runs import HORIZON, make_run


def draw_seen(problem: QueueProblem, rounds: int, seed: int) -> list[SeenRound]:
    generator = np.random.default_rng(seed)
    probs, sizes = problem.arrival_probs[1:], problem.arrival_support[1:]
    drawn = SimulatedSource(problem.oracle, probs, sizes, generator=generator).next_rounds(rounds)
    columns = (column.tolist() for column in vars(drawn).values())
    return list(zip(*columns, strict=True))


def refresh(
    problem: QueueProblem,
    seen: list[SeenRound],
    method: LiveMethod = "exact",
    *,
    live: LiveState | None = None,
    spent: float | None = None,
) -> LiveState:
    """Refresh at the end of the rounds seen, having spent just the limit."""
    rounds = len(seen)
    spent = problem.limit * rounds if spent is None else spent
    live = live or LiveState()
    return refresh_live(problem, method, live, seen, rounds=rounds, spent=spent, seed=1)


def find_table(
    problem: QueueProblem, live: LiveState, seen: list[SeenRound], method: LiveMethod = "exact"
) -> QueueTable:
    policy = make_live_policy(problem, method, live, seen, rounds=len(seen))
    assert isinstance(policy, QueueTable)
    return policy


# --- the cautious start ---


def test_before_the_first_refresh_no_probability_of_the_problem_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a policy was solved for")

    monkeypatch.setattr(constrained, "solve_queue", refuse)
    monkeypatch.setattr(search_module, "solve_spga", refuse)
    section = PolicySection(kind="spga", refresh=50)
    assert make_run_policy(section, sound_queue(), seed=0).policy == GreedyPolicy()
    first = make_live_policy(sound_queue(), "exact", LiveState(), [], rounds=0)
    assert first == GreedyPolicy()
    assert make_run_policy(section, make_run(HORIZON).problem, seed=0).policy == GreedyPolicy()


def test_the_cautious_policy_has_the_least_backlog_in_every_round() -> None:
    generator, seen = np.random.default_rng(0), draw_seen(sound_queue(), 3000, 7)
    ours = other = 0
    for _, arrival, success in seen:
        ours += arrival - (success and ours > 0)
        other += arrival - (success and other > 0 and generator.random() < 0.8)
        assert ours <= other
    assert ours < other


def test_with_limited_privacy_the_cautious_policy_keeps_that_limit() -> None:
    problem = replace(sound_queue(), objective="learning", limit=0.9)
    policy = make_cautious_policy(problem)
    states, backlog = np.arange(3), np.array([[0], [1], [1000]])
    learn_prob = policy.learn_prob(Observation(states, backlog))
    np.testing.assert_allclose(learn_prob, [[0.0] * 3, [0.5] * 3, [0.5] * 3])
    assert np.all(learn_prob * FALLING_COST <= problem.limit)


@pytest.mark.parametrize("method", ["exact", "search"])
@pytest.mark.parametrize("arrivals", [0, 1])
def test_it_stays_cautious_without_arrivals_and_when_overloaded(
    method: LiveMethod, arrivals: int
) -> None:
    seen: list[SeenRound] = [(number % 3, arrivals, number % 2 == 0) for number in range(40)]
    live = refresh(sound_queue(), seen, method)
    assert make_live_policy(sound_queue(), method, live, seen, rounds=40) == GreedyPolicy()


def test_it_stays_cautious_where_the_limit_cannot_be_met() -> None:
    problem = sound_queue(arrival_prob=0.05, limit=0.5)
    seen = draw_seen(problem, 2000, 3)
    live = refresh(problem, seen)
    assert make_live_policy(problem, "exact", live, seen, rounds=2000) == GreedyPolicy()


# --- the refreshed policy ---


def test_the_exact_policy_is_that_of_the_fitted_problem() -> None:
    seen = draw_seen(reference_queue(), 1000, 5)
    live = refresh(reference_queue(), seen)
    columns = [np.array(column) for column in zip(*seen, strict=True)]
    fitted = fit_window(reference_queue(), Experience(*columns))
    assert isinstance(fitted, QueueProblem)
    found = find_table(reference_queue(), live, seen)
    assert found.table.tobytes() == solve_queue(fitted).policy.table.tobytes()
    unlike = find_table(unlike_queue(), refresh(unlike_queue(), seen), seen)
    assert found.table.tobytes() == unlike.table.tobytes()  # no known probability is used
    assert measure_gap(reference_queue(), found) < 0.01


def search_repeatedly(problem: QueueProblem, refreshes: int, every: int) -> QueueTable:
    seen, live = draw_seen(problem, refreshes * every, 5), LiveState()
    for number in range(1, refreshes + 1):
        live = refresh(problem, seen[: number * every], "search", live=live)
    return find_table(problem, live, seen, "search")


def test_the_search_comes_near_the_optimum_and_the_limit() -> None:
    """With one iteration in a refresh, or none, it would stay near the cautious policy."""
    problem = reference_queue()
    policy = search_repeatedly(problem, 6, 200)
    averages = evaluate_queue_policy(problem, policy)
    assert 0.6 < averages.learning_cost < 1.5
    assert measure_gap(problem, policy) < 0.1
    assert averages.privacy_cost < 0.85  # 0.706 is the optimum, 0.994 the cautious policy


def test_one_iteration_in_a_refresh_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "LIVE_ITERATIONS", 1)
    problem = reference_queue()
    averages = evaluate_queue_policy(problem, search_repeatedly(problem, 6, 200))
    assert LIVE_ITERATIONS >= 100
    assert averages.learning_cost < 0.6
    assert averages.privacy_cost > 0.85


def test_a_search_starts_from_the_policy_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "LIVE_ITERATIONS", 2)
    starts, original = [], search_module.SpgaSearch

    def watch(rules: Any, settings: Any, **given: Any) -> Any:
        starts.append((given["parameters"], settings.first_multiplier))
        return original(rules, settings, **given)

    monkeypatch.setattr(search_module, "SpgaSearch", watch)
    seen = draw_seen(reference_queue(), 400, 5)
    first = refresh(reference_queue(), seen[:200], "search")
    second = refresh(reference_queue(), seen, "search", live=first)
    assert starts[0][0] is None
    assert starts[1][0].ravel().tolist() == list(first.parameters)
    assert starts[1][1] == first.multiplier
    assert second.parameters != first.parameters
    assert LiveState.from_dict({**vars(second), "parameters": list(second.parameters)}) == second


def test_after_a_change_only_new_rounds_count() -> None:
    before, after = tracking_queue(0.03, 10), tracking_queue(0.1, 4)
    seen = draw_seen(before, 3200, 1) + draw_seen(after, 800, 2)
    live = refresh(after, seen)
    assert live.outdated == 3200
    fresh = seen[3200:]
    expected = find_table(after, refresh(after, fresh), fresh)
    assert find_table(after, live, seen).table.tobytes() == expected.table.tobytes()
    # What is out of date stays so, although the window reaches further back.
    later = refresh(after, seen + draw_seen(after, 100, 3), live=live)
    assert later.outdated == 3200


def test_rounds_that_left_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WINDOW", 500)
    seen = draw_seen(reference_queue(), 1000, 4)
    live, latest = refresh(reference_queue(), seen), seen[500:]
    expected = find_table(reference_queue(), refresh(reference_queue(), latest), latest)
    assert find_table(reference_queue(), live, seen).table.tobytes() == expected.table.tobytes()
    # A run that is resumed later finds the same policy from what it has kept.
    kept = seen[400:] + draw_seen(reference_queue(), 30, 6)
    again = make_live_policy(reference_queue(), "exact", live, kept, rounds=1030)
    assert isinstance(again, QueueTable)
    assert again.table.tobytes() == expected.table.tobytes()


def test_it_is_refreshed_every_so_many_rounds_once() -> None:
    due = [number for number in range(60) if is_due(LiveState(), 7, number)]
    assert due == [21, 28, 35, 42, 49, 56]
    assert not is_due(LiveState(refreshed=21), 7, 21)


def test_an_eavesdropper_expects_the_optimum_of_a_refreshed_run() -> None:
    section = PolicySection(kind="spga", refresh=50)
    made = make_run_policy(section, reference_queue(), seed=0)
    expected = expect_policy(section, reference_queue(), made)
    assert isinstance(expected, QueueTable)
    assert expected.table.tobytes() == solve_queue(reference_queue()).policy.table.tobytes()
    impossible = sound_queue(limit=1.0)
    assert expect_policy(section, impossible, made) is made.policy
    assert expect_policy(PolicySection(), reference_queue(), made) is made.policy


# --- steering ---


def test_the_steered_limit_makes_up_for_what_was_spent() -> None:
    for spent in (800.0, 1000.0, 1200.0):
        for capacity, make_up in ((40, MAKE_UP_ROUNDS), (None, SLOW_MAKE_UP_ROUNDS)):
            problem = replace(reference_queue(), capacity=capacity)
            total = spent + make_up * steer_limit(problem, 1000, spent)
            assert total / (1000 + make_up) == pytest.approx(1.0)
    assert steer_limit(reference_queue(limit=3.0), 10_000, 0.0) == 6.0
    assert steer_limit(reference_queue(limit=3.0), 10_000, 1e9) == 1.5


def test_overspending_makes_the_policy_learn_more() -> None:
    problem = reference_queue()
    seen = draw_seen(problem, 1000, 5)
    tables = [
        find_table(problem, refresh(problem, seen, spent=spent), seen)
        for spent in (0.0, 1000.0, 2000.0)
    ]
    costs = [evaluate_queue_policy(problem, table).learning_cost for table in tables]
    assert costs[0] > 1.2 * costs[1] > 1.4 * costs[2]


def test_the_realised_cost_is_steered_to_the_limit() -> None:
    """Rounds that are easier than those before them must not leave the limit unused."""
    problem = reference_queue()
    seen, live, spent, backlog = draw_seen(problem, 6000, 8), LiveState(), 0.0, 0
    draws, limits = np.random.default_rng(1).random(6000), []
    table = np.ones((3, 2, 41)) * (np.arange(41) > 0)
    for number, (state, arrival, success) in enumerate(seen):
        if is_due(live, 500, number):
            live = refresh(problem, seen[:number], live=live, spent=spent)
            table = find_table(problem, live, seen[:number]).table
            limits.append(live.limit)
        learns = draws[number] < table[state, int(arrival > 0), backlog]
        spent += 0.0 if learns else 0.6 * backlog
        backlog = min(backlog - int(learns and success) + arrival, 40)
    assert limits[0] == pytest.approx(2.0)  # nothing was spent in the cautious 500 rounds
    assert spent / 6000 == pytest.approx(problem.limit, rel=0.1)
