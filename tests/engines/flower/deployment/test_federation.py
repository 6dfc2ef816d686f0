"""Free ports for the processes of a federation."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.federation import find_free_ports


def test_ports_are_free_and_differ() -> None:
    ports = find_free_ports(20)
    assert len(set(ports)) == 20
