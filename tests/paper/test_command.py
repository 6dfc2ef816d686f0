"""Experiments run in a much reduced form, from the command line to the page."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from paper import (
    figure_cost,
    figure_spga,
    figure_tracking,
    table_fedsgd,
    table_main,
    table_mnist,
    theory_queues,
    theory_structure,
    theory_updates,
)
from paper.__main__ import app
from paper.experiment import Experiment, Request
from paper.page import SHOWN, render_page, render_section
from paper.pictures import PICTURES
from paper.results import format_command, load_results
from paper.run import EXPERIMENTS, choose_names, rebuild_page, reproduce
from typer.testing import CliRunner

from covertfl.errors import InvalidInput, Missing
from covertfl.runs import participation
from covertfl.tasks import mnist

FOLDER = Path(os.environ.get("COVERTFL_DATA", ".")) / "mnist"
HAS_MNIST = all((FOLDER / name).is_file() for name in mnist.MD5)
ON_MNIST = (
    "table-mnist-20",
    "table-mnist-50",
    "table-fedsgd",
    "table-states",
    "random-policy",
    "mnist-learners",
)
REDUCED: tuple[tuple[Any, dict[str, Any]], ...] = (
    (participation, {"MEASURED_ROUNDS": 2000, "REPORTED_ROUNDS": 2000}),
    (table_main, {"ROUNDS": 6, "UPDATES": 2, "POLICIES": ("greedy", "optimal")}),
    (table_mnist, {"QUICK_THINNING": 60, "QUICK_DIVISOR": 15, "QUICK_ROWS": (0, 26)}),
    (table_mnist, {"QUICK_SEEDS": 1}),
    (table_fedsgd, {"QUICK_DIVISOR": 30}),
    (figure_spga, {"PRINTED_ITERATIONS": 20, "ITERATIONS": 20, "ROLLOUT": 50, "QUICK_RUNS": 2}),
    (
        figure_tracking,
        {"BLOCK": 4, "ITERATIONS": 32, "CHANGE_AT": 16, "ROLLOUT": 50, "QUICK_RUNS": 2},
    ),
    (figure_cost, {"QUICK_VALUES": 4, "QUICK_RUNS": 4, "ROUNDS": 50, "BURN_IN": 5}),
    (theory_structure, {"QUICK_MODELS": 5}),
    (theory_queues, {"QUICK_QUEUES": 2, "ROUNDS": 20, "RUNS": 5}),
    (theory_updates, {"QUICK_UPDATES": (2, 4), "QUICK_RUNS": 2}),
)


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in REDUCED:
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


POSSIBLE = [name for name in EXPERIMENTS if HAS_MNIST or name not in ON_MNIST]
FAST = ["figure-accuracy", "figure-cost"]


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("names", [FAST, pytest.param(POSSIBLE, marks=pytest.mark.slow)])
def test_experiments_reach_the_page(tmp_path: Path, names: list[str]) -> None:
    told: list[float] = []
    results = reproduce(
        names, Request(quick=True), tmp_path, on_progress=lambda _, share: told.append(share)
    )
    assert max(told) <= 1.0
    for result in results:
        name = result["experiment"]
        assert result["made"]["command"] == f"python -m paper {name} --quick"
        assert json.loads((tmp_path / f"{name}.json").read_text("utf-8"))["made"] == result["made"]
        assert (tmp_path / f"{name}.png").exists() == (name in PICTURES)
    page = render_page(load_results(tmp_path, list(EXPERIMENTS)), {})
    for name in names:
        assert f"\n## {name}\n" in page
    assert "nan" not in page


@pytest.mark.parametrize("uses_gpu", [True, False])
def test_an_experiment_is_given_the_device_if_it_uses_one(
    uses_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def note(request: Request, _: object) -> dict[str, Any]:
        found.append(request.device)
        return {}

    busy = Experiment("busy", "Busy", "nowhere", note, uses_gpu=uses_gpu)
    monkeypatch.setattr("paper.run.EXPERIMENTS", {"busy": busy})
    monkeypatch.setattr("paper.results.describe_machine", lambda device: device)
    monkeypatch.setattr("covertfl.kernels.choose.check_device", lambda device: None)
    reproduce(["busy"], Request(device="cuda"), tmp_path)
    assert found == ["cuda" if uses_gpu else "cpu"]


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    for device in ("cuda:7", "gpu"):
        with pytest.raises(InvalidInput, match="device"):
            reproduce(["theory"], Request(device=device), tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("reduced")
def test_command_line(tmp_path: Path) -> None:
    run = CliRunner()
    asked = ["figure-tracking", "--quick", "--seeds", "3", "--out", str(tmp_path)]
    page = tmp_path / "docs" / "page.md"
    found = run.invoke(app, [*asked, "--page", str(page), "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    content = json.loads(found.stdout)
    assert content["results"][0]["settings"]["runs"] == 3
    assert "figure-tracking" in page.read_text("utf-8")
    assert (page.parent / "images" / "reproduction-figure-tracking.png").exists()
    again = run.invoke(app, ["page", "--out", str(tmp_path)], catch_exceptions=False)
    assert again.exit_code == 0
    written = (tmp_path / "reproduction.md").read_text("utf-8")
    assert written == page.read_text("utf-8")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"an experiment must be table-main, .*got 'table-9'"):
        choose_names(["theory", "table-9"])
    with pytest.raises(InvalidInput, match="preset must be one of sound"):
        Request(reading="paper")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="seeds must lie in"):
        Request(seeds=0)
    with pytest.raises(InvalidInput, match=r"first_seed must lie in 0\.\..*, got -1"):
        Request(first_seed=-1)
    with pytest.raises(InvalidInput, match=r"first_seed is only for table-main, .*got theory"):
        reproduce(["table-main", "theory"], Request(first_seed=3), tmp_path)
    run = CliRunner()
    found = run.invoke(app, ["page", "--out", str(tmp_path)])
    assert isinstance(found.exception, InvalidInput)
    for text in ("{", "[]", "{}", '{"experiment": "table-main"}'):
        (tmp_path / "theory.json").write_text(text)
        with pytest.raises(InvalidInput, match=r"theory\.json (is not|must hold)"):
            load_results(tmp_path, ["theory"])
    (tmp_path / "theory.json").write_text('{"experiment": "theory"}')
    with pytest.raises(InvalidInput, match=r"theory\.json is not a result of this version"):
        rebuild_page(tmp_path, tmp_path / "page.md")
    with pytest.raises(InvalidInput, match=r"theory\.json cannot be made"):
        reproduce(["theory"], Request(quick=True), tmp_path / "theory.json")
    for options in (["--quick"], ["--seeds", "3"], ["--first-seed", "3"], ["--device", "cuda"]):
        found = run.invoke(app, ["page", *options, "--out", str(tmp_path)])
        assert isinstance(found.exception, InvalidInput)
        assert "computes nothing" in str(found.exception)


def test_missing_images_are_missed_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def miss() -> None:
        raise Missing("no images")

    names = ["theory", "table-mnist-20"]
    known = {name: replace(EXPERIMENTS[name], check=miss) for name in names[1:]}
    monkeypatch.setattr("paper.run.EXPERIMENTS", {**EXPERIMENTS, **known})
    with pytest.raises(Missing, match="no images"):
        reproduce(names, Request(quick=True), tmp_path)
    assert not list((tmp_path / "cells").iterdir())


def test_every_experiment_has_a_section() -> None:
    assert set(SHOWN) == set(EXPERIMENTS)
    assert choose_names(["all"]) == list(EXPERIMENTS)
    assert choose_names(["theory", "table-main", "theory"]) == ["theory", "table-main"]


def test_command_names_what_is_not_usual() -> None:
    request = Request("paper-code", 3, True, "cuda", 7)
    assert format_command("table-states", request) == (
        "python -m paper table-states --preset paper-code --seeds 3 --first-seed 7 --quick "
        "--device cuda"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("reduced")
def test_seeds_from_another_first_one_on(tmp_path: Path) -> None:
    """Two runs of one seed each are the run of both seeds, and say which seeds they are."""
    pytest.importorskip("torch")
    both, second = (
        reproduce(["table-main"], Request(quick=True, seeds=seeds, first_seed=first), tmp_path)[0]
        for seeds, first in ((2, 0), (1, 1))
    )
    assert (both["made"]["first_seed"], second["made"]["first_seed"]) == (0, 1)
    for row, other in zip(both["rows"], second["rows"], strict=True):
        assert other["by_seed"]["learner"] == row["by_seed"]["learner"][1:]
    assert "2 seeds (0 to 1)" in render_section(both)
    assert "seed 1, acceptance" in render_section(second)
