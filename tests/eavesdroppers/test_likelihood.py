"""The eavesdropper that knows problem and policy: literal sums, the bound F4, and known figures.

The figures are those for the transition matrix of the paper's text, costs 1.8/0.8/0.3, 45 rounds,
16 updates, the exact policy and a uniformly distributed first oracle state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import covertfl as cf
from covertfl.arrays import FloatArray
from covertfl.evaluation.horizon import HorizonSample
from covertfl.evaluation.schedule import trajectory_log_probs
from tests.support.seen_queries import KnownScheme, Means, follow_schedule, listen

UNIFORM = np.full(3, 1.0 / 3.0)
NUM_RUNS = 2000


def believe(scheme: KnownScheme, order: Sequence[int]) -> FloatArray:
    """Return the belief of who knows the scheme, after queries of these trajectories."""
    return listen("likelihood", follow_schedule(order), Means(scheme=scheme)).belief()


def as_seen(actions: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the trajectories as numbered in the order of their first queries, and the actions."""
    names = list(dict.fromkeys(actions))
    return [names.index(action) for action in actions], names


# --- every hidden path ------------------------------------------------------------------------


def make_oracle(generator: np.random.Generator) -> cf.Oracle:
    transition = generator.dirichlet(np.ones(2), size=2)
    return cf.Oracle(transition / transition.sum(axis=1, keepdims=True), generator.random(2))


def find_stationary(oracle: cf.Oracle) -> FloatArray:
    """Return the stationary distribution of two states."""
    leave, back = oracle.transition[0, 1], oracle.transition[1, 0]
    return np.asarray(np.array([back, leave]) / (leave + back))


def literal_prob(scheme: KnownScheme, actions: Sequence[int]) -> float:
    """Return the probability of the actions, summed over every hidden path."""
    problem, total = scheme.problem, 0.0
    oracle, rounds = problem.oracle, len(actions)
    first = find_stationary(oracle)
    start, most, arrivals = 0, 10**9, [(0, 0, 1.0)]
    if isinstance(problem, cf.QueueProblem):
        most = most if problem.capacity is None else problem.capacity
        sizes = zip(problem.arrival_support, problem.arrival_probs, strict=True)
        arrivals = [(e, int(size), float(prob)) for e, (size, prob) in enumerate(sizes)]
    else:
        start = problem.updates
    for path in itertools.product(itertools.product((0, 1), (0, 1), arrivals), repeat=rounds):
        prob, backlog, sent, before = 1.0, start, 0, None
        for t, (u, (o, s, (e, size, q))) in enumerate(zip(actions, path, strict=True)):
            prob *= float(first[o] if before is None else oracle.transition[before, o]) * q
            left = rounds - t if isinstance(problem, cf.FiniteHorizon) else 0
            p = float(scheme.policy.learn_prob(cf.Observation(o, backlog, e, left, sent)))
            g = 1.0 if scheme.takes_every_reply else float(oracle.success[o])
            prob *= (p if u else 1.0 - p) * (g if s else 1.0 - g)
            backlog = min(most, backlog + size - (u and s and backlog > 0))
            sent, before = sent + u, o
        total += prob
    return total


def check_against_hidden_paths(scheme: KnownScheme, rounds: int) -> None:
    for actions in itertools.product((0, 1), repeat=rounds):
        order, names = as_seen(actions)
        if len(names) == 2:
            probs = np.array(
                [literal_prob(scheme, [int(k == number) for k in order]) for number in (0, 1)]
            )
            assert believe(scheme, order) == pytest.approx(probs / probs.sum(), abs=1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(2, 3), st.booleans())
@settings(max_examples=20)
def test_a_horizon_against_every_hidden_path(seed: int, rounds: int, every: bool) -> None:
    generator = np.random.default_rng(seed)
    problem = cf.FiniteHorizon(
        make_oracle(generator), np.ones(2), cf.LearningCost("linear", 1.0), rounds, 2
    )
    table = generator.random((rounds, 2, 3))
    table[:, :, 0] = 0.0
    check_against_hidden_paths(KnownScheme(problem, cf.HorizonTable(table), every), rounds)


@pytest.mark.parametrize(
    ("seed", "capacity", "sizes"),
    [
        (0, 4, {1: 0.3, 3: 0.2}),
        (1, 2, {1: 0.6}),
        (2, 1, {2: 0.4}),  # larger than the queue
        (3, 5, {3: 0.7}),
        (4, None, {2: 0.5}),
    ],
)
def test_a_queue_against_every_hidden_path(
    seed: int, capacity: int | None, sizes: dict[int, float]
) -> None:
    generator = np.random.default_rng(seed)
    problem = cf.QueueProblem(
        make_oracle(generator),
        np.ones(2),
        cf.LearningCost("linear", 1.0),
        limit=1.0,
        capacity=capacity,
        overflow_cost=None if capacity is None else 1.0,
        arrival_sizes=sizes,
    )
    table = generator.random((2, 1 + len(sizes), 5 if capacity is None else capacity + 1))
    table[:, :, 0] = 0.0
    check_against_hidden_paths(KnownScheme(problem, cf.QueueTable(table)), 3)


def test_a_queue_without_a_capacity_is_followed_far() -> None:
    """It never learns below a backlog of 300: the first learning query is the first at 300."""
    problem = cf.QueueProblem(
        cf.Oracle(np.ones((1, 1)), np.ones(1)),
        np.ones(1),
        cf.LearningCost("linear", 1.0),
        1.0,
        10,
        1.0,
    )
    table = np.zeros((1, 2, 400))
    table[:, :, 300:] = 1.0
    scheme = KnownScheme(problem, cf.QueueTable(table))
    assert believe(scheme, [0] * 30 + [1] * 10).tolist() == [0.0, 1.0]
    assert believe(scheme, [0] * 29 + [1] * 10).tolist() == [0.5, 0.5]  # no way it can happen


# --- beliefs worked by hand -------------------------------------------------------------------


def make_coin_scheme(*probs: float) -> KnownScheme:
    """One oracle state, no success: the probability of learning depends on the round alone."""
    oracle = cf.Oracle(np.ones((1, 1)), np.zeros(1))
    problem = cf.FiniteHorizon(oracle, np.ones(1), cf.LearningCost("linear", 1.0), len(probs), 1)
    table = np.zeros((len(probs), 1, 2))
    table[:, 0, 1] = probs[::-1]  # by rounds left
    return KnownScheme(problem, cf.HorizonTable(table))


@pytest.mark.parametrize(
    ("probs", "order", "likelihoods"),
    [
        ((0.9, 0.2, 0.6), [0, 1, 1], [0.9 * 0.8 * 0.4, 0.1 * 0.2 * 0.6]),
        ((0.5, 0.5), [0], [1.0]),
        ((0.5, 0.5), [0, 1], [1.0, 1.0]),
        ((1.0, 1.0, 0.0), [0, 0, 1], [1.0, 0.0]),
        ((1.0, 1.0, 0.0), [0, 1, 0], [1.0, 1.0]),  # cannot happen
        # An obfuscating query may be of either other trajectory.
        (
            (0.9, 0.2, 0.6, 0.5),
            [0, 1, 2, 2],
            [
                0.9 * 0.8 * 0.4 * 0.5 / 2**3,
                0.1 * 0.2 * 0.4 * 0.5 / 2**3,
                0.1 * 0.8 * 0.6 * 0.5 / 2**2,
            ],
        ),
    ],
)
def test_beliefs_worked_by_hand(
    probs: tuple[float, ...], order: list[int], likelihoods: list[float]
) -> None:
    expected = np.array(likelihoods) / sum(likelihoods)
    eavesdropper = listen(
        "likelihood", follow_schedule(order), Means(scheme=make_coin_scheme(*probs))
    )
    assert eavesdropper.belief() == pytest.approx(expected)
    assert eavesdropper.figures()["posterior"] == pytest.approx(expected)
    assert len(eavesdropper.estimate()) == int(np.sum(np.isclose(expected, expected.max())))


@pytest.mark.parametrize("every", [True, False])
def test_queries_placed_at_random_are_equally_likely_wherever_they_are(every: bool) -> None:
    """Also after the last update: learning with nothing owed loses no probability."""
    oracle = cf.Oracle(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([0.4, 0.9]))
    problem = cf.FiniteHorizon(oracle, np.ones(2), cf.LearningCost("linear", 1.0), 6, 1)
    scheme = KnownScheme(problem, cf.RandomPlacement(3), every)
    for placed in itertools.combinations(range(1, 6), 3):
        assert believe(scheme, [int(t in placed) for t in range(6)]) == pytest.approx([0.5, 0.5])


def test_an_exchangeable_schedule_says_nothing() -> None:
    problem = main_problem()
    scheme = KnownScheme(problem, make_policy("optimal"), is_symmetric=True)
    assert believe(scheme, [0, 0, 0, 1, 0, 2, 0, 3]).tolist() == [0.25] * 4


# --- success probabilities --------------------------------------------------------------------


@cache
def main_problem() -> cf.FiniteHorizon:
    problem = cf.load_problem("sound/main")
    assert isinstance(problem, cf.FiniteHorizon)
    return problem


def make_policy(kind: str) -> cf.Policy:
    problem = main_problem()
    if kind == "minority":
        return cf.solve_minority(problem).policy
    if kind == "random":
        return cf.RandomPlacement(problem.updates)
    if kind == "greedy":
        return cf.GreedyPolicy()
    if kind == "optimal":
        return cf.solve(problem).policy
    table = np.random.default_rng(5).random((problem.rounds, 3, problem.updates + 1))
    table[:, :, 0] = 0.0
    return cf.HorizonTable(table)


@cache
def draw_runs() -> HorizonSample:
    return cf.simulate_horizon_policy(
        main_problem(),
        make_policy("optimal"),
        NUM_RUNS,
        generator=np.random.default_rng(2024),
        first=UNIFORM,
    )


@cache
def name_by_likelihood() -> FloatArray:
    """Return 1 where the true hypothesis has the higher likelihood, 0.5 where they tie."""
    policy = make_policy("optimal")
    logs = trajectory_log_probs(main_problem(), policy, draw_runs().actions, first=UNIFORM)
    return 0.5 * (1.0 + np.sign(logs[:, 0] - logs[:, 1]))


@pytest.mark.parametrize("first", [None, UNIFORM, np.array([0.0, 0.0, 1.0])])
@pytest.mark.parametrize("kind", ["optimal", "minority", "random", "greedy", "table"])
def test_sequences_of_full_length_against_the_bound_s_recursion(
    kind: str, first: FloatArray | None
) -> None:
    problem, policy = main_problem(), make_policy(kind)
    drawn = cf.simulate_horizon_policy(
        problem, policy, 4, generator=np.random.default_rng(1), first=first
    ).actions
    for actions in np.concatenate([drawn, ~drawn[:2]]).astype(int).tolist():
        order, names = as_seen(actions)
        ((own, other),) = trajectory_log_probs(problem, policy, [actions], first=first)
        expected = 1.0 / (1.0 + np.exp(other - own))  # of the trajectory whose action is 1
        belief = believe(KnownScheme(problem, policy, first=first), order)
        assert belief[names.index(1)] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "printed"), [("majority", 0.15), ("minority", 0.85), ("likelihood", 0.91)]
)
def test_success_of_naming_the_true_trajectory(name: str, printed: float) -> None:
    """Both figures are from 2000 runs, and the printed one is rounded."""
    shares = draw_runs().actions.mean(axis=1)
    named = {
        "majority": (shares > 0.5).astype(float),
        "minority": (shares < 0.5).astype(float),
        "likelihood": name_by_likelihood(),
    }[name]
    error = 1.96 * math.sqrt(2.0 * printed * (1.0 - printed) / NUM_RUNS)
    assert abs(float(named.mean()) - printed) <= error + 0.005


def test_no_eavesdropper_by_schedule_beats_the_bound_and_likelihood_meets_it() -> None:
    bound = cf.bound_best_eavesdropper(
        main_problem(),
        make_policy("optimal"),
        num_samples=3000,
        generator=np.random.default_rng(7),
        first=UNIFORM,
    )
    best = name_by_likelihood().mean()
    assert abs(best - bound.value) < 0.02 and bound.low <= bound.value <= bound.high
    rows = draw_runs().actions[:150].astype(int).tolist()
    for name in ("majority", "minority", "change-point"):
        named = []
        for actions in rows:
            order, names = as_seen(actions)
            belief = listen(name, follow_schedule(order)).belief()
            named.append(0.5 * (1.0 + np.sign(belief[names.index(1)] - 0.5)))
        assert np.mean(named) <= best + 0.03, name


def test_half_of_the_runs_finish_and_most_hold_a_repeat() -> None:
    """A learning query that failed, and another one after it: both send the same weights."""
    runs = draw_runs()
    assert float(np.mean(runs.backlog_left == 0)) == pytest.approx(0.5, abs=0.04)
    failed = runs.actions & ~runs.successes
    later = runs.actions[:, ::-1].cumsum(axis=1)[:, ::-1] - runs.actions
    share = float(np.mean((failed & (later > 0)).any(axis=1)))
    assert share >= 0.94 - 1.96 * math.sqrt(0.94 * 0.06 / NUM_RUNS)


def test_who_knows_the_first_state_knows_all() -> None:
    """The policy is deterministic; 100% in 2000 runs."""
    runs, problem, policy = draw_runs(), main_problem(), make_policy("optimal")
    named = []
    for state in range(3):
        rows = runs.actions[runs.oracle_states[:, 0] == state]
        logs = trajectory_log_probs(problem, policy, rows, first=np.eye(3)[state])
        named += (logs[:, 0] > logs[:, 1]).tolist()
    assert np.mean(named) > 0.99
