"""The price of an oracle state that is read with errors: exact and simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paper import partial_oracle

from covertfl.decision.policy import HorizonTable, Observation


def test_a_misread_policy_is_the_average_over_readings() -> None:
    confusion = partial_oracle.spread_errors(0.2, 3)
    assert confusion == pytest.approx(np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]))
    table = np.random.default_rng(2).uniform(size=(4, 3, 5))
    table[:, :, 0] = 0.0
    misread = partial_oracle.MisreadPolicy(HorizonTable(table), confusion)
    states, backlog = np.indices((3, 5), sparse=True)
    observation = Observation(states, backlog, rounds_left=2)
    assert misread.learn_prob(observation) == pytest.approx(confusion @ table[1])
    one = replace(observation, oracle_state=1, backlog=3)
    assert float(misread.learn_prob(one)) == pytest.approx(confusion[1] @ table[1][:, 3])


@pytest.mark.parametrize("error", [0.0, 0.25])
def test_horizon_costs_agree(error: float) -> None:
    row = partial_oracle.measure_horizon(error, "sound", 3000)
    low, high = row["simulated"]["interval"]
    assert low - 0.3 * (high - low) < row["cost"] < high + 0.3 * (high - low)
    assert (row["price"] > 0.3) if error else row["price"] == 0.0


@pytest.mark.parametrize("error", [0.0, 0.25])
def test_queue_costs_agree(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_oracle, "ROUNDS", 500)
    monkeypatch.setattr(partial_oracle, "BURN_IN", 300)
    row = partial_oracle.measure_queue(error, 200)
    for name in ("privacy", "learning"):
        low, high = row[f"simulated_{name}"]["interval"]
        assert low - 0.3 * (high - low) < row[f"{name}_cost"] < high + 0.3 * (high - low)
    assert (row["price"] > 0.5) if error else row["price"] == pytest.approx(0.0, abs=1e-9)
    # A wrong reading makes learning dearer and later: the limit that was planned is exceeded.
    assert (row["learning_cost"] > 3.1) if error else row["learning_cost"] == pytest.approx(3.0)
