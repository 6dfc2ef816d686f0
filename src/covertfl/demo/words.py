"""What the rows of the demonstration show, in sentences for a reader who is new to covertness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Row = Mapping[str, Any]
OPEN, REPLICAS = "greedy", "exchangeable"  # policies that hide nothing, and most


def write_headline(rows: Sequence[Row]) -> str:
    """Return who ends up with the model: without covertness, with it, and with replicas."""
    open_rows = [row for row in rows if row["policy"] == OPEN]
    replica = [row for row in rows if row["policy"] == REPLICAS]
    covert = [row for row in rows if row["policy"] not in (OPEN, REPLICAS)]
    sentences = []
    if open_rows:
        sentences.append(
            "Without covertness, whoever listens to the training ends up with the model: "
            f"{_span(open_rows, 'eavesdropper_accuracy')} accuracy, its owner with "
            f"{_span(open_rows, 'learner_accuracy')}."
        )
    if covert:
        sentences.append(
            "With it, a listener that counts queries ends up with "
            f"{_span(covert, 'eavesdropper_accuracy')}, where guessing has 50%, and the owner with "
            f"{_span(covert, 'learner_accuracy')}."
        )
        sentences.append(
            "A listener that knows the scheme still finds the true model in "
            f"{_count(covert, 'aware_named')} runs."
        )
    if replica:
        sentences.append(
            "With exchangeable replicas one that knows the scheme can only guess between two "
            f"models: it is right in {_count(replica, 'aware_named')} runs, and the owner has "
            f"{_span(replica, 'learner_accuracy')}."
        )
    return " ".join(sentences)


def explain_finishing(rows: Sequence[Row]) -> str:
    """Return why runs end before all updates are made, and how many rounds it takes."""
    updates = rows[0]["updates"]
    sentences = [
        f"Not every run makes all {updates} updates: a round counts only if enough clients take "
        "part in it, and the rounds may end before."
    ]
    ordered = sorted(rows, key=lambda row: int(row["rounds"]))
    for rounds, group in groupby(ordered, key=lambda row: int(row["rounds"])):
        members = list(group)
        sentences.append(
            f"In {rounds} rounds {_span(members, 'expected_completion')} of runs are expected to "
            f"make them all; here {_count_finished(members)} did, and made "
            f"{min(row['updates_done'] for row in members):.1f} or more on average."
        )
    sentences.append(
        "The runs of all rows with one seed meet the same clients, so a seed with few clients "
        "falls short in every row."
    )
    return " ".join(sentences)


def _span(rows: Iterable[Row], key: str) -> str:
    """Return the smallest and the largest percentage, or the one they share."""
    ends = [f"{100.0 * pick(row[key] for row in rows):.0f}%" for pick in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _count(rows: Iterable[Row], key: str) -> str:
    return f"{sum(row[key] for row in rows):g} of {sum(row['runs'] for row in rows)}"


def _count_finished(rows: Sequence[Row]) -> str:
    """Return how many runs of a row finished, over the rows."""
    counts = [round(row["completion"] * row["runs"]) for row in rows]
    return f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {rows[0]['runs']}"
