"""Private files of a run on Flower: metrics of clients and numbers of nodes, whole after a cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import MetricRecord

from covertfl.engines.flower.carrier import METRICS_FILE, ClientMetrics
from covertfl.engines.flower.node_numbers import KnownNodeNumbers, StoredNodeNumbers
from covertfl.errors import InvalidInput


def read(path: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["round"], line["metrics"]["loss"]) for line in lines]


def test_a_cut_line_and_a_repeated_round(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    path.parent.mkdir()
    first = ClientMetrics(tmp_path, {})
    for number in (1, 2):
        first.keep(number, MetricRecord({"loss": 1.0 / number}))
    first.keep(3, None)
    assert read(path) == [(1, 1.0), (2, 0.5)] and path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text() + '{"round": 3, "met')
    again: dict[int, MetricRecord] = {}
    resumed = ClientMetrics(tmp_path, again)
    assert list(again) == [1, 2]
    resumed.keep(2, MetricRecord({"loss": 0.75}))
    resumed.keep(3, MetricRecord({"loss": 0.25}))
    assert read(path) == [(1, 1.0), (2, 0.75), (3, 0.25)]
    path.write_text("[]\n")
    with pytest.raises(InvalidInput, match="does not hold the metrics of clients"):
        ClientMetrics(tmp_path, {})


def test_known_nodes_only() -> None:
    assert KnownNodeNumbers({9: 1, 7: 0}).assign([7, 8, 9]) == {0: 7, 1: 9}


def test_nodes_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "nodes.jsonl"
    numbers = StoredNodeNumbers(path)
    assert numbers.assign([70, 50]) == {0: 50, 1: 70}
    assert numbers.assign([70, 60]) == {1: 70, 2: 60}
    assert StoredNodeNumbers(path).assign([60, 50, 40]) == {0: 50, 2: 60, 3: 40}
    assert path.stat().st_mode & 0o077 == 0
    with path.open("a") as stream:
        stream.write('{"client": 4, "no')  # cut off in the middle
    assert StoredNodeNumbers(path).assign([40]) == {3: 40}
    assert StoredNodeNumbers(path).assign([30]) == {4: 30}
    assert StoredNodeNumbers(path).assign([30, 70]) == {1: 70, 4: 30}
    path.write_text('{"client": 4}\n')
    with pytest.raises(InvalidInput, match="does not hold the numbers of nodes"):
        StoredNodeNumbers(path)
