"""Rounds start at fixed times, and those that do not are counted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from covertfl.engines.flower import strategy as connection
from covertfl.errors import InvalidInput
from covertfl.runs.clock import CLOCK, LONGEST, Clock
from tests.support.faulty_grid import FaultyGrid
from tests.support.flower_runs import NODES, ROUNDS, make_app, run_covert


class Time:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.work)

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def start_rounds(clock: Clock, passing: Time, work: Sequence[float]) -> list[float]:
    """Return when rounds start that take so long, since the first."""
    starts = []
    for seconds in work:
        clock.wait()
        clock.begin()
        starts.append(passing.now)
        passing.work(seconds)
    return [start - starts[0] for start in starts]


def test_rounds_start_at_multiples_and_missed_ones_are_counted(passing: Time) -> None:
    clock = Clock(2.0)
    assert start_rounds(clock, passing, [0.5, 1.9, 4.5, 0.0, 0.0]) == [0.0, 2.0, 4.0, 10.0, 12.0]
    assert clock.describe() == {"round_seconds": 2.0, "missed_ticks": 2}


def test_without_a_clock_rounds_start_when_the_last_has_ended(passing: Time) -> None:
    clock = Clock(0.0)
    assert start_rounds(clock, passing, [0.5, 1.9, 4.5]) == pytest.approx([0.0, 0.5, 2.4])
    assert clock.describe() == {}


@pytest.mark.parametrize(("first", "found"), [(0.1, 1.0), (1.2, 3.0), (4.0, 8.0)])
def test_the_first_round_sets_the_interval_and_a_resumed_run_keeps_it(
    tmp_path: Path, passing: Time, first: float, found: float
) -> None:
    path = tmp_path / "clock.json"
    clock = Clock(None, path)
    starts = start_rounds(clock, passing, [first, 0.3, 2.5 * found, 0.2])
    assert starts == pytest.approx([0.0, found, 2.0 * found, 5.0 * found])
    assert path.stat().st_mode & 0o777 == 0o600
    again = Clock(None, path)
    assert again.describe() == {"round_seconds": found, "missed_ticks": 2}
    assert start_rounds(again, passing, [7.5 * found, 0.0]) == pytest.approx([0.0, 8.0 * found])
    assert Clock(5.0, path).describe() == {"round_seconds": 5.0, "missed_ticks": 9}


def test_a_round_without_all_replies_sets_no_interval(passing: Time) -> None:
    clock = Clock(None)
    clock.wait()
    clock.begin()
    passing.work(3600.0)
    clock.discard()
    assert start_rounds(clock, passing, [1.0, 1.0]) == pytest.approx([0.0, 2.0])
    clock.discard()
    assert clock.describe()["round_seconds"] == 2.0


def test_a_node_that_never_replies_does_not_keep_rounds_off_the_clock(passing: Time) -> None:
    clock = Clock(None)
    for _ in range(4):
        clock.wait()
        clock.begin()
        passing.work(3600.0)
        clock.discard()
    clock.wait()
    # Nor does one that replies at the last moment set an interval of hours.
    assert clock.describe()["round_seconds"] == LONGEST


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "nonsense", '{"missed_ticks": "many"}', '{"missed_ticks": 1e999}']
    + [f'{{"missed_ticks": 0, "round_seconds": {seconds}}}' for seconds in ("NaN", "-1", "1e999")],
)
def test_a_clock_that_was_changed_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "clock.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"clock\.json"):
        Clock(None, tmp_path / "clock.json")


def test_a_clock_that_may_end_sooner_waits_with_another_sleep(passing: Time) -> None:
    waits: list[float] = []
    clock = Clock(2.0, sleep=waits.append)
    for _ in range(3):
        clock.wait()
        clock.begin()
    assert waits == [2.0, 4.0] and passing.now == 100.0


@pytest.mark.parametrize(("given", "told"), [(None, None), (0.0, None), (3.0, 3.0)])
def test_nodes_in_this_process_need_no_clock_but_may_have_one(
    tmp_path: Path, passing: Time, given: float | None, told: float | None
) -> None:
    changes = {} if given is None else {"engine": {"round_seconds": given}}
    run_covert(tmp_path / "run", None, [1], changes=changes)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.get("round_seconds") == told
    assert passing.now == 100.0 + (ROUNDS - 1) * (told or 0.0)


def test_the_summary_of_a_run_tells_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: Time
) -> None:
    def make_late(number: int, client: int, reply: Any) -> Any:
        passing.work(5.0 if number == 3 and client == 0 else 0.2)
        return reply

    monkeypatch.setattr(connection, "InProcessGrid", type(None))  # as if it were a deployment's
    grid = FaultyGrid(make_app(), NODES, spoil=make_late)
    run_covert(tmp_path / "run", None, range(1, ROUNDS + 1), grid=grid)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (told["round_seconds"], told["missed_ticks"]) == (2.0, 2)
    assert json.loads((tmp_path / "run" / CLOCK).read_text())["missed_ticks"] == 2
    for path in (tmp_path / "run" / "public").glob("*.jsonl"):
        assert b"tick" not in path.read_bytes()
