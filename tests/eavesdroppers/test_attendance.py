"""The eavesdropper `attendance`: which trajectory's accepted rounds explain the moves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import GreedyPolicy
from covertfl.decision.problem_file import read_preset
from covertfl.eavesdroppers.attendance import AttendanceEavesdropper, smooth_states
from covertfl.eavesdroppers.eavesdropper import Means, Scheme, SeenQuery
from tests.support.seen_queries import feed, follow_schedule, make_queries

ORACLE = Oracle([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]], [0.1, 0.43, 0.95])
FIRST = np.array([0.5, 0.3, 0.2])
CLIENTS = np.array([4, 8, 20])
TRUE = 1


def make_means(*, exchangeable: bool = True) -> Means:
    problem = replace(read_preset("sound/main").problem, oracle=ORACLE)
    return Means(scheme=Scheme(problem, GreedyPolicy(), exchangeable=exchangeable))


def make_run(seed: int, *, levelled: bool, rounds: int = 150) -> list[SeenQuery]:
    """Return a run of two trajectories, the second true; unless levelled, moves have noise.

    The squared length of a move is 1 plus 20 over the clients of its accepted round.
    """
    generator = np.random.default_rng(seed)
    state, place, sent = 0, 0.0, []
    order, clients = generator.permutation(2).tolist(), 0
    for _ in range(rounds):
        sent.append((order[0], (100.0 * order[0], place)))
        if generator.random() < ORACLE.success[state]:
            accepted = order.pop(0)
            clients = CLIENTS[state] if accepted == TRUE else clients
        if not order:
            order = generator.permutation(2).tolist()
            few = 10.0 if levelled else clients
            place += math.sqrt(1.0 + 20.0 / few) * math.exp(0.1 * generator.standard_normal())
        state = int(generator.choice(3, p=ORACLE.transition[state]))
    first = sent[0][0]  # trajectories are numbered as they first appear
    return make_queries([(int(number != first), weights) for number, weights in sent])


def name_truth(seed: int, *, levelled: bool) -> float:
    """Return 1 if the truth is named, 0 if not, 1/2 if the trajectories tie."""
    queries = make_run(seed, levelled=levelled)
    true = int(queries[0].weights[0] == 0.0)
    belief = feed(AttendanceEavesdropper(make_means()), queries).belief()
    return 0.5 + 0.5 * float(np.sign(belief[true] - belief[1 - true]))


def enumerate_states(accepted: BoolArray) -> FloatArray:
    """Return the posterior of the state of each round as a sum over all sequences of states."""
    total = np.zeros((len(accepted), 3))
    for path in itertools.product(range(3), repeat=len(accepted)):
        prob = FIRST[path[0]]
        for before, after in itertools.pairwise(path):
            prob *= ORACLE.transition[before, after]
        for state, is_accepted in zip(path, accepted, strict=True):
            prob *= ORACLE.success[state] if is_accepted else 1.0 - ORACLE.success[state]
        total[np.arange(len(path)), path] += prob
    posterior: FloatArray = total / total.sum(axis=1, keepdims=True)
    return posterior


def test_states_are_those_of_an_enumeration() -> None:
    accepted = np.array([False, True, True, False, False, True])
    found = smooth_states(ORACLE, FIRST, accepted)
    assert found == pytest.approx(enumerate_states(accepted), abs=1e-12)


def test_lengths_that_depend_on_the_state_name_the_truth() -> None:
    assert np.mean([name_truth(seed, levelled=False) for seed in range(40)]) >= 0.8


def test_levelled_moves_do_not() -> None:
    assert 0.3 <= np.mean([name_truth(seed, levelled=True) for seed in range(40)]) <= 0.7


def test_equal_lengths_are_no_evidence() -> None:
    generator = np.random.default_rng(0)
    order = [number for _ in range(20) for number in generator.permutation(2).tolist()]
    eavesdropper = feed(AttendanceEavesdropper(make_means()), follow_schedule(order))
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
    assert all(set(values) == {0.0} for values in eavesdropper.figures().values())


def test_other_schedules_give_equal_beliefs() -> None:
    queries = make_run(0, levelled=False)
    eavesdropper = feed(AttendanceEavesdropper(make_means(exchangeable=False)), queries)
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
