"""The queries that clients received, read from a public folder and separated into trajectories.

An eavesdropper sees weights, not which trajectory they belong to, so trajectories are separated by
the weights alone.  The private records, where there are any, are used only afterwards, to find
which of the separated trajectories is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.eavesdroppers.eavesdropper import SeenQuery
from covertfl.eavesdroppers.separation import Separator
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.public import PublicTranscript
from covertfl.runs.summary import SUMMARY

Queries = tuple[SeenQuery, ...]
Records = tuple[Mapping[str, Any], ...]


def overhear(folder: Path, layout: Layout | None = None) -> Queries:
    """Return the queries of a public folder in their order, separated into trajectories.

    Parameters
    ----------
    layout : of the weights; that of the first query if None
    """
    transcript, separator = PublicTranscript(folder), Separator()
    if not transcript.records:
        raise InvalidInput(f"{folder / 'rounds.jsonl'} holds no query")
    read: dict[str, Vector] = {}
    queries = []
    for record in transcript.records:
        if record.weights not in read:
            path = folder / "weights" / f"{record.weights}.safetensors"
            parts = _read_parts(transcript, record.weights, path)
            if layout is None:
                names = tuple(sorted(parts))  # the order in a file is arbitrary
                layout = Layout(names, tuple(parts[name].shape for name in names))
            read[record.weights] = _join(layout, parts, path)
        weights = read[record.weights]
        trajectory, moved = separator.place(weights)
        queries.append(SeenQuery(record.round, trajectory, weights, moved))
    return tuple(queries)


def _read_parts(transcript: PublicTranscript, name: str, path: Path) -> dict[str, Vector]:
    try:
        return transcript.read_weights(name)
    except KeyError as error:  # a number format that numpy does not have
        raise InvalidInput(
            f"{path} must hold numbers of 16, 32 or 64 bits in a format that numpy has, "
            f"got {error.args[0]}"
        ) from error


def _join(layout: Layout, parts: Mapping[str, Vector], path: Path) -> Vector:
    """Return a query's weights as one vector; raise `InvalidInput` if they cannot be compared."""
    try:
        weights = layout.join(parts)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is of another model than the rest: {error}") from error
    if not np.isfinite(weights).all():
        raise InvalidInput(f"{path} must hold finite numbers, got NaN or infinity")
    return weights


def keep_recorded(
    queries: Queries, private: Sequence[Mapping[str, Any]], path: Path
) -> tuple[Queries, Records]:
    """Return the rounds that are in both records; in an interrupted run one may be ahead.

    Raises
    ------
    InvalidInput
        if a finished run has more rounds in one record than in the other
    """
    if (path / SUMMARY).exists() and len(queries) != len(private):
        raise InvalidInput(
            f"{path} must have as many public as private rounds, got {len(queries)} "
            f"and {len(private)}"
        )
    rounds = min(len(queries), len(private))
    return queries[:rounds], tuple(private[:rounds])


def find_truth(
    queries: Sequence[SeenQuery], private: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, bool], int]:
    """Return which separated trajectories are the true one, and the number of misplaced queries.

    A separated trajectory counts as the one that most of its queries belong to.
    """
    owners: dict[int, list[int]] = {}
    for query, record in zip(queries, private, strict=True):
        owners.setdefault(query.trajectory, []).append(int(record["trajectory"]))
    main = {number: max(set(own), key=own.count) for number, own in owners.items()}
    misplaced = sum(owner != main[number] for number, own in owners.items() for owner in own)
    # Of a trajectory that was split, all parts but the largest are misplaced.
    for trajectory in set(main.values()):
        parts = [
            own.count(trajectory) for number, own in owners.items() if main[number] == trajectory
        ]
        misplaced += sum(parts) - max(parts)
    return {number: owner == 0 for number, owner in main.items()}, misplaced
