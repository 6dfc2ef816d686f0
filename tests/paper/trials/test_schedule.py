"""The rounds of a run without weights, and the eavesdropper's estimate, equation (6)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from paper.trials.covert_runs import judge
from paper.trials.schedule import (
    Held,
    Schedule,
    draw_schedule,
    follow_estimate,
    list_needed_moves,
    score_estimate,
)
from paper.trials.walks import Trajectory

from covertfl.evaluation.horizon import HorizonEvaluation
from covertfl.runs.participation import Attendance
from tests.support.played_runs import build, play

NOBODY = Attendance(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@pytest.mark.parametrize("policy", ["optimal", "greedy", "random", "always-learn"])
@pytest.mark.parametrize("gated", [True, False, "matched"])
@pytest.mark.parametrize("acceptance", ["data", "model"])
def test_schedule_is_that_of_training(policy: str, gated: bool | str, acceptance: str) -> None:
    federation = build(
        policy={"kind": policy},
        decoy={"gated": gated},
        federation={"acceptance": acceptance},
        rounds=20,
    )
    schedule, (final, records, _) = draw_schedule(federation), play(federation)
    assert schedule.oracle_states == tuple(record["oracle_state"] for record in records)
    assert schedule.learns == tuple(record["action"] == "learn" for record in records)
    for attendance, record in zip(schedule.attendances, records, strict=True):
        assert attendance.clients.tolist() == record["clients"]
        assert attendance.batches.tolist() == record["batches"]
    learned = [
        moved for moved, learns in zip(schedule.moves, schedule.learns, strict=True) if learns
    ]
    assert learned == [record["updated"] for record in records if record["action"] == "learn"]
    assert sum(schedule.moves) - sum(learned) == final.learner.moves[0]
    assert schedule.owed == final.queue.backlog
    assert schedule.exposure == final.exposure


def make_schedule(learns: list[bool], moves: list[bool]) -> Schedule:
    trajectories = tuple(int(not each) for each in learns)
    return Schedule((0,) * len(learns), trajectories, tuple(moves), (NOBODY,) * len(learns), 0)


def test_estimate_by_hand() -> None:
    """True, true (fails), decoy, decoy, decoy: a tie after four rounds, then the decoy."""
    schedule = make_schedule([True, True, False, False, False], [True, False, True, True, True])
    held = follow_estimate(schedule)
    assert held == [Held(0, None), Held(1, None), Held(1, None), Held(1, 1), Held(None, 2)]
    assert [score_estimate(entry) for entry in held] == [1.0, 1.0, 1.0, 0.5, 0.0]
    assert list_needed_moves(held) == [1, 2]
    truth = Trajectory({0: 0.2, 1: 0.8}, {0: 0.2, 1: 0.8})
    decoy = Trajectory({1: 0.4, 2: 0.3}, {1: 0.4, 2: 0.3})
    expected = HorizonEvaluation(0.0, 0.0, 2.0, 0.4, 0.5, 1.0, 0.5, 0.0)
    outcome = judge(schedule, truth, decoy, expected)
    assert outcome.eavesdropper == pytest.approx([0.2, 0.8, 0.8, 0.6, 0.3])
    assert (outcome.peak, outcome.final, outcome.named) == (0.8, 0.3, 0.0)
    assert outcome.learner == [0.8] * 5
    assert outcome.exposure == pytest.approx(0.4)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_estimate_literally(rounds: list[tuple[bool, bool]]) -> None:
    """Against a version that keeps all queries and looks for the last of the larger part."""
    learns, moves = (list(part) for part in zip(*rounds, strict=True))
    sent: list[tuple[int, int]] = []
    expected = []
    for number in range(len(rounds)):
        trajectory = 0 if learns[number] else 1
        before = sum(moved for own, moved in rounds[:number] if own == learns[number])
        sent.append((trajectory, before))
        parts = [[index for kind, index in sent if kind == which] for which in (0, 1)]
        expected.append(
            Held(
                parts[0][-1] if len(parts[0]) >= len(parts[1]) else None,
                parts[1][-1] if len(parts[1]) >= len(parts[0]) else None,
            )
        )
    assert follow_estimate(make_schedule(learns, moves)) == expected
