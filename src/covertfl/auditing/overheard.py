"""The queries that clients received, read from a public folder and separated into trajectories.

An eavesdropper sees weights, not which trajectory they belong to, so trajectories are separated by
the weights alone.  The private records, where there are any, are used only afterwards, to find
which of the separated trajectories is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.eavesdroppers.eavesdropper import SeenQuery
from covertfl.eavesdroppers.separation import Separator
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.public import PublicTranscript
from covertfl.runs.summary import SUMMARY


@dataclass(frozen=True, eq=False)
class Overheard:
    """The queries of a run, separated into trajectories.

    Parameters
    ----------
    queries : in the order in which they were sent
    layout : of the weights
    """

    queries: tuple[SeenQuery, ...]
    layout: Layout

    @property
    def num_trajectories(self) -> int:
        """Return the number of separated trajectories."""
        return 1 + max(query.trajectory for query in self.queries)


def overhear(folder: Path, layout: Layout | None = None) -> Overheard:
    """Read a public folder and separate its queries into trajectories.

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
            parts = _read_parts(transcript, record.weights, folder)
            layout = layout or _infer_layout(parts)
            read[record.weights] = _join(layout, parts, folder, record.weights)
        weights = read[record.weights]
        trajectory, moved = separator.place(weights)
        queries.append(SeenQuery(record.round, trajectory, weights, moved))
    assert layout is not None
    return Overheard(tuple(queries), layout)


def _read_parts(transcript: PublicTranscript, name: str, folder: Path) -> dict[str, Vector]:
    try:
        return transcript.read_weights(name)
    except KeyError as error:  # a number format that numpy does not have
        raise InvalidInput(
            f"{folder / 'weights' / name}.safetensors must hold numbers of 16, 32 or 64 bits in a "
            f"format that numpy has, got {error.args[0]}"
        ) from error


def _infer_layout(parts: Mapping[str, Vector]) -> Layout:
    names = tuple(sorted(parts))  # the order in a file is arbitrary
    return Layout(names, tuple(parts[name].shape for name in names))


def _join(
    layout: Layout, parts: Mapping[str, npt.NDArray[np.floating]], folder: Path, name: str
) -> Vector:
    """Return a query's weights as one vector; raise `InvalidInput` if they cannot be compared."""
    path = folder / "weights" / f"{name}.safetensors"
    try:
        weights = layout.join(parts)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is of another model than the rest: {error}") from error
    if not np.isfinite(weights).all():
        raise InvalidInput(f"{path} must hold finite numbers, got NaN or infinity")
    return weights


def keep_recorded(
    overheard: Overheard, private: Sequence[Mapping[str, Any]], path: Path
) -> tuple[Overheard, tuple[Mapping[str, Any], ...]]:
    """Return the rounds that are in both records; in an interrupted run one may be ahead.

    Raises
    ------
    InvalidInput
        if a finished run has more rounds in one record than in the other
    """
    rounds = min(len(overheard.queries), len(private))
    if (path / SUMMARY).exists() and max(len(overheard.queries), len(private)) > rounds:
        raise InvalidInput(
            f"{path} must have as many public as private rounds, got {len(overheard.queries)} "
            f"and {len(private)}"
        )
    return Overheard(overheard.queries[:rounds], overheard.layout), tuple(private[:rounds])


def find_truth(
    overheard: Overheard, private: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, bool], int]:
    """Return which separated trajectories are the true one, and the number of misplaced queries.

    A separated trajectory counts as the one that most of its queries belong to.
    """
    actual = [int(record["trajectory"]) for record in private]
    owners: dict[int, list[int]] = {}
    for query, trajectory in zip(overheard.queries, actual, strict=True):
        owners.setdefault(query.trajectory, []).append(trajectory)
    main = {number: max(set(own), key=own.count) for number, own in owners.items()}
    misplaced = sum(owner != main[number] for number, own in owners.items() for owner in own)
    # Of a trajectory that was split, all parts but the largest are misplaced.
    for trajectory in set(main.values()):
        parts = [
            own.count(trajectory) for number, own in owners.items() if main[number] == trajectory
        ]
        misplaced += sum(parts) - max(parts)
    return {number: owner == 0 for number, owner in main.items()}, misplaced
