"""The test of rounds against the oracle that a policy was solved for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import covertfl as cf
from covertfl.auditing.mismatch import check_model

TRANSITION = np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]])
TEXT = cf.Oracle(TRANSITION, np.array([0.1, 0.43, 0.95]))
# Chances as they are measured where a state's clients nearly never, or nearly always, suffice.
SHARP = cf.Oracle(TRANSITION, np.array([0.0, 0.5, 1.0]))


def draw_records(
    oracle: cf.Oracle, rounds: int, *, generator: np.random.Generator
) -> list[dict[str, Any]]:
    state, records = int(generator.integers(oracle.num_states)), []
    for _ in range(rounds):
        accepted = bool(generator.random() < oracle.success[state])
        records.append({"oracle_state": state, "accepted": accepted})
        state = int(generator.choice(oracle.num_states, p=oracle.transition[state]))
    return records


def test_statistic_worked_by_hand() -> None:
    """States 0 0 1 0 1 1, accepted in state 1 only; rows of a half each."""
    oracle = cf.Oracle(np.full((2, 2), 0.5), np.array([0.5, 0.5]))
    states = [0, 0, 1, 0, 1, 1]
    records = [{"oracle_state": state, "accepted": state == 1} for state in states]
    found = check_model(oracle, [records])
    # Moves from 0: one to 0, two to 1; from 1: one each.  Outcomes: 3 of 3 twice.
    moves = 2.0 * (math.log(1 / 1.5) + 2 * math.log(2 / 1.5))
    outcomes = 2.0 * 2 * 3 * math.log(2.0)
    assert found.statistic == pytest.approx(moves + outcomes)
    assert (found.degrees, found.rounds) == (4, 6)
    assert found.p_value == pytest.approx(float(stats.chi2.sf(found.statistic, 4)))


def test_runs_are_not_joined() -> None:
    """No move is counted from the last round of a run to the first of the next."""
    oracle = cf.Oracle(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.5, 0.5]))
    record = [{"oracle_state": 0, "accepted": True}, {"oracle_state": 0, "accepted": False}]
    other = [{"oracle_state": 1, "accepted": True}, {"oracle_state": 1, "accepted": False}]
    found = check_model(oracle, [record, other])
    assert found.statistic == pytest.approx(0.0)
    assert (found.degrees, found.p_value) == (2, 1.0)
    assert check_model(oracle, [record + other]).p_value == 0.0


@pytest.mark.parametrize("oracle", [TEXT, SHARP], ids=["text", "sharp"])
def test_p_values_are_uniform_where_the_model_is_right(oracle: cf.Oracle) -> None:
    generator = np.random.default_rng(1)
    values = [
        check_model(
            oracle, [draw_records(oracle, 45, generator=generator) for _ in range(5)]
        ).p_value
        for _ in range(200)
    ]
    assert stats.kstest(values, "uniform").statistic < 0.12
    assert np.mean(np.array(values) < 0.01) <= 0.03


@pytest.mark.parametrize(
    "other",
    [
        cf.Oracle(np.array([[0.5, 0.5, 0.0], [0.1, 0.5, 0.4], [0.0, 0.5, 0.5]]), TEXT.success),
        cf.Oracle(TRANSITION, np.array([0.1, 0.8, 0.95])),
    ],
    ids=["moves", "success"],
)
def test_another_oracle_is_noticed(other: cf.Oracle) -> None:
    generator = np.random.default_rng(2)
    warned = [
        check_model(
            TEXT, [draw_records(other, 45, generator=generator) for _ in range(5)]
        ).is_warned
        for _ in range(20)
    ]
    assert np.mean(warned) >= 0.9


def test_an_impossible_move_is_a_mismatch_whatever_the_counts() -> None:
    records = [{"oracle_state": state, "accepted": False} for state in (0, 2)]
    found = check_model(TEXT, [records])
    assert found.statistic == math.inf and found.p_value == 0.0 and found.is_warned


def test_a_certain_outcome_that_fails_is_a_mismatch() -> None:
    records = [{"oracle_state": 2, "accepted": number % 3 > 0} for number in range(30)]
    assert check_model(SHARP, [records]).is_warned


def test_a_single_round_says_nothing() -> None:
    found = check_model(SHARP, [[{"oracle_state": 2, "accepted": True}]])
    assert found.p_value > 0.9 and not found.is_warned


@pytest.mark.parametrize("seed", range(5))
def test_rounds_never_contradict_the_model_fitted_to_them(seed: int) -> None:
    """G is zero up to rounding, which must not make it negative and its p-value undefined."""
    records = draw_records(TEXT, 300, generator=np.random.default_rng(seed))
    states = np.array([record["oracle_state"] for record in records])
    moves, accepted = np.zeros((3, 3)), np.zeros(3)
    np.add.at(moves, (states[:-1], states[1:]), 1)
    np.add.at(accepted, states, [record["accepted"] for record in records])
    fitted = cf.Oracle(moves / moves.sum(axis=1, keepdims=True), accepted / np.bincount(states))
    found = check_model(fitted, [records])
    assert 0.0 <= found.statistic < 1e-3
    assert found.p_value == pytest.approx(1.0)
