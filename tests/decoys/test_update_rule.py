"""Results become updates: hand-worked cases."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.decoys.update_rule import UpdateRule, average_results, move_by
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer

WEIGHTS = np.array([1.0, -2.0, 0.5], dtype=np.float32)
RESULTS = np.array([[2.0, -2.0, 0.5], [1.0, 2.0, -0.5]], dtype=np.float32)


def test_average_is_weighted_by_examples() -> None:
    assert average_results(RESULTS, [3, 1]).tolist() == [1.75, -1.0, 0.25]
    assert average_results(RESULTS).tolist() == [1.5, 0.0, 0.0]


def test_fedavg_moves_to_the_mean() -> None:
    displacement = UpdateRule().displace(WEIGHTS, RESULTS, [3, 1])
    assert displacement.tolist() == [0.75, 1.0, -0.25]
    assert move_by(WEIGHTS, displacement).tolist() == [1.75, -1.0, 0.25]


def test_fedsgd_with_sgd_goes_against_the_gradient() -> None:
    rule = UpdateRule("fedsgd", LocalOptimizer("sgd", lr=0.5, weight_decay=0.1))
    displacement = rule.displace(WEIGHTS, RESULTS, [3, 1])
    expected = [-0.5 * (1.75 + 0.1), -0.5 * (-1.0 - 0.2), -0.5 * (0.25 + 0.05)]
    assert displacement == pytest.approx(expected)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_fedsgd_with_adam_makes_torchs_first_step(name: str) -> None:
    torch = pytest.importorskip("torch")
    rule = UpdateRule("fedsgd", LocalOptimizer(name, lr=0.01, weight_decay=0.3))  # type: ignore[arg-type]
    parameter = torch.nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64))
    parameter.grad = torch.tensor(average_results(RESULTS, [3, 1]))
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    kind([parameter], lr=0.01, weight_decay=0.3).step()
    expected = parameter.detach().numpy() - WEIGHTS
    assert rule.displace(WEIGHTS, RESULTS, [3, 1]) == pytest.approx(expected, rel=1e-6)


def test_work_follows_the_algorithm() -> None:
    assert UpdateRule().work == "train"
    assert UpdateRule("fedsgd").work == "gradient"


def test_refuses_unknown_algorithms_and_nothing() -> None:
    with pytest.raises(InvalidInput, match="fedavg or fedsgd"):
        UpdateRule("fedprox")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at least one result"):
        UpdateRule().displace(WEIGHTS, RESULTS[:0], [])
