"""Exact purges: the run is, byte for byte, one that never had the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.arrays import IntArray
from covertfl.runs.train import find_task
from covertfl.service.replay import Replay
from covertfl.service.store import Store
from covertfl.training import train
from tests.support.played_services import SERVICE, ask, list_requests, play_service
from tests.support.small_runs import QUEUE, make_run, read_arrays, read_rounds

# Decoys that move by a draw count moves, and a jump counts as one.
GATED: dict[str, Any] = {"decoy": {"gated": True}, "policy": {"kind": "greedy"}}
EXCHANGEABLE: dict[str, Any] = {"scheme": "exchangeable", "exchangeable": {"trajectories": 2}}
SHIFTS: dict[int, Any] = {
    1: [{"kind": "shift", "updates": 3}],
    12: [{"kind": "shift", "updates": 2}],
    19: [{"kind": "shift", "updates": 4}],
}


def find_rows(client: int, number: int) -> IntArray:
    """Return the first rows of a client."""
    return find_task(make_run(SERVICE)).clients[client][:number]


def train_without(
    out: Path, rows: IntArray, asked: dict[int, Any], rounds: int, **changes: Any
) -> None:
    """Train a run whose clients never had some rows, with the updates that requests ask for."""
    file = out.with_suffix(".csv")
    lines = (f"{at},{sum(one['updates'] for one in bodies)}" for at, bodies in asked.items())
    file.write_text("\n".join(["round,updates", *lines]) + "\n")
    settings = make_run(
        QUEUE,
        task="own",
        data=None,
        arrivals=str(file),
        rounds=rounds,
        queue={"capacity": "auto", "overflow_cost": None},
        **changes,
    )
    whole = find_task(make_run(SERVICE))
    clients = tuple(held[~np.isin(held, rows)] for held in whole.clients)
    train(settings.with_task(replace(whole, clients=clients)), out)


@pytest.mark.parametrize("acceptance", ["model", "data"])
def test_it_equals_a_run_that_never_had_the_rows(tmp_path: Path, acceptance: str) -> None:
    """Up to the jump always; afterwards where the same rounds were accepted in both."""
    rows = find_rows(2, 30)
    purge = {"kind": "purge", "rows": rows.tolist(), "exact": True, "updates": 2}
    asked = {**SHIFTS, 31: [purge]}
    changes = {**GATED, "federation": {"acceptance": acceptance, "min_share": 0.1}}
    play_service(tmp_path / "service", asked, 45, **changes)
    train_without(tmp_path / "without", rows, asked, 45, **changes)
    ours, theirs = read_arrays(tmp_path / "service"), read_arrays(tmp_path / "without")
    assert list_requests(tmp_path / "service")[-1].state == "done"
    for name in ("true", "decoy-1"):
        assert ours[name].tobytes() == theirs[name].tobytes()
    play_service(tmp_path / "kept", {**SHIFTS, 31: [{**purge, "exact": False}]}, 45, **changes)
    assert read_arrays(tmp_path / "kept")["true"].tobytes() != ours["true"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GATED, EXCHANGEABLE])
def test_a_replay_is_a_run_without_the_rows(tmp_path: Path, changes: dict[str, Any]) -> None:
    rows = find_rows(1, 40)
    play_service(tmp_path / "service", SHIFTS, 30, **changes)
    train_without(tmp_path / "without", rows, SHIFTS, 30, **changes)
    ask(tmp_path / "service", {"kind": "purge", "rows": rows.tolist(), "exact": True, "updates": 1})
    found = forget(tmp_path / "service", changes)
    assert found is not None
    theirs = read_arrays(tmp_path / "without")
    assert found[0].true.tobytes() == theirs["true"].tobytes()


def forget(folder: Path, changes: dict[str, Any]) -> Any:
    """Replay a service of 30 rounds without the rows of its last request."""
    from covertfl.runs.train import KernelCache, build_federation
    from covertfl.service.changes import RoundChanges

    federation = build_federation(make_run(SERVICE, **changes), KernelCache())
    with Store(folder) as store:
        store.open_round(31)
        purge = store.list_admitted(31)[0]
        return Replay(folder, RoundChanges(federation, store, lambda _: None)).forget(purge, 30)


def test_rows_that_were_never_used_change_nothing(tmp_path: Path) -> None:
    rows = find_rows(0, 2)
    asked: dict[int, Any] = {3: [{"kind": "purge", "rows": [int(rows[0])], "updates": 1}]}
    play_service(tmp_path / "plain", asked, 4, **GATED)
    exact = {3: [{**asked[3][0], "exact": True, "rows": [10**6 - 1]}]}
    exact[3][0]["rows"] = [int(find_unheld())]
    play_service(tmp_path / "exact", exact, 4, **GATED)
    with Store(tmp_path / "exact") as store:
        assert all(one.withdrawn is None for one in store.list_versions())


def find_unheld() -> int:
    """Return a row that no client holds: one of the public or the validation set."""
    task = find_task(make_run(SERVICE))
    held = np.concatenate(task.clients)
    return int(np.setdiff1d(np.arange(len(task.train)), held)[0])


def test_versions_with_the_rows_are_withdrawn_and_later_ones_are_not(tmp_path: Path) -> None:
    rows = find_rows(3, 60).tolist()
    folder = tmp_path / "service"
    asked: dict[int, Any] = {
        **SHIFTS,
        29: [{"kind": "shift", "updates": 6}, {"kind": "rollback", "version": 1, "updates": 1}],
        31: [{"kind": "purge", "rows": rows, "exact": True, "updates": 1}],
    }
    play_service(folder, asked, 70, **GATED)
    with Store(folder) as store:
        versions = store.list_versions()
    *_, rollback, purge = list_requests(folder)
    withdrawn = [one.version for one in versions if one.withdrawn == purge.id]
    assert withdrawn and 0 not in withdrawn and purge.version not in withdrawn
    assert sorted(int(path.name) for path in (folder / "versions").iterdir()) == [
        one.version for one in versions if one.withdrawn is None
    ]
    # The rollback waited for a version that is gone: it only owes its update.
    assert rollback.state == "done" and 1 in withdrawn


@pytest.mark.slow
def test_no_round_is_sent_or_recorded_by_a_replay(tmp_path: Path) -> None:
    rows = find_rows(2, 30).tolist()
    purge = {"kind": "purge", "rows": rows, "exact": True, "updates": 2}
    play_service(tmp_path / "exact", {**SHIFTS, 31: [purge]}, 45, **GATED)
    play_service(tmp_path / "plain", {**SHIFTS, 31: [{**purge, "exact": False}]}, 45, **GATED)
    exact, plain = (read_rounds(tmp_path / name) for name in ("exact", "plain"))
    assert [one["round"] for one in exact] == list(range(1, 46))
    assert exact[:30] == plain[:30]


@pytest.mark.slow
def test_a_second_exact_purge_goes_on_from_the_first(tmp_path: Path) -> None:
    first, second = find_rows(2, 20), find_rows(4, 20)
    asked: dict[int, Any] = {
        **SHIFTS,
        31: [{"kind": "purge", "rows": first.tolist(), "exact": True, "updates": 2}],
        41: [{"kind": "purge", "rows": second.tolist(), "exact": True, "updates": 2}],
    }
    changes = {**GATED, "federation": {"acceptance": "model"}}
    play_service(tmp_path / "service", asked, 60, **changes)
    train_without(tmp_path / "without", np.concatenate([first, second]), asked, 60, **changes)
    ours, theirs = read_arrays(tmp_path / "service"), read_arrays(tmp_path / "without")
    assert ours["true"].tobytes() == theirs["true"].tobytes()
