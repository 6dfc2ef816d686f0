"""Coalitions: clients that pool the queries they received.

A client receives a query only in the rounds in which it takes part.  A coalition has the queries of
all rounds in which at least one of its members took part, and links these alone into trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.auditing.overheard import Queries, Records, find_truth, link_sent
from covertfl.auditing.run import LoadedRun
from covertfl.auditing.threats import Finding, Threat, listen, summarise_findings, to_list
from covertfl.eavesdroppers.eavesdropper import SeenQuery
from covertfl.eavesdroppers.registry import EAVESDROPPERS, list_possible

SIZES = (1, 2, 5)
# Those that can work with a schedule that has gaps.
NAMES = ("majority", "minority", "repeat", "step-shape", "validation", "ensemble")


@dataclass(frozen=True, eq=False)
class CoalitionFinding:
    """What a coalition concluded from one run, by eavesdropper.

    Parameters
    ----------
    size : number of clients in it
    seen_share : share of rounds in which at least one of them took part
    """

    size: int
    seen_share: float
    findings: Mapping[str, Finding]


@dataclass(frozen=True)
class Coalition:
    """Coalitions of one size, over all runs.

    Parameters
    ----------
    size : number of clients in each
    rounds_seen : mean share of the rounds in which one of them took part
    threats : one for each eavesdropper, with the queries of the coalition
    """

    size: int
    rounds_seen: float
    threats: tuple[Threat, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        entries = {
            threat.name: {
                "names_true": threat.names_true,
                "interval": to_list(threat.interval),
                "final_accuracy": threat.final_accuracy,
                **threat.list_scores(),
            }
            for threat in self.threats
        }
        return {"rounds_seen": self.rounds_seen, "eavesdroppers": entries}


def choose_members(num_clients: int, size: int, *, generator: np.random.Generator) -> set[int]:
    """Sample the clients of a coalition uniformly."""
    return set(generator.permutation(num_clients)[:size].tolist())


def overhear_together(
    queries: Sequence[SeenQuery],
    private: Sequence[Mapping[str, Any]],
    members: set[int],
    *,
    trajectories: int | None = None,
    part: slice | None = None,
) -> tuple[Queries, Records]:
    """Return the queries that some clients received, linked by these alone, and the records.

    `trajectories` and `part` are as in `link_queries`.
    """
    pairs = zip(queries, private, strict=True)
    seen = [(query, record) for query, record in pairs if not members.isdisjoint(record["clients"])]
    sent = [(query.round, query.weights) for query, _ in seen]
    records = tuple(record for _, record in seen)
    return link_sent(sent, trajectories=trajectories, part=part), records


def audit_coalitions(run: LoadedRun) -> tuple[CoalitionFinding, ...]:
    """Show the queries of a run to coalitions of several sizes.

    Without private records the clients of a round are unknown, and the result is empty.
    """
    if run.federation is None or not run.private:
        return ()
    num_clients, seed = len(run.federation.task.clients), run.federation.settings.seed
    found = []
    for size in SIZES:
        if size <= num_clients:
            generator = np.random.default_rng([seed, size])
            members = choose_members(num_clients, size, generator=generator)
            found.append(_audit_coalition(run, members))
    return tuple(found)


def _audit_coalition(run: LoadedRun, members: set[int]) -> CoalitionFinding:
    seen, records = overhear_together(
        run.queries, run.private, members, trajectories=run.trajectories, part=run.part
    )
    if not records:
        return CoalitionFinding(len(members), 0.0, {})
    truth, _ = find_truth(seen, records)
    possible = list_possible(run.means)
    findings = {
        name: listen(
            EAVESDROPPERS[name](run.means),
            seen,
            truth,
            run.scores,
            trajectories=run.trajectories,
            by_round=False,
        )
        for name in NAMES
        if name in possible
    }
    return CoalitionFinding(len(members), len(records) / len(run.private), findings)


def summarise_coalitions(runs: Sequence[Sequence[CoalitionFinding]]) -> tuple[Coalition, ...]:
    """Combine the coalitions of several runs by their size."""
    sizes = sorted({finding.size for run in runs for finding in run})
    return tuple(
        _summarise_size(size, [f for run in runs for f in run if f.size == size]) for size in sizes
    )


def _summarise_size(size: int, found: Sequence[CoalitionFinding]) -> Coalition:
    threats = [
        summarise_findings(
            name, [one.findings[name] for one in found if name in one.findings], None
        )
        for name in NAMES
    ]
    seen = float(np.mean([finding.seen_share for finding in found]))
    return Coalition(size, seen, tuple(one for one in threats if one.names_true is not None))
