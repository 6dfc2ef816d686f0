"""The mirrored decoy, worked by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.mirrored import MirroredDecoy
from covertfl.decoys.update_rule import UpdateRule
from covertfl.kernels.job import LocalOptimizer
from covertfl.kernels.weights import Vector


def no_outputs(weights: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    raise AssertionError("the mirrored decoy asks for no outputs")


VIEW = DecoyView(
    weights=np.array([1.0, -2.0], dtype=np.float32),
    learner=np.zeros(2, dtype=np.float32),
    replies=np.array([[2.0, -2.0], [5.0, 2.0]], dtype=np.float32),
    examples=np.array([30, 10]),
    moves=4,
    predict=no_outputs,
)


def move(rule: UpdateRule) -> list[float]:
    decoy, generator = MirroredDecoy(rule), np.random.default_rng(0)
    assert decoy.plan(VIEW, generator=generator) == []
    moved: list[float] = decoy.move(VIEW, [], generator=generator).tolist()
    return moved


def test_fedavg() -> None:
    # The mean reply is (2.75, -1): honest would be (+1.75, +1).
    assert move(UpdateRule()) == [1.0 - 1.75, -2.0 - 1.0]


def test_fedsgd_with_sgd_climbs_the_gradient() -> None:
    rule = UpdateRule("fedsgd", LocalOptimizer("sgd", lr=0.5))
    assert move(rule) == [1.0 + 0.5 * 2.75, -2.0 - 0.5 * 1.0]


def test_fedsgd_with_adam_steps_up_in_every_coordinate() -> None:
    rule = UpdateRule("fedsgd", LocalOptimizer("adam", lr=0.25))
    assert np.allclose(move(rule), [1.25, -2.25])
