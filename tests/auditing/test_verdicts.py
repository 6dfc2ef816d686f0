"""What an audit says of each eavesdropper and of the best of each tier, in words."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import covertfl as cf


def find_wilson(share: float, runs: int) -> tuple[float, float]:
    """Return both solutions p of (s - n p)^2 = z^2 n p (1 - p)."""
    z2 = 1.959963984540054**2
    middle, spread = 2 * runs * share + z2, z2 * (z2 + 4 * runs * share * (1 - share))
    return tuple((middle + side * math.sqrt(spread)) / (2 * (runs + z2)) for side in (-1, 1))  # type: ignore[return-value]


def make_threat(
    named: float | None, runs: int = 20, guess: float = 0.5, name: str = "majority", **changes: Any
) -> cf.Threat:
    interval = None if named is None else find_wilson(named, runs)
    threat = cf.Threat(name, "sees", named, interval, None, None, None, None, guess, num_runs=runs)
    return replace(threat, **changes)


@pytest.mark.parametrize(
    ("named", "runs", "guess", "words"),
    [
        (1.0, 10, 0.5, "defeats the scheme"),
        (0.9, 10, 0.5, "defeats the scheme"),
        (0.89, 100, 0.5, "does better than a guess"),
        (0.7, 100, 0.5, "does better than a guess"),
        # Seven of ten may well be luck, and so may one of one.
        (0.7, 10, 0.5, "no clear difference from a guess"),
        (1.0, 1, 0.5, "no clear difference from a guess"),
        (0.0, 1, 0.5, "no clear difference from a guess"),
        (0.5, 1000, 0.5, "no clear difference from a guess"),
        (0.3, 100, 0.5, "does worse than a guess"),
        (0.11, 100, 0.5, "does worse than a guess"),
        (0.1, 10, 0.5, "is misled"),
        (0.0, 10, 0.5, "is misled"),
        # Of three trajectories a guess names the true one in a third of runs.
        (0.45, 200, 1 / 3, "does better than a guess"),
        (0.45, 200, 0.5, "no clear difference from a guess"),
        (1 / 3, 200, 1 / 3, "no clear difference from a guess"),
    ],
)
def test_several_runs(named: float, runs: int, guess: float, words: str) -> None:
    verdict = make_threat(named, runs, guess).verdict
    assert verdict == f"{words}: names the true model in {named:.0%} of runs"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"advantage": 0.0099}, "in 100% of runs and gains nothing over training alone"),
        ({"advantage": 0.01}, "in 100% of runs and gains 0.01 over training alone"),
        ({"advantage": -0.3}, "in 100% of runs and gains nothing over training alone"),
        ({"placed": 0.9}, "in 100% of runs"),
        ({"placed": 0.63}, "only 63% of the queries could be placed on the right trajectory"),
        ({"names_true": None, "interval": None}, "true is not in the public records"),
        ({"name": "train-alone"}, "what its own data is worth without listening"),
    ],
)
def test_what_was_gained_and_what_cannot_be_judged(changes: dict[str, Any], words: str) -> None:
    assert replace(make_threat(1.0), **changes).verdict.endswith(words)


@pytest.fixture(scope="module")
def report(finished: Path) -> cf.AuditReport:
    return cf.audit(finished, eavesdroppers=["majority"])


@pytest.mark.parametrize(
    ("named", "favourites", "probability", "words"),
    [
        (1.0, (1,), 0.83, "believes in the true model: trajectory 2 of 2 has probability 83%"),
        (0.0, (0,), 0.9, "believes in a decoy: trajectory 1 of 2 has probability 90%"),
        (0.5, (0, 1), 0.5, "cannot choose: trajectories 1 and 2 have probability 50%"),
    ],
)
def test_a_single_run(
    named: float,
    favourites: tuple[int, ...],
    probability: float,
    words: str,
    report: cf.AuditReport,
) -> None:
    """It has a belief, and what the same rule achieves on simulated runs."""
    conviction = replace(
        report.threats[0].conviction,  # type: ignore[type-var]
        favourites=favourites,
        probability=probability,
        named=named,
    )
    threat = make_threat(named, 1, conviction=conviction)
    assert threat.verdict == words
    told = replace(threat, simulated=make_threat(0.55))
    low, high = find_wilson(0.55, 20)
    assert told.verdict == (
        f"{words}; on 20 simulated runs of the same settings it is right in 55% "
        f"[{low:.0%}, {high:.0%}]"
    )
    entry = told.to_dict()
    assert entry["belief"]["probability"] == probability
    assert entry["belief"]["right"] == (None if named == 0.5 else named == 1.0)
    assert entry["simulated"]["runs"] == 20
    lost = replace(threat, simulated=make_threat(0.55, placed=0.5))
    assert lost.verdict.endswith("its queries could not be placed on the right trajectories")


def describe_tiers(report: cf.AuditReport, *threats: cf.Threat) -> dict[str, Any]:
    content: dict[str, Any] = replace(report, threats=threats).to_dict()["tiers"]
    return content


def test_the_best_of_a_tier_names_the_truth_most_often(report: cf.AuditReport) -> None:
    better: dict[str, Any] = {"final_accuracy": 0.8, "gain": 0.3}
    tiers = describe_tiers(
        report,
        make_threat(0.2),
        make_threat(0.85, name="minority", **better),
        make_threat(0.85, name="repeat", final_accuracy=0.7),
        # Training alone does not listen, so it is never the best.
        make_threat(1.0, name="train-alone", tier="B"),
        make_threat(0.55, name="validation", tier="B"),
    )
    assert list(tiers) == ["A", "B"] and tiers["B"]["best"] == "validation"
    low, high = find_wilson(0.85, 20)
    assert tiers["A"] == {
        "title": "A listener",
        "best": "minority",
        "names_true": 0.85,
        "interval": [low, high],
        "runs": 20,
        **better,
        "verdict": (
            "A listener: the best of 3, minority, names the true model in 85% "
            f"[{low:.0%}, {high:.0%}] of 20 runs; accuracy 0.800, gain +0.300."
        ),
    }


def test_the_best_of_a_single_run_is_that_of_the_simulated_ones(report: cf.AuditReport) -> None:
    """A rule that was right once is not the best one."""
    belief = report.threats[0].conviction
    assert belief is not None
    lucky = make_threat(1.0, 1, simulated=make_threat(0.1), conviction=belief)
    unlucky = make_threat(0.0, 1, name="minority", simulated=make_threat(0.9), conviction=belief)
    tier = describe_tiers(report, lucky, unlucky)["A"]
    assert (tier["best"], tier["names_true"]) == ("minority", 0.9)
    assert "names the true model in 90%" in tier["verdict"]
    assert "of 20 simulated runs" in tier["verdict"]
    for named, words in ((1.0, "is right"), (0.0, "is wrong"), (0.5, "cannot choose")):
        once = make_threat(named, 1, conviction=replace(belief, named=named), final_accuracy=0.7)
        alone = describe_tiers(report, once)["A"]["verdict"]
        assert alone == f"A listener: majority {words} in this run; accuracy 0.700."


def test_nobody_is_the_best_where_nobody_can_be_judged(report: cf.AuditReport) -> None:
    tier = describe_tiers(report, make_threat(0.95, placed=0.63))["A"]
    assert tier["best"] is None and tier["names_true"] is None
    assert tier["verdict"] == (
        "A listener: nobody can be judged: too few queries are on their right trajectory."
    )
    assert describe_tiers(report, make_threat(None))["A"]["verdict"].endswith(
        "which trajectory is true is not in the public records."
    )


@pytest.mark.parametrize(
    ("five", "twenty", "words"),
    [
        (
            0.95,
            1.0,
            "5 labelled examples are enough to be right in 90% of runs; training alone on ",
        ),
        (
            0.85,
            0.9,
            "20 labelled examples are enough to be right in 90% of runs; training alone on",
        ),
        (0.5, 0.85, "20 labelled examples are not enough to be right in 90% of runs."),
    ],
)
def test_how_many_labelled_examples_are_enough(
    five: float, twenty: float, words: str, report: cf.AuditReport
) -> None:
    figures: dict[str, Any] = {"tier": "D", "final_accuracy": 0.75, "gain": 0.125}
    few = make_threat(five, name="fresh-labels-5", **figures)
    more = make_threat(twenty, name="fresh-labels", **figures)
    verdict = describe_tiers(report, few, more)["D"]["verdict"]
    assert words in verdict and ("them gives 0.625." in verdict) == ("not enough" not in words)
