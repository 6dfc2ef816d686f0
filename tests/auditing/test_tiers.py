"""Tiers: who is in which, the best of each, and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from covertfl.auditing.summary import summarise_audits
from covertfl.auditing.threats import Finding, Threat, summarise_findings
from covertfl.auditing.tiers import TIERS, group_by_tier
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.intervals import wilson_interval
from tests.support.audits import find_threat, make_audit


def make_findings(
    named: int, runs: int, accuracy: float = 0.7, baseline: float = 0.5
) -> list[Finding]:
    return [
        Finding(float(run < named), (accuracy,), (0.4, 0.6), baseline=baseline)
        for run in range(runs)
    ]


def summarise(name: str, named: int, runs: int = 20, **figures: Any) -> Threat:
    return summarise_findings(name, make_findings(named, runs, **figures), None)


def test_every_eavesdropper_has_a_tier() -> None:
    threats = [summarise(name, 1) for name in EAVESDROPPERS]
    tiers = group_by_tier(threats)
    assert [tier.letter for tier in tiers] == list(TIERS)
    assert sum(len(tier.threats) for tier in tiers) == len(EAVESDROPPERS)
    members = {tier.letter: {threat.name for threat in tier.threats} for tier in tiers}
    assert {"majority", "likelihood", "map-spectrum", "two-runs"} <= members["A"]
    assert {"validation", "anti-validation", "trained-public"} <= members["B"]
    assert {"alignment", "first-moves", "mark", "trained"} <= members["C"]
    assert {"fresh-labels", "unlabelled"} <= members["D"]


def test_the_best_names_the_truth_most_often() -> None:
    threats = [
        summarise("majority", 4),
        summarise("minority", 17, accuracy=0.8),
        summarise("repeat", 17, accuracy=0.7),
        summarise("train-alone", 20),
        summarise("validation", 11),
    ]
    listener, public = group_by_tier(threats)
    assert listener.best is threats[1]
    # Training alone does not listen, so it is never the best listener.
    assert public.best is threats[4]
    low, high = wilson_interval(17, 20)
    assert listener.describe() == (
        f"A listener: the best of 3, minority, names the true model in 85% [{low:.0%}, {high:.0%}] "
        "of 20 runs; accuracy 0.800, gain +0.300."
    )
    content = listener.to_dict()
    assert (content["best"], content["runs"]) == ("minority", 20)
    assert content["names_true"] == pytest.approx(0.85)
    assert content["interval"] == pytest.approx([float(low), float(high)])
    assert content["gain"] == pytest.approx(0.3)


def test_a_single_run_is_told_by_the_simulated_ones() -> None:
    """A rule that was right once is not the best one."""
    lucky = dataclasses.replace(summarise("majority", 1, 1), simulated=summarise("majority", 2))
    unlucky = dataclasses.replace(summarise("minority", 0, 1), simulated=summarise("minority", 18))
    (tier,) = group_by_tier([lucky, unlucky])
    assert tier.best is unlucky
    assert "names the true model in 90%" in tier.describe()
    assert "of 20 simulated runs" in tier.describe()
    assert tier.to_dict()["names_true"] == pytest.approx(0.9)
    (alone,) = group_by_tier([summarise("majority", 1, 1)])
    assert alone.describe() == (
        "A listener: majority is right in this run; accuracy 0.700, gain +0.200."
    )


def test_nobody_is_the_best_where_nobody_can_be_judged() -> None:
    (tier,) = group_by_tier([dataclasses.replace(summarise("majority", 19), placed=0.63)])
    assert tier.best is None
    assert tier.describe() == (
        "A listener: nobody can be judged: too few queries are on their right trajectory."
    )
    assert tier.to_dict()["best"] is None


def test_verdicts_are_refused_where_too_few_queries_are_placed_rightly() -> None:
    poor = [make_audit(num_queries=100, misplaced=37) for _ in range(10)]
    report = summarise_audits(poor)
    verdict = find_threat(report, "majority").verdict
    assert verdict == (
        "cannot be judged: only 63% of the queries could be placed on the right trajectory"
    )
    assert report.to_dict()["tiers"]["A"]["best"] is None
    enough = [make_audit(num_queries=100, misplaced=10) for _ in range(10)]
    assert find_threat(summarise_audits(enough), "majority").verdict.startswith("defeats")


@pytest.mark.parametrize(
    ("named", "belief", "words"),
    [
        (1.0, (0.17, 0.83), "believes in the true model: trajectory 2 of 2 has probability 83%"),
        (0.0, (0.9, 0.1), "believes in a decoy: trajectory 1 of 2 has probability 90%"),
        (0.5, (0.5, 0.5), "cannot choose: trajectories 1 and 2 have probability 50%"),
    ],
)
def test_a_single_run_has_a_belief(named: float, belief: tuple[float, ...], words: str) -> None:
    threat = summarise_findings("majority", [Finding(named, None, belief)], None)
    assert threat.verdict == words
    told = dataclasses.replace(threat, simulated=summarise("majority", 11))
    low, high = wilson_interval(11, 20)
    assert told.verdict == (
        f"{words}; on 20 simulated runs of the same settings it is right in 55% "
        f"[{low:.0%}, {high:.0%}]"
    )
    entry = told.to_dict()
    assert entry["belief"]["probability"] == max(belief)
    assert entry["belief"]["right"] == (None if named == 0.5 else named == 1.0)
    assert entry["simulated"]["runs"] == 20
    lost = dataclasses.replace(threat, simulated=dataclasses.replace(told, placed=0.5, num_runs=20))
    assert lost.verdict.endswith("its queries could not be placed on the right trajectories")


def test_several_runs_have_no_belief() -> None:
    entry = summarise("majority", 11).to_dict()
    assert entry["belief"] is None and entry["simulated"] is None
