"""The history of benchmarks: entries, comparisons by ratio, and the lines that come of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import covertfl as cf
from tests import ROOT


class Bench:
    """`run.py` with two fake sections, one of them guarded, whose ratios a test sets."""

    def __init__(self, load: Any, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.run, self.section, self.patch = load("run"), load("section"), patch
        self.file = folder / "history.jsonl"
        self.ratios: dict[str, dict[str, float]] = {}
        self.broken: dict[str, BaseException] = {}
        self.busy: list[bool] = []  # answers of `is_busy`, one for each section
        patch.setattr(self.run, "is_busy", lambda: bool(self.busy and self.busy.pop(0)))
        patch.setattr(self.run, "BENCHMARKS", {"guarded": "", "free": ""})
        patch.setattr(self.run, "measure_section", lambda name, quick: self.make(name))
        patch.setattr(self.run, "DOCUMENTS", folder)
        blocks = [
            f"<!-- {name}: begin -->\nOld.\n<!-- {name}: end -->" for name in ("guarded", "free")
        ]
        self.page = folder / "benchmarks.md"
        self.page.write_text("\n".join(["Text.", *blocks, "More.\n"]), "utf-8")

    def make(self, name: str) -> Any:
        if name in self.broken:
            raise self.broken[name]
        ratios = self.ratios.get(name, {})
        checks = (self.section.Check("right", True),)
        return self.section.Section(name, ("a",), (("1",),), checks, ratios, name == "guarded")

    def measure(self, *more: str, **ratios: dict[str, float]) -> int:
        self.ratios = ratios
        arguments = ["run.py", "--history", str(self.file), *more]
        self.patch.setattr(sys, "argv", arguments)
        return int(self.run.main())

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]


@pytest.fixture
def bench(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    monkeypatch.setenv("COLUMNS", "200")
    return Bench(load, monkeypatch, tmp_path)


def test_every_run_appends_a_line(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.measure(guarded={"small": 2.0, "large": 30.0}, free={"x": 1.0}) == 0
    assert "No earlier run to compare with." in capsys.readouterr().out
    assert bench.measure(guarded={"small": 2.1, "large": 28.0}, free={"x": 1.0}) == 0
    first, second = bench.entries()
    assert set(first) == {"date", "machine", "busy", "versions", "sections"}
    assert first["sections"] == {"guarded": {"small": 2.0, "large": 30.0}, "free": {"x": 1.0}}
    assert second["sections"]["guarded"] == {"small": 2.1, "large": 28.0}
    assert {"Python", "covertfl", "numpy"} <= set(first["versions"])


def test_ratios_are_compared_with_the_last_run(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.measure(guarded={"a": 9.0})
    bench.measure(guarded={"a": 2.0, "b": 2.0, "c": 2.0}, free={"x": 1.0})
    capsys.readouterr()
    assert bench.measure(guarded={"a": 2.4, "b": 2.2, "c": 1.6, "d": 5.0}, free={"x": 0.1}) == 1
    said = capsys.readouterr().out
    assert "better/same/worse (tolerance 15%)" in said
    table = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in said.splitlines()
        if line.rstrip().endswith(("better │", "same │", "same    │", "better  │", "worse   │"))
    ]
    assert [(row[0], row[1], row[3], row[4], row[5]) for row in table] == [
        ("guarded", "a", "2", "2.4", "better"),
        ("guarded", "b", "2", "2.2", "same"),
        ("guarded", "c", "2", "1.6", "worse"),
        ("free", "x", "1", "0.1", "worse"),
    ]
    date = bench.entries()[0]["date"]
    line = f"no ratio is more than 15% below the last run's (least: c, 2 on {date} and 1.6 now)"
    assert said.count(f"NO: {line}") == 1  # the section that is not guarded has no such line


def test_a_guarded_section_that_kept_its_ratios_says_yes(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.measure(guarded={"a": 2.0})
    assert "no ratio is more" not in capsys.readouterr().out
    assert bench.measure(guarded={"a": 1.8}) == 0
    assert "yes: no ratio is more than 15% below the last run's" in capsys.readouterr().out


def test_a_section_left_out_of_the_last_run_is_compared_with_an_earlier_one(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.measure(guarded={"a": 4.0, "b": 4.0}, free={"x": 1.0})
    bench.measure("--only", "free", free={"x": 1.0})
    bench.measure("--only", "guarded", guarded={"b": 4.0})
    assert [list(entry["sections"]) for entry in bench.entries()[1:]] == [["free"], ["guarded"]]
    capsys.readouterr()
    assert bench.measure(guarded={"a": 1.0, "b": 4.0}) == 1
    assert "least: a, 4 on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [(1.0, 1.14, "same"), (1.0, 1.16, "better"), (1.0, 0.86, "same"), (1.0, 0.84, "worse")],
)
def test_the_tolerance_is_15_percent(load: Any, before: float, now: float, verdict: str) -> None:
    assert load("history").Change("s", "a", "2026-01-01", before, now).verdict == verdict


def test_without_history_nothing_is_compared_or_written(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.patch.setattr(sys, "argv", ["run.py"])
    bench.ratios = {"guarded": {"a": 1.0}}
    assert bench.run.main() == 0
    assert "earlier run" not in capsys.readouterr().out
    assert not bench.file.exists()


def test_an_interrupted_run_keeps_what_it_measured(bench: Bench) -> None:
    bench.broken["free"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.measure("--write", guarded={"a": 2.0})
    assert bench.page.read_text("utf-8").count("Old.") == 1
    [entry] = bench.entries()
    assert entry["sections"] == {"guarded": {"a": 2.0}}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("lost"), 1), (cf.Missing("absent"), 4)]
)
def test_a_section_that_fails_is_left_out(
    bench: Bench, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    bench.broken["guarded"] = error
    assert bench.measure(free={"x": 1.0}) == status
    assert f"guarded is left out: {error}" in capsys.readouterr().err
    [entry] = bench.entries()
    assert entry["sections"] == {"free": {"x": 1.0}}


def test_without_a_gpu_its_section_is_left_out_unless_asked_for(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.broken["guarded"] = bench.run.NoGpu("no GPU")
    assert bench.measure(free={"x": 1.0}) == 0
    assert "guarded is left out: no GPU" in capsys.readouterr().err
    assert bench.measure("--only", "guarded") == 4
    assert len(bench.entries()) == 1  # a run without measurements leaves no line


def test_sections_are_written_into_their_blocks(bench: Bench) -> None:
    before = bench.page.read_text("utf-8")
    bench.measure("--quick")
    assert bench.page.read_text("utf-8") == before
    bench.measure("--only", "free", "--write")
    now = bench.page.read_text("utf-8")
    begin, marked, written = now.partition("<!-- free: begin -->\n")
    assert marked and before.startswith(begin)
    assert written.startswith("Measured on ")
    assert written.endswith("| a |\n| --- |\n| 1 |\n\n- yes: right\n<!-- free: end -->\nMore.\n")
    with pytest.raises(SystemExit):  # a quick run is not worth writing
        bench.measure("--quick", "--write")


def test_a_busy_machine_is_not_compared_with(bench: Bench) -> None:
    bench.measure(guarded={"a": 2.0}, free={"x": 1.0})
    bench.busy = [True, False]
    assert bench.measure(guarded={"a": 0.5}, free={"x": 1.0}) == 0  # is not judged either
    assert [entry["busy"] for entry in bench.entries()] == [[], ["guarded"]]
    assert bench.measure(guarded={"a": 1.9}) == 0
    assert bench.measure(guarded={"a": 0.6}) == 1


def test_a_machine_is_busy_if_others_use_its_cores(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine, file = load("measurement"), tmp_path / "stat"
    monkeypatch.setattr(machine, "STATISTICS", file)

    def write(user: int, idle: int, taken: int) -> None:
        file.write_text(f"cpu  {user} 0 5 {idle} 7 0 0 {taken} 0 0\ncpu0 1 2 3\n")

    for user, taken, is_busy in ((20, 0, False), (40, 0, True), (10, 30, True)):
        write(100, 200, 3)
        after = (100 + user, 300 - user - taken, 3 + taken)
        monkeypatch.setattr(machine.time, "sleep", lambda _, after=after: write(*after))
        assert machine.is_busy() == is_busy


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"sections": 3}', "nothing"])
def test_a_broken_line_is_named(load: Any, tmp_path: Path, line: str) -> None:
    file = tmp_path / "history.jsonl"
    good = json.dumps({"date": "2026-01-01", "sections": {}, "busy": []})
    file.write_text(f"{good}\n{line}\n", "utf-8")
    with pytest.raises(SystemExit, match=r"history\.jsonl, line 2 must be an entry"):
        load("history").read_history(file)


def test_the_history_of_the_project_can_be_read_and_shown(load: Any) -> None:
    history = load("history")
    entries = history.read_history(ROOT / "benchmarks/history.jsonl")
    assert entries
    for entry in entries:
        for name, ratios in entry["sections"].items():
            assert name in load("run").BENCHMARKS
            section = load("section").Section(name, (), (), (), ratios, True)
            changes = history.compare_section(name, section, [{**entry, "busy": []}])
            assert {change.verdict for change in changes} == {"same"}
            Console(quiet=True).print(history.render_changes(changes))


def test_the_section_of_the_horizon_says_whether_it_is_faster(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mdptoolbox")
    horizon = load("horizon_against_pymdptoolbox")
    monkeypatch.setattr(horizon, "QUICK_SIZES", ((5, 3),))
    section = horizon.measure(quick=True)
    assert list(section.ratios) == ["N = 5, M = 3"]
    (line,) = [check for check in section.checks if "faster than pymdptoolbox" in check.text]
    assert line.is_met == (section.ratios["N = 5, M = 3"] > 1.0)
