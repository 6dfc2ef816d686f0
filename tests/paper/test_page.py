"""The page is what the committed results say, and the results are what the code gives."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper.page import (
    IMAGES,
    PREFIX,
    Table,
    format_difference,
    format_mean,
    format_share,
    render_page,
    render_readings,
    render_result,
)
from paper.pictures import PICTURES
from paper.results import load_results
from paper.run import EXPERIMENTS, OTHER_READINGS
from rich.console import Console

from covertfl.tasks import mnist
from tests import ROOT

RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "reproduction.md"
FOLDER = Path(os.environ.get("COVERTFL_DATA", ".")) / "mnist"
HAS_MNIST = all((FOLDER / name).is_file() for name in mnist.MD5)
ROUNDING = 0.01  # of an accuracy, on another processor


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return content


def test_page_is_up_to_date() -> None:
    """Made by python -m paper page --out results --page docs/reproduction.md."""
    found = load_results(RESULTS, list(EXPERIMENTS))
    names = list(EXPERIMENTS)
    others = {reading: load_results(RESULTS / reading, names) for reading in OTHER_READINGS}
    assert PAGE.read_text("utf-8") == render_page(found, others)


def test_nothing_is_missing() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == set(EXPERIMENTS)
    for name in PICTURES:
        assert (PAGE.parent / IMAGES / f"{PREFIX}{name}.png").exists()


def test_results_say_how_they_were_made() -> None:
    for name in EXPERIMENTS:
        made, experiment = load(name)["made"], EXPERIMENTS[name]
        assert (load(name)["title"], load(name)["paper_place"]) == (
            experiment.title,
            experiment.paper,
        )
        assert made["command"].startswith(f"python -m paper {name}")
        assert all(made[key] for key in ("date", "machine", "versions"))


def test_numbers_in_words() -> None:
    entry = {"mean": 0.5, "interval": [0.4, 0.6]}
    assert format_mean(entry) == "0.500 [0.400, 0.600]"
    assert format_mean({"mean": 0.5, "interval": None}, 1) == "0.5"
    assert format_share(entry) == "50% [40, 60]"
    assert format_difference(entry, 0.55) == "-0.050"
    assert format_difference(entry, 0.7) == "**-0.200**"
    assert format_difference(entry, None) == ""
    assert str(Table(["a", "b"], [["1", "2"]], "lr")) == "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"


@pytest.mark.parametrize("name", ["table-main", "theory", "figure-spga"])
def test_a_result_is_shown_on_the_console_as_tables(name: str) -> None:
    result, console = load(name), Console(width=110, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(render_result(result, "out"))
    shown = capture.get()
    assert shown.startswith(f"{name}: {result['title']}")
    assert f"in full in out/{name}.json" in shown
    assert not any(mark in shown for mark in ("|", "**", "`", "##", "![", "…"))
    if name == "table-main":
        row = result["rows"][0]
        assert f"{row['eavesdropper']['mean']:.3f}" in shown
        assert f"{row['paper']['learner']:.3f}" in shown


def make_result(name: str, differences: Sequence[float], reading: str = "sound") -> dict[str, Any]:
    return {
        "experiment": name,
        "made": {"command": f"python -m paper {name} in {reading}", "reading": reading},
        "rows": [
            {
                "policy": "greedy",
                "learner": {"mean": 0.5 + difference},
                "eavesdropper": {"mean": 0.25},
                "paper": {"learner": 0.5, "eavesdropper": None},
            }
            for difference in differences
        ],
    }


def test_readings_side_by_side_by_hand() -> None:
    sound = [make_result("a", [0.1]), make_result("b", [0.1, 0.3])]
    known = {"a": [-0.01], "b": [0.0, 0.3], "c": [0.0]}
    code = [make_result(name, values, "paper-code") for name, values in known.items()]
    plain = [make_result("b", [0.4, 0.6], "paper-text"), {"experiment": "a", "curves": []}]
    both = render_readings(sound, {"paper-text": plain, "paper-code": code})
    assert "| learner, sound | learner, paper-text | learner, paper-code | eavesdropper," in both
    assert "| a | greedy | 1 | +0.100 |  | -0.010 |  |  |  |" in both
    assert "| b | greedy | 2 | +0.200 (+0.100 to +0.300) | +0.500 (+0.400 to +0.600) |" in both
    assert "the learner of a is within 0.010 of the paper's" in both
    assert "the learner of b is not" in both and "reproduce c" not in both
    assert "`python -m paper b in paper-text`, `python -m paper b in paper-code`" in both
    one = render_readings(sound, {"paper-text": [], "paper-code": code})
    assert "| a | greedy | 1 | +0.100 | -0.010 |  |  |" in one and "results/paper-text" not in one
    assert render_readings(sound, {"paper-text": [], "paper-code": []}) == ""


def test_figures_of_other_readings_follow_their_section() -> None:
    found = {
        reading: load_results(RESULTS / reading, ["figure-cost"]) for reading in OTHER_READINGS
    }
    page = render_page(load_results(RESULTS, ["figure-cost", "theory"]), found)
    places = [
        page.index(part)
        for part in (
            "\n## figure-cost\n",
            "](images/reproduction-figure-cost.png)",
            "\n### figure-cost in the reading paper-text\n",
            "](images/reproduction-paper-text-figure-cost.png)",
            "\n### figure-cost in the reading paper-code\n",
            "](images/reproduction-paper-code-figure-cost.png)",
            "\n## theory\n",
        )
    ]
    assert places == sorted(places)


# --- one cell of each table, from scratch -------------------------------------------------------


def recompute(setup: Any, policy: str, public: Any, stride: int, device: str = "cpu") -> Any:
    from paper.covert_runs import Batch, Condition, train

    return train(Batch(setup, ((0, Condition(policy, public)),), device, stride))[0][0]


@pytest.mark.slow
def test_main_table_again() -> None:
    pytest.importorskip("torch")
    from paper.covert_runs import PublicData
    from paper.table_main import make_setup

    rows = load("table-main")["rows"]
    (row,) = (
        row
        for row in rows
        if (row["scenario"], row["policy"], row["decoy"]) == (2, "optimal", "public")
    )
    public = PublicData(positive_share=0.1)
    outcome = recompute(make_setup("sound"), "optimal", public, 1)
    assert outcome.learner[-1] == pytest.approx(row["by_seed"]["learner"][0], abs=ROUNDING)
    assert outcome.final == pytest.approx(row["by_seed"]["eavesdropper"][0], abs=ROUNDING)
    assert outcome.exposure == pytest.approx(row["by_seed"]["exposure"][0], abs=1e-5)
    assert row["expected"]["named"] == pytest.approx(outcome.expected.named_prob, abs=1e-5)


def list_setups() -> dict[str, Any]:
    """The federation behind each MNIST table, as its result says it was run."""
    from paper import table_fedsgd, table_mnist, table_states

    def is_quick(name: str) -> bool:
        return bool(load(name)["made"]["quick"])

    return {
        "table-mnist-20": table_mnist.make_setup("sound", 20, quick=is_quick("table-mnist-20")),
        "table-mnist-50": table_mnist.make_setup("sound", 50, quick=is_quick("table-mnist-50")),
        "table-fedsgd": table_fedsgd.make_setup("sound", quick=is_quick("table-fedsgd")),
        "table-states": table_states.make_setup("sound", quick=is_quick("table-states")),
        "random-policy": table_mnist.make_setup("sound", 20, quick=is_quick("random-policy")),
    }


def list_publics() -> dict[str, Any]:
    """The eavesdropper's data in the first row of each MNIST table."""
    from paper import table_fedsgd, table_mnist, table_states

    first = table_mnist.list_rows(20)[0].public
    return {
        "table-mnist-20": first,
        "table-mnist-50": first,
        "table-fedsgd": table_fedsgd.PUBLIC,
        "table-states": table_states.PUBLIC,
    }


@pytest.mark.skipif(not HAS_MNIST, reason="COVERTFL_DATA has no mnist folder with the four files")
@pytest.mark.slow
@pytest.mark.parametrize("name", list(list_publics()))
def test_rounds_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exposure and completion of every seed, which do not depend on weights."""
    pytest.importorskip("torch")
    from paper.covert_runs import Batch, Condition, train

    from covertfl.kernels.autograd.module import describe_layout
    from covertfl.runs.train import KernelCache
    from tests.support.still_kernel import StillKernel

    def find(_: Any, task: Any, sections: Any) -> StillKernel:
        return StillKernel(describe_layout(task.make_model()))

    monkeypatch.setattr(KernelCache, "find", find)
    setup, public = list_setups()[name], list_publics()[name]
    assert load(name)["settings"]["rounds"] == setup.rounds
    for row in load(name)["rows"][:2]:
        exposures, condition = row["by_seed"]["exposure"], Condition(row["policy"], public)
        runs = tuple((seed, condition) for seed in range(len(exposures)))
        outcomes, _ = train(Batch(setup, runs, "cpu", 1))
        assert [run.exposure for run in outcomes] == pytest.approx(exposures, abs=1e-5)
        completed = np.mean([run.completed for run in outcomes])
        assert completed == pytest.approx(row["completion"]["mean"], abs=1e-5)


def has_gpu() -> bool:
    torch = pytest.importorskip("torch")
    return bool(torch.cuda.is_available())


@pytest.mark.skipif(not HAS_MNIST, reason="COVERTFL_DATA has no mnist folder with the four files")
@pytest.mark.parametrize("name", list(list_publics()))
def test_mnist_run_again_on_a_gpu(name: str) -> None:
    """Learner and eavesdropper of one whole run of each table."""
    if not has_gpu():
        pytest.skip("needs a GPU")
    from paper.table_mnist import STRIDE

    (row,) = (row for row in load(name)["rows"][:2] if row["policy"] == "optimal")
    setup, public = list_setups()[name], list_publics()[name]
    outcome = recompute(setup, "optimal", public, STRIDE, "cuda")
    assert outcome.learner[-1] == pytest.approx(row["by_seed"]["learner"][0], abs=ROUNDING)
    assert outcome.final == pytest.approx(row["by_seed"]["eavesdropper"][0], abs=ROUNDING)
