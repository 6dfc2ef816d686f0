"""One eavesdropper in one run and over several: ties, intervals, advantage and verdicts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from covertfl.auditing.summary import summarise_audits
from covertfl.auditing.threats import ScoreCache, Threat, listen
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.intervals import wilson_interval
from covertfl.kernels.weights import Vector
from covertfl.tasks.scores import Scores
from tests.support.audits import find_threat, make_audit
from tests.support.seen_queries import follow_schedule


def test_a_tie_counts_its_share() -> None:
    queries = follow_schedule([0, 1, 2, 2, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: False, 1: True, 2: False}, None)
    assert finding.named == 0.5 and finding.accuracy is None
    assert finding.belief == pytest.approx((0.2, 0.4, 0.4))
    assert listen(MajorityEavesdropper(Means()), queries, None, None).named is None


def test_a_finding_is_of_the_last_round() -> None:
    queries = follow_schedule([0, 1, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: True, 1: False}, None)
    assert finding.named == 0.0
    assert finding.belief == pytest.approx((1 / 3, 2 / 3))


class KnownScores:
    """Scores that are the weights themselves, in place of clients with a validation set."""

    def score(self, weights: Vector) -> float:
        return float(weights[0])

    def measure(self, weights: Vector) -> Scores:
        return Scores(float(weights[0]), 0.5 * float(weights[0]), 0.25, None)


def test_the_last_estimates_have_all_scores() -> None:
    queries = follow_schedule([0, 1, 1, 0])  # a tie, so that both latest weights are candidates
    scores: Any = ScoreCache(KnownScores())  # type: ignore[arg-type]
    finding = listen(MajorityEavesdropper(Means()), queries, None, scores)
    both = float(np.mean([queries[2].weights[0], queries[3].weights[0]]))
    assert finding.accuracy is not None and finding.accuracy[-1] == pytest.approx(both)
    assert finding.final == Scores(pytest.approx(both), pytest.approx(both / 2), 0.25)  # type: ignore[arg-type]


def test_scores_are_means_over_runs_that_have_them() -> None:
    runs = []
    for final in (Scores(0.8, 0.7, 0.9, 0.6), Scores(0.6, 0.5, None, 0.4), None):
        run = make_audit(1.0)
        findings = {
            name: dataclasses.replace(one, final=final) for name, one in run.findings.items()
        }
        runs.append(dataclasses.replace(run, findings=findings))
    threat = find_threat(summarise_audits(runs), "majority")
    expected = {"final_balanced_accuracy": 0.6, "final_auc": 0.9, "final_f1": 0.5}
    assert {name: threat.to_dict()[name] for name in expected} == pytest.approx(expected)
    assert threat.list_scores() == {name: getattr(threat, name) for name in expected}


def test_chances_have_wilson_intervals_with_halves() -> None:
    threat = find_threat(
        summarise_audits([make_audit(1.0), make_audit(0.5), make_audit(0.0)]), "majority"
    )
    low, high = wilson_interval(1.5, 3)
    assert threat.names_true == pytest.approx(0.5)
    assert threat.interval == pytest.approx((float(low), float(high)))
    # By its definition: both ends solve (s - n p)^2 = z^2 n p (1 - p).
    for p in threat.interval or ():
        assert (1.5 - 3 * p) ** 2 == pytest.approx(1.959964**2 * 3 * p * (1 - p), rel=1e-5)


def test_accuracies_have_t_intervals() -> None:
    finals = [0.6, 0.7, 0.95]
    runs = [make_audit(accuracy=(0.5, 0.9, final)) for final in finals]
    threat = find_threat(summarise_audits(runs), "majority")
    mean, deviation = np.mean(finals), np.std(finals, ddof=1)
    half = 4.302652729911275 * deviation / np.sqrt(3)  # Student's t, 2 degrees, 97.5%
    assert threat.final_accuracy == pytest.approx(mean)
    assert threat.final_interval == pytest.approx((mean - half, mean + half))
    # The learner's worst is the eavesdropper's best round.
    assert threat.peak_accuracy == pytest.approx((0.9 + 0.9 + 0.95) / 3)


def test_advantage_is_over_training_alone() -> None:
    runs = [make_audit(alone=(0.9, 0.5)), make_audit(accuracy=(0.2, 0.6), alone=(0.1, 0.7))]
    report = summarise_audits(runs)
    assert find_threat(report, "majority").advantage == pytest.approx(0.7 - 0.6)
    assert find_threat(report, "train-alone").advantage == pytest.approx(0.0)


def test_one_run_has_no_t_interval_and_unknown_figures_are_none() -> None:
    one = find_threat(summarise_audits([make_audit()]), "majority")
    assert one.final_interval is None and one.interval is not None
    unknown = make_audit(named=None, accuracy=None, alone=None, misplaced=None)
    threat = find_threat(summarise_audits([unknown, unknown]), "majority")
    figures = (threat.names_true, threat.interval, threat.final_accuracy, threat.peak_accuracy)
    assert figures == (None,) * 4 and threat.advantage is None


def make_threat(named: float | None, runs: int, guess: float = 0.5, **changes: Any) -> Threat:
    interval = None
    if named is not None:
        low, high = wilson_interval(named * runs, runs)
        interval = (float(low), float(high))
    threat = Threat("majority", "sees", named, interval, None, None, None, None, guess)
    return dataclasses.replace(threat, **changes)


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
def test_verdicts(named: float, runs: int, guess: float, words: str) -> None:
    verdict = make_threat(named, runs, guess).verdict
    assert verdict == f"{words}: names the true model in {named:.0%} of runs"


def test_verdicts_say_what_was_gained() -> None:
    for advantage, gained in ((0.0099, "nothing"), (0.01, "0.01"), (-0.3, "nothing")):
        verdict = make_threat(1.0, 10, advantage=advantage).verdict
        assert verdict.endswith(f"in 100% of runs and gains {gained} over training alone")


def test_verdicts_without_the_truth_and_of_the_base_line() -> None:
    assert make_threat(None, 0).verdict.startswith("cannot be judged")
    for named in (None, 0.5):
        assert make_threat(named, 10, name="train-alone").verdict.startswith("the base line")
