"""Coalitions: clients that pool what they see when each takes part only in some rounds.

A client is sent a query only in the rounds it takes part in.  A coalition has the queries of all
rounds in which at least one of its members did, and tells trajectories apart anew from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.auditing.run import Finding, Overheard, ScoreBook, find_truth, listen
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.eavesdroppers.separation import Separator
from covertfl.intervals import wilson_interval

SIZES = (1, 2, 5)
# Those that make sense of a schedule with gaps.
NAMES = ("majority", "minority", "repeat", "step-shape", "validation", "ensemble")


@dataclass(frozen=True, eq=False)
class CoalitionFinding:
    """What a coalition made of a run.

    Parameters
    ----------
    size : clients in it
    seen_share : share of rounds in which at least one of them took part
    findings : by eavesdropper
    """

    size: int
    seen_share: float
    findings: Mapping[str, Finding]


def choose_members(num_clients: int, size: int, *, generator: np.random.Generator) -> set[int]:
    """Clients that conspire, drawn uniformly."""
    return set(generator.permutation(num_clients)[:size].tolist())


def overhear_together(
    overheard: Overheard, private: Sequence[Mapping[str, Any]], members: set[int]
) -> tuple[Overheard, list[Mapping[str, Any]]]:
    """The queries that some clients saw, told apart from these alone, and their records."""
    separator, queries, records = Separator(), [], []
    for query, record in zip(overheard.queries, private, strict=True):
        if members.isdisjoint(record["clients"]):
            continue
        trajectory, moved = separator.place(query.weights)
        queries.append(SeenQuery(query.round, trajectory, query.weights, moved))
        records.append(record)
    return Overheard(tuple(queries), overheard.layout), records


def audit_coalitions(
    overheard: Overheard,
    private: Sequence[Mapping[str, Any]],
    means: Means,
    scores: ScoreBook,
    num_clients: int,
    *,
    seed: int,
) -> tuple[CoalitionFinding, ...]:
    """Let coalitions of several sizes listen to a run."""
    found = []
    for size in SIZES:
        if size > num_clients:
            continue
        members = choose_members(num_clients, size, generator=np.random.default_rng([seed, size]))
        seen, records = overhear_together(overheard, private, members)
        if not records:
            found.append(CoalitionFinding(size, 0.0, {}))
            continue
        truth, _ = find_truth(seen, records)
        findings = {
            name: listen(EAVESDROPPERS[name](means), seen.queries, truth, scores) for name in NAMES
        }
        found.append(CoalitionFinding(size, len(records) / len(private), findings))
    return tuple(found)


def describe_coalitions(runs: Sequence[Sequence[CoalitionFinding]]) -> dict[str, Any] | None:
    """Coalitions of several runs for `--json`, by size; None where there were none."""
    sizes = sorted({finding.size for run in runs for finding in run})
    if not sizes:
        return None
    return {
        str(size): _describe_size([f for run in runs for f in run if f.size == size])
        for size in sizes
    }


def _describe_size(found: Sequence[CoalitionFinding]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "rounds_seen": float(np.mean([finding.seen_share for finding in found])),
        "eavesdroppers": {},
    }
    for name in NAMES:
        findings = [finding.findings[name] for finding in found if name in finding.findings]
        named = [finding.named for finding in findings if finding.named is not None]
        if not named:
            continue
        low, high = wilson_interval(sum(named), len(named))
        finals = [finding.accuracy[-1] for finding in findings if finding.accuracy]
        described["eavesdroppers"][name] = {
            "names_true": float(np.mean(named)),
            "interval": [float(low), float(high)],
            "final_accuracy": float(np.mean(finals)) if finals else None,
        }
    return described
