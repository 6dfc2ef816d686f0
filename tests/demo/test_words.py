"""The sentences of the demonstration agree with its rows."""

from __future__ import annotations

from typing import Any

from covertfl.demo.run import explain_finishing, write_caution, write_headline


def make_row(policy: str | None, scheme: str = "scheduled", **figures: Any) -> dict[str, Any]:
    return {
        "scheme": scheme,
        "policy": policy,
        "learner_accuracy": 0.818,
        "eavesdropper_accuracy": 0.5,
        "aware_named": 5.0,
        "runs": 5,
        "rounds": 45,
        "completion": 0.2,
        "expected_completion": 0.48,
        "updates": 16,
        "updates_done": 14.4,
        "paper": None,
        **figures,
    }


ROWS = (
    make_row("greedy", eavesdropper_accuracy=0.82, expected_completion=0.7, paper={"figure": 1.0}),
    make_row("optimal"),
    make_row("minority", eavesdropper_accuracy=0.69, learner_accuracy=0.791),
    make_row("minority", rounds=79, completion=1.0, expected_completion=0.95, updates_done=16.0),
    make_row(None, "exchangeable", aware_named=2.5, rounds=115, completion=0.8, updates_done=15.8),
)


def test_the_headline_has_the_figures_of_the_rows() -> None:
    assert write_headline(ROWS) == (
        "Without covertness, an eavesdropper ends up with a model of 82% accuracy, and its owner "
        "with 82%; with covertness, an eavesdropper that counts queries ends up with 50% to 69%, "
        "where guessing has 50%, and the owner with 79% to 82%."
    )
    assert write_headline(ROWS[1:2]).startswith("With covertness, an eavesdropper that counts")


def test_what_the_headline_leaves_out_stands_below_it() -> None:
    words = write_caution(ROWS)
    assert "finds the true model in 15 of 15 covert runs." in words
    assert "right in 2.5 of 5 runs" in words
    assert write_caution(ROWS[:1]) == ""


def test_unfinished_runs_are_explained_for_each_number_of_rounds() -> None:
    words = explain_finishing(ROWS)
    assert words.startswith("Why a run may not make all 16 updates")
    assert (
        "With the paper's 45 rounds 48% to 70% of runs are expected" in words and "1 of 5" in words
    )
    assert words.index("With 79 rounds 95% of") < words.index("With 115 rounds 48% of")
    assert "here 5 of 5 did" in words and "here 4 of 5 did" in words
