"""`min_replies`: a round with fewer valid replies is not accepted, whatever was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.participation import measure_success
from tests.support.played_runs import build, play
from tests.support.small_runs import HORIZON, make_run, read_column, read_folder, run_small

LEAST = 3
# Every round that has a reply is accepted, were it not for the quorum.
ANY = {"min_share": 0.0, "min_replies": LEAST}


def has_quorum(record: dict[str, Any]) -> bool:
    return bool(np.count_nonzero(record["batches"]) >= LEAST)


@pytest.mark.parametrize("decoy", ["public", "mirrored"])  # replies to a decoy: unused, used
@pytest.mark.parametrize("kind", ["always-learn", "always-obfuscate", "random"])
def test_too_few_replies_are_not_accepted_on_either_arm(kind: str, decoy: str) -> None:
    federation = build(
        HORIZON, rounds=40, updates=20, federation=ANY, policy={"kind": kind}, decoy={"kind": decoy}
    )
    _, records, _ = play(federation)
    assert {record["accepted"] for record in records} == {True, False}
    for record in records:
        assert record["accepted"] == has_quorum(record)
        assert not record["updated"] or record["accepted"]


@pytest.mark.parametrize("acceptance", ["data", "model"])
def test_a_quorum_comes_on_top_of_all_else(acceptance: str) -> None:
    changes: dict[str, Any] = {"acceptance": acceptance}
    _, without, _ = play(build(HORIZON, rounds=30, federation=changes, policy={"kind": "greedy"}))
    changes |= {"min_replies": LEAST}
    _, records, _ = play(build(HORIZON, rounds=30, federation=changes, policy={"kind": "greedy"}))
    for before, record in zip(without, records, strict=True):
        assert before["batches"] == record["batches"]
        assert record["accepted"] == (has_quorum(record) and before["accepted"])


def test_success_is_measured_with_the_quorum() -> None:
    # One batch or none each, by the toss of a coin.
    generator = np.random.default_rng(0)
    measured = measure_success(
        np.full(6, 20), [2, 4, 6], 20, 0.0, generator=generator, rounds=20_000, min_replies=3
    )
    np.testing.assert_allclose(measured, [0.0, 5 / 16, 42 / 64], atol=0.015)
    federation = build(HORIZON, federation={"participation": [2, 4, 6], "min_replies": 3})
    assert federation.measured is not None and federation.measured[0] == 0.0
    assert federation.problem.oracle.success[0] == 0.0


def test_flower_has_the_same_quorum(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    changes: dict[str, Any] = {"federation": ANY, "rounds": 16}
    run_small(tmp_path / "simulated", **changes)
    run_small(tmp_path / "flower", **changes, engine={"kind": "flower"})
    assert {*read_column(tmp_path / "flower", "accepted")} == {True, False}
    for part in ("public", "private"):
        simulated, flower = (
            read_folder(tmp_path / kind / part) for kind in ("simulated", "flower")
        )
        shared = simulated.keys() & flower.keys() - {"clock.json"}
        assert shared
        assert {name: simulated[name] for name in shared} == {name: flower[name] for name in shared}


@pytest.mark.parametrize("accepts", [None, lambda examples, replies: True])
def test_replies_that_are_refused_do_not_count(accepts: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tests.support.faulty_grid import FaultyGrid
    from tests.support.flower_runs import NODES, ROUNDS, RUN, make_app, run_covert

    def fail(number: int, client: int) -> Any:
        return "error" if number % 2 == 0 and client < 2 else None

    changes = {"federation": {**RUN["federation"], "min_replies": 3}}
    for learns in (range(1, 1 + ROUNDS), ()):
        out = tmp_path / str(len(learns))
        grid = FaultyGrid(make_app(), NODES, faults=fail)
        run_covert(out, None, list(learns), grid=grid, changes=changes, accepts=accepts)
        assert read_column(out, "accepted") == [True, False] * (ROUNDS // 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_replies": 0}, "min_replies"),
        ({"min_replies": 2.5}, "min_replies"),
        ({"min_replies": 7}, "min_replies must be at most 6, the clients of the best oracle state"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_run(HORIZON, federation=changes)
