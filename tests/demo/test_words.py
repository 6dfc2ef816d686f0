"""The sentences of the demonstration agree with its rows."""

from __future__ import annotations

from typing import Any

from covertfl.demo.words import explain_finishing, write_headline


def make_row(policy: str, **figures: Any) -> dict[str, Any]:
    return {
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
        **figures,
    }


ROWS = (
    make_row("greedy", eavesdropper_accuracy=0.82, expected_completion=0.7, updates_done=15.0),
    make_row("optimal"),
    make_row("minority", eavesdropper_accuracy=0.69, learner_accuracy=0.791),
    make_row("minority", rounds=79, completion=1.0, expected_completion=0.95, updates_done=16.0),
    make_row("exchangeable", aware_named=2.5, rounds=115, completion=0.8, updates_done=15.8),
)


def test_the_headline_has_the_figures_of_the_rows() -> None:
    assert write_headline(ROWS) == (
        "Without covertness, whoever listens to the training ends up with the model: 82% accuracy, "
        "its owner with 82%. With it, a listener that counts queries ends up with 50% to 69%, "
        "where guessing has 50%, and the owner with 79% to 82%. A listener that knows the scheme "
        "still finds the true model in 15 of 15 runs. With exchangeable replicas one that knows "
        "the scheme can only guess between two models: it is right in 2.5 of 5 runs, and the owner "
        "has 82%."
    )


def test_the_headline_of_one_row_is_about_that_row() -> None:
    headline = write_headline(ROWS[:1])
    assert headline.startswith("Without covertness") and "replicas" not in headline


def test_unfinished_runs_are_explained_for_each_number_of_rounds() -> None:
    words = explain_finishing(ROWS)
    assert words.startswith("Not every run makes all 16 updates")
    assert "In 45 rounds 48% to 70% of runs" in words and "here 1 of 5 did" in words
    assert "made 14.4 or more" in words
    assert words.index("In 45") < words.index("In 79 rounds 95%") < words.index("In 115")
