"""The likelihood of an eavesdropper that knows problem and policy, against every hidden path."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import HorizonTable, Observation, QueueTable
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.eavesdroppers.eavesdropper import Scheme
from covertfl.eavesdroppers.likelihood import HiddenDistribution


def make_oracle(generator: np.random.Generator) -> Oracle:
    transition = generator.dirichlet(np.ones(2), size=2)
    return Oracle(transition / transition.sum(axis=1, keepdims=True), generator.random(2))


def literal_prob(
    scheme: Scheme,
    actions: tuple[int, ...],
    distribution: FloatArray,
    arrival_prob: float,
    size: int,
) -> float:
    """Return the probability of the actions, summed over every hidden path."""
    problem, total = scheme.problem, 0.0
    oracle, rounds = problem.oracle, len(actions)
    horizon = isinstance(problem, FiniteHorizon)
    start = problem.updates if isinstance(problem, FiniteHorizon) else 0
    most = 10**9
    if isinstance(problem, QueueProblem) and problem.capacity is not None:
        most = problem.capacity
    for states in itertools.product((0, 1), repeat=rounds):
        for luck in itertools.product((0, 1), repeat=rounds):
            for comes in itertools.product((0, 1) if size else (0,), repeat=rounds):
                prob, backlog, sent = float(distribution[states[0]]), start, 0
                for t, (o, u, s, e) in enumerate(zip(states, actions, luck, comes, strict=True)):
                    if t:
                        prob *= float(oracle.transition[states[t - 1], o])
                    if size:
                        prob *= arrival_prob if e else 1.0 - arrival_prob
                    left = rounds - t if horizon else 0
                    p = float(scheme.policy.learn_prob(Observation(o, backlog, e, left, sent)))
                    g = 1.0 if scheme.takes_every_reply else float(oracle.success[o])
                    prob *= (p if u else 1.0 - p) * (g if s else 1.0 - g)
                    backlog = min(most, backlog + e * size - (u and s and backlog > 0))
                    sent += u
                total += prob
    return total


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans())
@settings(max_examples=25)
def test_a_horizon_against_every_hidden_path(seed: int, rounds: int, every: bool) -> None:
    generator = np.random.default_rng(seed)
    oracle = make_oracle(generator)
    problem = FiniteHorizon(oracle, np.ones(2), LearningCost("linear", 1.0), rounds, 2)
    table = generator.random((rounds, 2, 3))
    table[:, :, 0] = 0.0
    scheme = Scheme(problem, HorizonTable(table), every)
    probs = []
    for actions in itertools.product((0, 1), repeat=rounds):
        distribution = HiddenDistribution(scheme)
        for learns in actions:
            distribution.step(bool(learns))
        probs.append(math.exp(distribution.log_likelihood))
        literal = literal_prob(scheme, actions, compute_stationary_distribution(oracle), 0.0, 0)
        assert probs[-1] == pytest.approx(literal, abs=1e-12)
    assert sum(probs) == pytest.approx(1.0)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, None]), st.integers(1, 3))
@settings(max_examples=10)
def test_a_queue_against_every_hidden_path(seed: int, capacity: int | None, size: int) -> None:
    """Also where an arrival is larger than the queue, and where the queue has no end."""
    generator = np.random.default_rng(seed)
    oracle, arrival_prob = make_oracle(generator), float(generator.uniform(0.1, 0.9))
    problem = QueueProblem(
        oracle,
        np.ones(2),
        LearningCost("linear", 1.0),
        arrival_prob,
        size,
        1.0,
        capacity=capacity,
        overflow_cost=None if capacity is None else 1.0,
    )
    table = generator.random((2, 2, 4))
    table[:, :, 0] = 0.0
    scheme, probs = Scheme(problem, QueueTable(table)), []
    for actions in itertools.product((0, 1), repeat=3):
        distribution = HiddenDistribution(scheme)
        for learns in actions:
            distribution.step(bool(learns))
        probs.append(math.exp(distribution.log_likelihood))
        literal = literal_prob(
            scheme, actions, compute_stationary_distribution(oracle), arrival_prob, size
        )
        assert probs[-1] == pytest.approx(literal, abs=1e-12)
    assert sum(probs) == pytest.approx(1.0)


def test_a_queue_without_a_capacity_is_followed_far() -> None:
    """It never learns below a backlog of 300: the first learning query is the first at 300."""
    problem = QueueProblem(
        Oracle(np.ones((1, 1)), np.ones(1)), np.ones(1), LearningCost("linear", 1.0), 1.0, 10, 1.0
    )
    table = np.zeros((1, 2, 400))
    table[:, :, 300:] = 1.0
    distribution = HiddenDistribution(Scheme(problem, QueueTable(table)))
    for number in range(40):
        distribution.step(number >= 30)
    assert distribution.log_likelihood == pytest.approx(0.0, abs=1e-9)


# --- beliefs ----------------------------------------------------------------------------------


def test_arrivals_of_several_sizes_are_those_of_a_queue_that_splits_them() -> None:
    """Sizes 1 and 3 whose policy ignores the size, against sums over every hidden path."""
    generator = np.random.default_rng(4)
    oracle = make_oracle(generator)
    sizes = {1: 0.3, 3: 0.2}
    problem = QueueProblem(
        oracle,
        np.ones(2),
        LearningCost("linear", 1.0),
        limit=1.0,
        capacity=4,
        overflow_cost=1.0,
        arrival_sizes=sizes,
    )
    table = generator.random(problem.table_shape)
    table[:, :, 0] = 0.0
    scheme, first = Scheme(problem, QueueTable(table)), compute_stationary_distribution(oracle)
    outcomes = list(enumerate([(0, 0.5), *sizes.items()]))
    for actions in itertools.product((0, 1), repeat=3):
        distribution = HiddenDistribution(scheme)
        for learns in actions:
            distribution.step(bool(learns))
        total = 0.0
        for path in itertools.product(itertools.product((0, 1), (0, 1), outcomes), repeat=3):
            prob, backlog, before = 1.0, 0, None
            for u, (o, s, (e, (size, q))) in zip(actions, path, strict=True):
                prob *= float(first[o] if before is None else oracle.transition[before, o]) * q
                g, p = float(oracle.success[o]), float(table[o, e, backlog])
                prob *= (p if u else 1.0 - p) * (g if s else 1.0 - g)
                backlog, before = min(4, backlog + size - (u and s and backlog > 0)), o
            total += prob
        assert math.exp(distribution.log_likelihood) == pytest.approx(total, abs=1e-12)
