"""What a service shows: records of rounds, waits, limits, warnings, beliefs, policies made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.auditing.means import find_known_scheme
from covertfl.decision.problem import QueueProblem
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.listeners import MajorityEavesdropper
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.engine import Validation
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.service.store import Store
from covertfl.service.watch import Beliefs
from tests.service.test_desk import DRAWN, EXCHANGEABLE, GREEDY
from tests.support.played_services import (
    SERVICE,
    list_requests,
    pack_examples,
    play_service,
    read_run_files,
)
from tests.support.small_runs import make_run, read_rounds

SHIFTS: dict[int, Any] = {
    1: [{"kind": "shift", "updates": 2}],
    15: [{"kind": "shift", "updates": 4}],
}
NOTHING = np.zeros(1, dtype=np.float32)
REFIT: dict[str, Any] = {
    "service": {"refit": True},
    "policy": {"kind": "optimal"},
    "oracle": {"success": [0.8, 0.9, 0.95]},
}


def read_facts(folder: Path, name: str) -> Any:
    with Store(folder) as store:
        return store.read_fact(name)


def list_warnings(folder: Path) -> list[dict[str, Any]]:
    with Store(folder) as store:
        return store.list_warnings(limit=100)


def test_rounds_and_waits_are_those_of_the_records(tmp_path: Path) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}],
        9: [{"kind": "shift", "updates": 3}],
    }
    play_service(tmp_path / "s", asked, 45, stop_after=17, **GREEDY)
    play_service(tmp_path / "s", asked, 45, **GREEDY)
    records, updates = (
        read_rounds(tmp_path / "s"),
        read_rounds(tmp_path / "s", "private/updates.jsonl"),
    )
    with Store(tmp_path / "s") as store:
        shown = store.list_rounds(limit=100)
    assert [one["round"] for one in shown] == list(range(1, 46))
    learned = np.cumsum([one["action"] == "learn" for one in records])
    for number, (ours, record) in enumerate(zip(shown, records, strict=True), 1):
        for name in ("oracle_state", "action", "accepted"):
            assert ours[name] == record[name]
        assert ours["backlog"] == record["backlog_after"]
        assert ours["arrival"] == (1 if record["arrival"] else 0)
        assert ours["exposure"] == pytest.approx(learned[number - 1] / number)
        waits = [one["done"] - one["came"] for one in updates if one["done"] <= number]
        assert ours["mean_wait"] == (pytest.approx(np.mean(waits)) if waits else None)
    done = list_requests(tmp_path / "s")
    assert {one.state for one in done} == {"done"}
    waited = [(one.finished or 0) - (one.admitted or 0) for one in done]
    assert read_facts(tmp_path / "s", "request_waits") == {"count": 2, "total": sum(waited)}


def test_rows_of_a_context_can_be_named_after_a_restart(tmp_path: Path) -> None:
    task = find_task(make_run(SERVICE))
    data = pack_examples(task.validation.features[:30], task.validation.labels[:30])
    context = {"kind": "context", "client": 2, "data": data, "updates": 1}
    play_service(tmp_path / "s", {1: [context]}, 6, **GREEDY)
    assert read_facts(tmp_path / "s", "limits")["rows"] == len(task.train) + 30
    play_service(tmp_path / "s", {}, 8, **GREEDY)
    assert read_facts(tmp_path / "s", "limits")["rows"] == len(task.train) + 30


def test_a_model_that_has_diverged_is_released_without_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validation, "measure_loss", lambda *_: float("nan"))
    bodies = [{"kind": "shift", "updates": 1}, {"kind": "shift", "patience": 2, "updates": 50}]
    play_service(tmp_path / "s", {1: bodies}, 40, **GREEDY)
    with Store(tmp_path / "s") as store:
        metrics = [dict(one.metrics) for one in store.list_versions()]
    assert len(metrics) == 3 and all("loss" not in one and "accuracy" in one for one in metrics)
    assert [one.served for one in list_requests(tmp_path / "s")] == [1, 2]


@pytest.mark.slow
def test_drift_is_warned_of_once_and_a_refit_promises_the_wait_of_the_new_load(
    tmp_path: Path,
) -> None:
    """Updates come 2.5 times as often as the problem says; 300 rounds are enough to see it."""
    asked: dict[int, Any] = {at: [{"kind": "shift", "updates": 2}] for at in range(1, 304, 4)}
    play_service(tmp_path / "s", asked, 304, base=DRAWN, **REFIT)
    warnings = list_warnings(tmp_path / "s")
    assert [one["kind"] for one in warnings].count("arrivals") == 1
    policy = read_facts(tmp_path / "s", "policy")
    problem = make_run(DRAWN, **REFIT).problem
    assert isinstance(problem, QueueProblem)
    assert policy["limit"] == problem.limit == 3.0
    assert policy["arrival_rate"] == pytest.approx(0.5, rel=0.1)
    assert policy["promised_wait"] == pytest.approx(3.0 / 0.6 / policy["arrival_rate"])


def audit_rounds(federation: Any, trajectories: list[int]) -> list[dict[str, float]]:
    """Return the beliefs in the truth after each round, by the eavesdroppers of the audit."""
    means = Means(scheme=find_known_scheme(federation))
    heard = {"counting": MajorityEavesdropper(means), "scheme": LikelihoodEavesdropper(means)}
    order = list(dict.fromkeys(trajectories))
    found = []
    for number, trajectory in enumerate(trajectories, 1):
        for listener in heard.values():
            listener.observe(SeenQuery(number, order.index(trajectory), NOTHING, None))
        is_seen = 0 in trajectories[:number]
        found.append(
            {
                name: float(listener.belief()[order.index(0)]) if is_seen else 0.0
                for name, listener in heard.items()
            }
        )
    return found


@pytest.mark.parametrize("changes", [{}, EXCHANGEABLE])
def test_beliefs_are_those_of_the_audit(tmp_path: Path, changes: dict[str, Any]) -> None:
    play_service(tmp_path / "s", SHIFTS, 40, **changes)
    records = read_rounds(tmp_path / "s")
    federation = build_federation(make_run(SERVICE, **changes), KernelCache())
    expected = audit_rounds(federation, [one["trajectory"] for one in records])
    with Store(tmp_path / "s") as store:
        shown = store.list_rounds(limit=100)
    for round_shown, audited in zip(shown, expected, strict=True):
        for name, belief in audited.items():
            assert round_shown[name] == pytest.approx(belief, abs=1e-12)
    exposure = [one["exposure"] for one in shown]
    assert [one["counting"] for one in shown] == pytest.approx(exposure)
    again = Beliefs(federation, records)
    assert again.describe() == pytest.approx(expected[-1], abs=1e-12)
    assert again.trajectories == 2


def test_a_truth_that_was_never_queried_is_believed_by_nobody() -> None:
    federation = build_federation(make_run(SERVICE), KernelCache())
    beliefs = Beliefs(federation, [])
    assert beliefs.describe() == {"counting": 0.0, "scheme": 0.0}
    beliefs.observe(1, 1)
    assert beliefs.describe() == {"counting": 0.0, "scheme": 0.0}
    beliefs.observe(2, 0)
    assert beliefs.describe()["counting"] == 0.5


@pytest.mark.slow
def test_a_refit_makes_a_policy_and_a_restart_around_it_changes_no_byte(tmp_path: Path) -> None:
    """Updates come 2.5 times as often as the problem says: the policy is made anew in round 300."""
    asked: dict[int, Any] = {at: [{"kind": "shift", "updates": 2}] for at in range(1, 312, 4)}
    play_service(tmp_path / "whole", asked, 312, base=DRAWN, **REFIT)
    checkpoint = read_checkpoint(tmp_path / "whole")
    assert checkpoint is not None and checkpoint.facts["scheme"]["live"]["refreshed"] == 300
    for end in (299, 300, 303, None):
        play_service(tmp_path / "parts", asked, 312, base=DRAWN, stop_after=end, **REFIT)
    assert read_run_files(tmp_path / "parts") == read_run_files(tmp_path / "whole")
    plain = {**REFIT, "service": {"refit": False}}
    play_service(tmp_path / "plain", asked, 302, base=DRAWN, **plain)
    kept = read_checkpoint(tmp_path / "plain")
    assert kept is not None and kept.facts["scheme"]["live"]["refreshed"] == 0
