"""What eavesdroppers believe while a service runs, against those of the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.auditing.means import find_scheme
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.listeners import MajorityEavesdropper
from covertfl.runs.build import KernelCache, build_federation
from covertfl.service.store import Store
from covertfl.service.watch import Beliefs
from tests.service.test_desk import EXCHANGEABLE
from tests.support.played_services import SERVICE, play_service
from tests.support.small_runs import make_run, read_rounds

SHIFTS: dict[int, Any] = {
    1: [{"kind": "shift", "updates": 2}],
    15: [{"kind": "shift", "updates": 4}],
}
NOTHING = np.zeros(1, dtype=np.float32)


def audit_rounds(federation: Any, trajectories: list[int]) -> list[dict[str, float]]:
    """Return the beliefs in the truth after each round, by the eavesdroppers of the audit."""
    means = Means(scheme=find_scheme(federation))
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
