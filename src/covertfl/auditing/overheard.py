"""The queries that clients received, read from a public folder and linked into trajectories.

An eavesdropper sees weights, not which trajectory they belong to, so queries are linked by the
weights alone; how many trajectories there are is public.  The private records, where there are any,
are used only afterwards, to find which of the linked trajectories is the true one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.eavesdroppers.eavesdropper import SeenQuery
from covertfl.eavesdroppers.separation import link_queries, number_distinct
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Layout, Vector
from covertfl.runs.files import SUMMARY
from covertfl.runs.public import PublicTranscript

Queries = tuple[SeenQuery, ...]
Records = tuple[Mapping[str, Any], ...]


def overhear(
    folder: Path,
    layout: Layout | None = None,
    *,
    trajectories: int | None = None,
    pivot: str | None = None,
) -> Queries:
    """Return the queries of a public folder in their order, linked into trajectories.

    Parameters
    ----------
    layout : of the weights; that of the first query if None
    trajectories : number of trajectories, None if unknown
    pivot : parameter by which queries are linked, all weights if None
    """
    transcript = PublicTranscript(folder)
    if not transcript.records:
        raise InvalidInput(f"{folder / 'rounds.jsonl'} holds no query")
    read: dict[str, Vector] = {}
    for record in transcript.records:
        if record.weights not in read:
            path = folder / "weights" / f"{record.weights}.safetensors"
            parts = _read_parts(transcript, record.weights, path)
            if layout is None:
                names = tuple(sorted(parts))  # the order in a file is arbitrary
                layout = Layout(names, tuple(parts[name].shape for name in names))
            read[record.weights] = _join(layout, parts, path)
    sent = [(record.round, read[record.weights]) for record in transcript.records]
    part = None if layout is None or pivot is None else layout.locate(pivot)
    return link_sent(sent, trajectories=trajectories, part=part)


def link_sent(
    sent: Sequence[tuple[int, Vector]], *, trajectories: int | None, part: slice | None
) -> Queries:
    """Return queries, given their rounds and weights, linked as by `link_queries`."""
    placed = link_queries([weights for _, weights in sent], trajectories=trajectories, part=part)
    return tuple(
        SeenQuery(number, trajectory, weights, moved)
        for (number, weights), (trajectory, moved) in zip(sent, placed, strict=True)
    )


def group_rounds(queries: Sequence[SeenQuery]) -> tuple[tuple[int, ...], ...]:
    """Return the rounds of the queries on each trajectory."""
    found: dict[int, list[int]] = {}
    for query in queries:
        found.setdefault(query.trajectory, []).append(query.round)
    return tuple(tuple(found[number]) for number in sorted(found))


def find_first_matrix(layout: Layout) -> str | None:
    """Return the first parameter with two or more dimensions, None if there is none."""
    pairs = zip(layout.names, layout.shapes, strict=True)
    return next((name for name, shape in pairs if len(shape) > 1), None)


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
    """Return which linked trajectories are the true one, and the number of misplaced queries.

    A linked trajectory counts as the one that most of its queries belong to.  Weights that several
    trajectories sent, such as a common start, are right on each of them.
    """
    senders = _find_senders(queries, private)
    main = _match_trajectories(queries, senders)
    misplaced = sum(
        main[query.trajectory] not in possible
        for query, possible in zip(queries, senders, strict=True)
    )
    sizes = Counter(
        query.trajectory
        for query, possible in zip(queries, senders, strict=True)
        if possible == {main[query.trajectory]}
    )
    # Of a trajectory that was split, all parts but the largest are misplaced.
    for owner in set(main.values()):
        parts = [sizes[number] for number in main if main[number] == owner]
        misplaced += sum(parts) - max(parts)
    return {number: owner == 0 for number, owner in main.items()}, misplaced


def _find_senders(
    queries: Sequence[SeenQuery], private: Sequence[Mapping[str, Any]]
) -> list[set[int]]:
    """Return the trajectories that sent the weights of each query at any time."""
    numbers = number_distinct([query.weights for query in queries])
    senders: dict[int, set[int]] = {}
    for number, record in zip(numbers, private, strict=True):
        senders.setdefault(number, set()).add(int(record["trajectory"]))
    return [senders[number] for number in numbers]


def _match_trajectories(
    queries: Sequence[SeenQuery], senders: Sequence[set[int]]
) -> dict[int, int]:
    """Return the trajectory of the records that each linked trajectory counts as.

    One whose weights were all sent by several counts as one of these that no other counts as.
    """
    votes: dict[int, Counter[int]] = {query.trajectory: Counter() for query in queries}
    for query, possible in zip(queries, senders, strict=True):
        if len(possible) == 1:
            votes[query.trajectory].update(possible)
    main = {number: max(sorted(own), key=own.__getitem__) for number, own in votes.items() if own}
    for query, possible in zip(queries, senders, strict=True):
        left = possible - set(main.values()) or possible
        main.setdefault(query.trajectory, min(left))
    return main
