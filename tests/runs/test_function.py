"""Runs of the function task, against a plain loop over their own records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Vector
from covertfl.runs.federation import Federation, start_run
from covertfl.runs.function import FunctionResponder
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.function import FunctionTask
from tests.support.played_runs import FUNCTION_HORIZON, Records, build, play
from tests.support.small_runs import FUNCTION_QUEUE, make_run

TWO_STATES = {
    "oracle": {"transition": [[0.7, 0.3], [0.4, 0.6]], "success": [0.3, 0.8]},
    "cost": {"privacy": [1.0, 0.4], "learning": {"shape": "linear", "scale": 0.6}},
}
SMALL_BALL = {"dimension": 3, "radius": 1.2, "noise_limit": 0.5}


def find_task(federation: Federation) -> FunctionTask:
    assert isinstance(federation.responder, FunctionResponder)
    return federation.responder.task


def step(point: Vector, response: Vector, m: int, radius: float) -> Vector:
    """Equation (4) or (5) with step 1/m, back onto the ball if it leaves it."""
    moved = point.astype(np.float64) - response.astype(np.float64) / m
    length = math.sqrt(float(moved @ moved))
    return (moved * min(1.0, radius / length)).astype(np.float32)


def replay(federation: Federation, records: Records, restart: int | None) -> dict[str, Any]:
    """Play the rounds again with plain arithmetic; `restart`: moves of a decoy in one task."""
    task, seed, radius = (
        find_task(federation),
        federation.settings.seed,
        find_task(federation).radius,
    )
    points = list(start_run(federation).learner.trajectories)
    moves, updates, estimate, touched = [0] * len(points), 0, None, 0
    tasks: list[list[int]] = []  # done and left
    horizon = getattr(federation.problem, "updates", None)
    if horizon is not None:
        tasks.append([0, horizon])
    for record in records:
        number, state, at = record["round"], record["oracle_state"], record["trajectory"]
        if at == 0 and record["accepted"] and tasks:
            m = tasks[0][0] + 1
            response, sigma = task.respond(
                points[0], state, generator=make_generator(seed, Stream.RESPONSE, number)
            )
            assert sigma <= task.response_limit
            draw = make_generator(seed, Stream.FINAL, number).random()
            if draw < (1.0 / m) / sum(1.0 / i for i in range(1, m + 1)):
                estimate = points[0]
            points[0], updates = step(points[0], response, m, radius), updates + 1
            tasks[0] = [m, tasks[0][1] - 1]
            tasks = tasks if tasks[0][1] else tasks[1:]
        elif at > 0 and record["accepted"]:
            m = 1 + (moves[at] if restart is None else moves[at] % restart)
            generator = make_generator(seed, Stream.DECOY, number)
            response, _ = task.respond_decoy(points[at], state, at, generator=generator)
            points[at] = step(points[at], response, m, radius)
            moves[at] += 1
        touched += math.isclose(float(np.linalg.norm(points[at])), radius, rel_tol=1e-6)
        room = getattr(federation.problem, "capacity", None)
        room = record["arrival"] if room is None else room - sum(left for _, left in tasks)
        if min(record["arrival"], room) > 0:
            tasks.append([0, min(record["arrival"], room)])
    return {"points": points, "updates": updates, "estimate": estimate, "touched": touched}


@pytest.mark.parametrize(
    ("base", "changes", "restart"),
    [
        (FUNCTION_HORIZON, {}, None),
        (FUNCTION_QUEUE, {"queue": {"arrival_prob": 0.15, "arrival_size": 4}}, 4),
        (FUNCTION_QUEUE, {"data": SMALL_BALL, "decoy": {"count": 3}, **TWO_STATES}, 2),
    ],
)
def test_a_run_is_a_plain_loop(
    base: dict[str, Any], changes: dict[str, Any], restart: int | None
) -> None:
    federation = build(base, policy={"kind": "greedy"}, rounds=60, **changes)
    final, records, _ = play(federation)
    expected = replay(federation, records, restart)
    for found, point in zip(final.learner.trajectories, expected["points"], strict=True):
        np.testing.assert_array_equal(found, point)
    np.testing.assert_array_equal(final.learner.estimate, expected["estimate"])
    assert final.learner.updates == expected["updates"] > 3
    assert (expected["touched"] > 0) == ("data" in changes)


@pytest.mark.parametrize("seed", range(5))
def test_after_one_update_the_estimate_is_the_first_point(seed: int) -> None:
    """Theorem 1 picks among the points that were queried, x_1 .. x_M, never x_{M+1}."""
    federation = build(
        FUNCTION_HORIZON, seed=seed, policy={"kind": "greedy"}, horizon={"updates": 1, "rounds": 30}
    )
    final, _, _ = play(federation)
    assert final.learner.updates == 1
    first = start_run(federation).learner.true
    np.testing.assert_array_equal(final.learner.estimate, first)
    assert not np.array_equal(final.learner.true, first)


def test_states_come_from_the_problem() -> None:
    federation = build(FUNCTION_QUEUE, **TWO_STATES)
    assert find_task(federation).success == (0.3, 0.8)
    assert federation.problem.oracle.num_states == 2


@pytest.mark.parametrize("key", ["dimension", "radius", "noise_limit"])
def test_keys_of_the_function_need_it(key: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"run.toml: \[data\] {key} needs task = function, got task = digits"
    ):
        make_run(data={key: 2})
    with pytest.raises(InvalidInput, match=rf"\[data\] {key} must be (at least|more than) "):
        make_run(FUNCTION_QUEUE, data={key: 0})
