"""Runs in which no round can be accepted are found before they are deployed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.checks import find_shortage
from tests.support.small_runs import make_run


@pytest.mark.parametrize(
    ("federation", "nodes", "share"),
    [
        # 1290 digits: 65 for each of the first ten clients, of which three batches of 20 are used.
        ({}, 4, 0.186),
        ({}, 5, 0.233),
        ({}, 6, None),
        ({"batch_size": 1}, 4, 0.202),
        ({"min_share": 1.0}, 20, 0.930),
        ({"acceptance": "model"}, 4, None),
        ({"clients": 4, "participation": [1, 2, 4]}, 4, None),
    ],
)
def test_nodes_that_could_never_bring_an_accepted_round(
    federation: dict[str, Any], nodes: int, share: float | None
) -> None:
    default = {"clients": 20, "participation": [5, 10, 20], **federation}
    said = find_shortage(make_run(federation=default), nodes)
    if share is None:
        assert said is None
    else:
        assert said is not None and "\n" not in said
        assert said.startswith(f"run.toml: no round can be accepted: {nodes} nodes")
        assert f"{share:.3f} of the examples" in said
