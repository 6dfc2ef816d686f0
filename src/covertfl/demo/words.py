"""What the rows of the demonstration show, in sentences for a reader who is new to covertness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def write_headline(rows: Sequence[Row]) -> str:
    """Return in one sentence what an eavesdropper that counts queries ends up with."""
    plain, covert, _ = _split(rows)
    parts = []
    if plain:
        parts.append(
            "without covertness, an eavesdropper ends up with a model of "
            f"{_span(plain, 'eavesdropper_accuracy')} accuracy, and its owner with "
            f"{_span(plain, 'learner_accuracy')}"
        )
    if covert:
        parts.append(
            "with covertness, an eavesdropper that counts queries ends up with "
            f"{_span(covert, 'eavesdropper_accuracy')}, where guessing has 50%, and the owner with "
            f"{_span(covert, 'learner_accuracy')}"
        )
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if parts else ""


def write_caution(rows: Sequence[Row]) -> str:
    """Return what an eavesdropper that knows the scheme ends up with."""
    _, covert, replicas = _split(rows)
    sentences = []
    if covert:
        sentences.append(
            "An eavesdropper that knows the scheme finds the true model in "
            f"{_count(covert, 'aware_named')} covert runs."
        )
    if replicas:
        sentences.append(
            "Exchangeable replicas leave even that one a guess between two models: it is right in "
            f"{_count(replicas, 'aware_named')} runs, a tie counting one half, and the owner has "
            f"{_span(replicas, 'learner_accuracy')}."
        )
    return " ".join(sentences)


def explain_finishing(rows: Sequence[Row]) -> str:
    """Return why runs end before all updates are made, and how many rounds it takes."""
    sentences = [
        f"Why a run may not make all {rows[0]['updates']} updates: a round counts only if enough "
        "clients take part, and the rounds are limited."
    ]
    for rounds in sorted({int(row["rounds"]) for row in rows}):
        members = [row for row in rows if row["rounds"] == rounds]
        whose = "the paper's " if any(row["paper"] for row in members) else ""
        sentences.append(
            f"With {whose}{rounds} rounds {_span(members, 'expected_completion')} of runs are "
            f"expected to make them all; here {_count_finished(members)} did."
        )
    sentences.append(
        "Runs with the same seed meet the same clients in every row, so a seed with few clients "
        "falls short in every row of as many rounds."
    )
    return " ".join(sentences)


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows that hide nothing, those of the paper's scheme, and those of replicas."""
    plain = [row for row in rows if row["policy"] == "greedy"]
    replicas = [row for row in rows if row["policy"] == "exchangeable"]
    return plain, [row for row in rows if row not in [*plain, *replicas]], replicas


def _span(rows: Iterable[Row], key: str) -> str:
    """Return the smallest and the largest percentage, or the one they share."""
    ends = [f"{100.0 * pick(row[key] for row in rows):.0f}%" for pick in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _count(rows: Iterable[Row], key: str) -> str:
    return f"{sum(row[key] for row in rows):g} of {sum(row['runs'] for row in rows)}"


def _count_finished(rows: Sequence[Row]) -> str:
    """Return how many runs of each row finished, the fewest and the most over rows."""
    counts = [round(row["completion"] * row["runs"]) for row in rows]
    return f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {rows[0]['runs']}"
