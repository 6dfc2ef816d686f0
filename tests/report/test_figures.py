"""Which curves and plots are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covertfl.report.figures import choose_curves
from covertfl.report.write import write_report
from tests.support.reports import COMMAND, write_lines


def test_curves_that_are_drawn() -> None:
    levels = {"majority": 0.1, "a": 0.3, "b": 0.9, "likelihood": 0.2, "train-alone": 0.4}
    entries: dict[str, Any] = {
        name: {"accuracy_by_round": [level] * 2} for name, level in levels.items()
    }
    entries["none"] = {"accuracy_by_round": None}
    assert list(choose_curves({"eavesdroppers": entries})) == [
        "majority",
        "likelihood",
        "b",
        "train-alone",
    ]
    assert choose_curves(None) == {}


@pytest.mark.slow
def test_long_backlogs_become_an_image(folder: Path) -> None:
    path = folder / "seed-0" / "private" / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [{**record, "backlog": 5000 + record["backlog"]} for record in records])
    write_report(folder / "seed-0", command=COMMAND)
    assert (folder / "seed-0" / "report" / "policy.svg").stat().st_size < 200_000
