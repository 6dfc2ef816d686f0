"""Small exchangeable runs: the digits among six clients; the public set has a single class."""

from __future__ import annotations

from typing import Any

from covertfl.runs.settings import RunSettings
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.exchangeable import Exchangeable
from tests.support.small_runs import HORIZON, QUEUE, make_run, merge

ROUNDS = 40
EXCHANGEABLE: dict[str, Any] = {
    "data": {"model": "mlp", "public_classes": 1, "public_class_share": 1.0, "public_size": 0.25},
    "scheme": "exchangeable",
}
BASES = {
    "horizon": merge(HORIZON, {**EXCHANGEABLE, "rounds": ROUNDS}),
    "queue": merge(QUEUE, {**EXCHANGEABLE, "rounds": 60}),
}


def make_exchangeable(base: str = "horizon", trajectories: int = 2, **changes: Any) -> RunSettings:
    return make_run(BASES[base], exchangeable={"trajectories": trajectories}, **changes)


def find_scheme(settings: RunSettings) -> Exchangeable:
    scheme = build_federation(settings, KernelCache()).scheme
    assert isinstance(scheme, Exchangeable)
    return scheme
