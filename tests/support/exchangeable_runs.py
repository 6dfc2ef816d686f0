"""Small exchangeable runs: the digits among six clients; the public set has a single class."""

from __future__ import annotations

from typing import Any

from covertfl.runs.clients import ClientResponder

from covertfl.runs.settings import RunSettings
from covertfl.runs.train import KernelCache, build_federation
from tests.support.small_runs import HORIZON, QUEUE, make_run, merge

ROUNDS = 40
EXCHANGEABLE: dict[str, Any] = {
    "data": {"model": "mlp", "public_classes": 1, "public_class_share": 1.0, "public_size": 0.25},
    "policy": {"kind": "exchangeable"},
}
BASES = {
    "horizon": merge(HORIZON, {**EXCHANGEABLE, "rounds": ROUNDS}),
    "queue": merge(QUEUE, {**EXCHANGEABLE, "rounds": 60}),
}


def make_exchangeable(base: str = "horizon", trajectories: int = 2, **changes: Any) -> RunSettings:
    policy = {"kind": "exchangeable", "trajectories": trajectories}
    return make_run(BASES[base], policy=policy, **changes)


def find_clients(settings: RunSettings) -> ClientResponder:
    responder = build_federation(settings, KernelCache()).responder
    assert isinstance(responder, ClientResponder)
    return responder
