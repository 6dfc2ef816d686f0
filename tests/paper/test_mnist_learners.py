"""The learner on MNIST by variant and policy, from outcomes that are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from paper import mnist_learners, table_mnist
from paper.experiment import Request
from paper.trials.cells import CellStore
from paper.trials.covert_runs import RunOutcome
from paper.trials.setups import Setup

from covertfl.evaluation.horizon import HorizonEvaluation

LEARNERS = {"greedy": 0.7, "optimal": 0.9, "random": 0.6}


def outcome(accuracy: float) -> RunOutcome:
    exact = HorizonEvaluation(0.0, 0.0, 0.5, 0.25, 1.0, 1.0, 1.0, 0.0)
    return RunOutcome([0.1, accuracy], [0.1, 0.1], 0.1, 0.1, 0.0, 0.25, True, 2, exact)


def test_every_variant_changes_the_setup_and_gains_are_over_the_rows_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups: list[Setup] = []

    def known(
        asked: Sequence[Setup], policies: Any, *_: Any
    ) -> tuple[list[table_mnist.Outcomes], int]:
        setups.extend(asked)
        return [
            {(name, 0): [outcome(LEARNERS[name] + 0.01 * place)] * 2 for name in policies}
            for place in range(len(asked))
        ], 0

    monkeypatch.setattr(table_mnist, "compute_outcomes", known)
    result = mnist_learners.run(Request(), CellStore(tmp_path))
    assert len(set(setups)) == len(mnist_learners.VARIANTS)
    assert setups[0] == table_mnist.make_setup("sound", 20, quick=False)
    assert list(dict.fromkeys(row["variant"] for row in result["rows"])) == list(
        mnist_learners.VARIANTS
    )
    for row in result["rows"]:
        place = list(mnist_learners.VARIANTS).index(row["variant"])
        assert row["learner"]["mean"] == pytest.approx(LEARNERS[row["policy"]] + 0.01 * place)
        assert row["gain"]["mean"] == pytest.approx(0.9 - LEARNERS[row["policy"]])


@pytest.mark.parametrize(("reading", "sizes"), [("sound", (5, 4)), ("paper-code", (6, 0))])
def test_parts_have_every_variant_once_but_for_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: Any, sizes: tuple[int, int]
) -> None:
    """The published code's learning rate is the one that some variants have."""
    asked: list[Setup] = []

    def note(setups: Sequence[Setup], *_: Any) -> tuple[list[table_mnist.Outcomes], int]:
        asked.extend(setups)
        return [{} for _ in setups], 0

    monkeypatch.setattr(table_mnist, "compute_outcomes", note)
    request = Request(reading)
    for number, size in enumerate(sizes):
        before = len(asked)
        mnist_learners.run_part(request, CellStore(tmp_path), number)
        assert len(asked) - before == size
        assert len({setup.learning_rate for setup in asked[before:]}) <= 1
    known = set(mnist_learners.list_setups(request).values())
    table = table_mnist.make_setup(reading, 20, quick=False)
    assert set(asked) == known - {table} and len(asked) == len(set(asked))


def test_printed_learners() -> None:
    """0.925 and 0.805 in the text; the greedy learner is the mean of nine printed values."""
    printed = mnist_learners.find_printed()
    assert printed["optimal"] == (None, 0.925) and printed["random"] == (None, 0.805)
    values = (0.832, 0.815, 0.822, 0.817, 0.819, 0.815, 0.819, 0.809, 0.831)
    assert printed["greedy"][1] == pytest.approx(sum(values) / 9, abs=5e-4)
