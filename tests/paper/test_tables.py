"""The paper's printed values, transcribed once more, and rows from outcomes that are known."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from paper import (
    mnist_learners,
    random_policy,
    table_fedsgd,
    table_main,
    table_mnist,
    table_states,
    theory,
)
from paper.cells import CellStore
from paper.covert_runs import RunOutcome, Setup
from paper.experiment import Request

from covertfl.evaluation.horizon import HorizonEvaluation

# Table 1: eavesdropper and learner of scenario 1, eavesdropper and learner of scenario 2.
TABLE_1 = """
Greedy  0.83 0.84 0.83 0.82
Optimal 0.52 0.81 0.69 0.81
"""
# Table 2: eavesdropper and learner with FedSGD, eavesdropper and learner with seven oracle states.
TABLE_2 = """
Greedy  0.89 0.89 0.93 0.88
Optimal 0.56 0.88 0.34 0.88
"""
# Tables 3 and 4, their first rows of each size: good classes, size, the eavesdropper's accuracy
# under "greedy", under "optimal" for the three shares, the learner's under "greedy" and "optimal".
TABLE_3 = """
2 0.1 0.857 0.336 0.725 0.927 0.925 0.832
2 0.4 0.859 0.445 0.907 0.973 0.924 0.815
2 1   0.850 0.632 0.916 0.968 0.930 0.822
5 0.1 0.843 0.784 0.900 0.932 0.924 0.817
5 0.4 0.834 0.707 0.920 0.970 0.922 0.819
5 1   0.848 0.820 0.961 0.977 0.926 0.815
8 0.1 0.830 0.898 0.957 0.943 0.926 0.819
8 0.4 0.868 0.898 0.936 0.955 0.926 0.809
8 1   0.864 0.943 0.975 0.975 0.931 0.831
"""
TABLE_4 = """
2 0.1 0.861 0.320 0.611 0.852 0.860 0.840
2 0.4 0.884 0.318 0.734 0.895 0.862 0.830
2 1   0.852 0.393 0.864 0.955 0.859 0.843
5 0.1 0.875 0.461 0.655 0.807 0.638 0.838
5 0.4 0.843 0.595 0.795 0.916 0.854 0.833
5 1   0.864 0.000 0.000 0.000 0.857 0.840
8 0.1 0.868 0.000 0.000 0.000 0.856 0.839
8 0.4 0.841 0.805 0.916 0.914 0.862 0.832
8 1   0.861 0.000 0.000 0.000 0.853 0.840
"""


def read(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n") if line]


def test_main_table() -> None:
    found = {}
    for name, *values in read(TABLE_1):
        policy = {"Greedy": "greedy", "Optimal": "spga"}[name]  # stationary, by policy gradient
        for scenario, pair in ((1, values[:2]), (2, values[2:])):
            row = table_main.TableRow(scenario, policy, "public")
            found[row] = dict(zip(("eavesdropper", "learner"), map(float, pair), strict=True))
    for scenario in (1, 2):
        for policy in table_main.POLICIES:
            for decoy in table_main.DECOYS:
                row = table_main.TableRow(scenario, policy, decoy)
                assert table_main.find_printed(row) == found.get(row)


def test_small_tables_and_the_random_policy() -> None:
    rows = {name.lower(): tuple(map(float, values)) for name, *values in read(TABLE_2)}
    assert {name: values[:2] for name, values in rows.items()} == table_fedsgd.PAPER
    assert {name: values[2:] for name, values in rows.items()} == table_states.PAPER
    assert random_policy.PAPER == {"random": (None, 0.805), "optimal": (None, 0.925)}


@pytest.mark.parametrize(("clients", "text"), [(20, TABLE_3), (50, TABLE_4)])
def test_image_tables(clients: int, text: str) -> None:
    """The learner's columns are exchanged back, and 0.000 is no accuracy (D23)."""
    lines = [list(map(float, line)) for line in read(text)]
    found = table_mnist.list_rows(clients)
    assert len(found) == 3 * len(lines) == 27
    for number, row in enumerate(found):
        classes, size, greedy, *by_share, under_greedy, under_optimal = lines[number // 3]
        assert (row.public.classes, row.public.size) == (classes, size)
        assert row.public.class_share == (0.99, 0.9, None)[number % 3]
        assert row.eavesdropper == {"greedy": greedy, "optimal": by_share[number % 3] or None}
        assert row.learner == {"greedy": under_optimal, "optimal": under_greedy}


def test_settings_cannot_be_changed() -> None:
    for settings in (Request(), table_main.make_setup("sound"), theory.THEORY):
        with pytest.raises(FrozenInstanceError):
            settings.name = "other"  # type: ignore[misc, union-attr]


# --- rows from outcomes that are known -----------------------------------------------------------

LEARNERS = {"greedy": (0.7, 0.7), "optimal": (0.9, 0.8), "random": (0.6, 0.5)}


def make_outcome(accuracy: float) -> RunOutcome:
    exact = HorizonEvaluation(0.0, 0.0, 0.5, 0.25, 1.0, 1.0, 1.0, 0.0)
    return RunOutcome([0.1, accuracy], [0.1, 0.1], 0.1, 0.1, 0.0, 0.25, True, 2, exact)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[Setup]:
    """Learners that gain 0.01 with each setup; the setups that were asked for."""
    setups: list[Setup] = []

    def find(setup: Setup, policies: Any, *_: Any) -> tuple[table_mnist.Outcomes, int]:
        gain = 0.01 * len(setups)
        setups.append(setup)
        return {
            (name, 0): [make_outcome(last + gain) for last in LEARNERS[name]] for name in policies
        }, 0

    monkeypatch.setattr(table_mnist, "compute_outcomes", find)
    return setups


@pytest.mark.usefixtures("known")
def test_difference_is_optimal_minus_random_paired_by_seed(tmp_path: Path) -> None:
    result = random_policy.run(Request(), CellStore(tmp_path))
    assert result["difference"]["mean"] == pytest.approx(0.3)
    assert result["difference"]["interval"] == pytest.approx([0.3, 0.3])
    found = {row["policy"]: row["learner"]["mean"] for row in result["rows"]}
    assert found == pytest.approx({"optimal": 0.85, "random": 0.55})


def test_every_variant_changes_the_setup_and_gains_are_over_the_rows_policy(
    tmp_path: Path, known: list[Setup]
) -> None:
    result = mnist_learners.run(Request(), CellStore(tmp_path))
    variants = list(mnist_learners.VARIANTS)
    assert len(set(known)) == len(variants)
    assert known[0] == table_mnist.make_setup("sound", 20, quick=False)
    assert list(dict.fromkeys(row["variant"] for row in result["rows"])) == variants
    for row in result["rows"]:
        mean = sum(LEARNERS[row["policy"]]) / 2
        gain = 0.01 * variants.index(row["variant"])
        assert row["learner"]["mean"] == pytest.approx(mean + gain)
        assert row["gain"]["mean"] == pytest.approx(0.85 - mean)


def test_printed_learners() -> None:
    """0.925 and 0.805 in the text; the greedy learner is the mean of nine printed values."""
    printed = mnist_learners.find_printed()
    assert printed["optimal"] == (None, 0.925) and printed["random"] == (None, 0.805)
    values = (0.832, 0.815, 0.822, 0.817, 0.819, 0.815, 0.819, 0.809, 0.831)
    assert printed["greedy"][1] == pytest.approx(sum(values) / 9, abs=5e-4)
