"""What is written about a run: the costs, the records of each round, and the summary.

`Records` is what a run needs of its records: the folder of a run (`folder`) keeps them on the disk,
so that it can be resumed, and `MemoryRecords` for as long as the process lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.files.compact import pack_clients, pack_counts, unpack_record
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.actions import Decision
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.files import METRICS, ROUNDS, SENT, UPDATES
from covertfl.runs.packing import pack_state
from covertfl.runs.queue import DoneUpdate
from covertfl.runs.responder import Outcome


class Records(Protocol):
    """Keeps what a run sends and does; methods are called in this order in each round."""

    @property
    def note_name(self) -> str:
        """What messages to users call the note of a round."""

    def note(self, decision: Mapping[str, Any]) -> None:
        """Keep what a round has decided, before its query is sent."""

    def read_note(self) -> dict[str, Any] | None:
        """Return what the last round that was begun has decided, None before the first."""

    def begin_query(self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]) -> None:
        """Take what can be written while clients work, once the decision is noted.

        Parameters
        ----------
        vector : (P,) weights of the query
        ahead : arrays of the next checkpoint, by name, that only a move of all trajectories changes
        """

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Keep weights that are sent; return the name of their content."""

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Add lines to a line file: SENT, ROUNDS, UPDATES or METRICS."""

    def seal(self, checkpoint: Checkpoint, meanwhile: Callable[[], None] | None = None) -> None:
        """End a round with the state after it.

        Parameters
        ----------
        meanwhile : work that may be done at the same time, where that saves time
        """


class MemoryRecords:
    """The records of one run, kept in memory: nothing is written, and the run is not resumed.

    Attributes
    ----------
    sent : weights of the query of each round
    lines : records by line file; those of rounds have clients and batches as lists
    """

    note_name = "the note of a round"

    def __init__(self) -> None:
        self.sent: list[Vector] = []
        self.lines: dict[str, list[dict[str, Any]]] = {
            name: [] for name in (SENT, ROUNDS, UPDATES, METRICS)
        }

    def note(self, decision: Mapping[str, Any]) -> None:
        """Do nothing."""

    def read_note(self) -> None:
        """Return None: no round was interrupted."""

    def begin_query(self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]) -> None:
        """Do nothing: the weights are kept with the round."""

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Keep the weights of a query; return their place in `sent`."""
        self.sent.append(vector)
        return str(len(self.sent) - 1)

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Keep records."""
        self.lines[name] += (unpack_record(dict(record)) for record in records)

    def seal(self, checkpoint: Checkpoint, meanwhile: Callable[[], None] | None = None) -> None:
        """Do nothing but the other work."""
        if meanwhile is not None:
            meanwhile()


class Costs(NamedTuple):
    """Privacy and learning cost of a round."""

    privacy: float
    learning: float


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """A round that has ended; `done` is the update that it served, if any."""

    before: RunState
    after: RunState
    decision: Decision
    outcome: Outcome
    costs: Costs
    done: DoneUpdate | None

    @property
    def is_updated(self) -> bool:
        """Whether the true trajectory has moved."""
        return self.after.learner.updates > self.before.learner.updates


def charge_round(problem: Problem, backlog: int, decision: Decision, lost: int) -> Costs:
    """Return the costs of a round that starts with a backlog and loses some updates.

    In a finite horizon the learning cost is due at its end (deviation D6).
    """
    privacy = float(problem.privacy_cost[decision.oracle_state]) if decision.learns else 0.0
    if isinstance(problem, FiniteHorizon):
        return Costs(privacy, 0.0)
    learning = 0.0
    if problem.learning_cost.charged == "always" or not decision.learns:
        learning = float(problem.backlog_cost(decision.oracle_state, np.array(backlog)))
    if backlog == problem.capacity and not decision.learns:
        learning += problem.full_cost
    return Costs(privacy, learning + (problem.overflow_cost or 0.0) * lost)


def seal_state(federation: Federation, records: Records, state: RunState) -> None:
    """Seal the state after a round, or the one that a run starts from, with a checkpoint."""
    responder = federation.responder
    kept, replicas = responder.remember(), responder.replicas
    packed = pack_state(state, responder.layout, kept, replicas=replicas)
    records.seal(packed, lambda: responder.prepare(state.learner))


def begin_query(
    federation: Federation, records: Records, state: RunState, decision: Decision
) -> None:
    """Hand records, while clients work, what is known before they answer.

    Replicas all move in the same rounds, which clients see: only then the true weights of the
    next checkpoint are not those of the last.
    """
    responder, learner = federation.responder, state.learner
    ahead = {} if responder.replicas is None else {"true": learner.true}
    records.begin_query(responder.layout, learner.query(decision.trajectory), ahead)


def record_round(federation: Federation, records: Records, played: PlayedRound) -> None:
    """Write the public and private records of a round, and seal it with a checkpoint."""
    after, responder = played.after, federation.responder
    sent = played.before.learner.query(played.decision.trajectory)
    weights = records.write_weights(responder.layout, sent)
    public = {"round": after.round, "client": None, "weights": weights}
    records.append(SENT, public)
    records.append(ROUNDS, describe_round(played, weights))
    if played.done is not None:
        records.append(UPDATES, asdict(played.done))
    records.append(
        METRICS,
        {
            "round": after.round,
            "learner_score": after.scores[0],
            "decoy_scores": list(after.scores[1:]),
            "backlog": after.queue.backlog,
            "exposure": after.exposure,
        },
    )
    seal_state(federation, records, after)


def describe_round(played: PlayedRound, weights: str) -> dict[str, Any]:
    """Return the private record of a round; `weights` names the file of those that were sent."""
    before, after, outcome = played.before, played.after, played.outcome
    decision, observation = played.decision, played.decision.observation
    return {
        "round": after.round,
        "oracle_state": decision.oracle_state,
        "backlog": int(observation.backlog),
        "arrival": decision.arrival,
        "rounds_left": int(observation.rounds_left),
        "learning_queries": int(observation.learning_queries),
        "learn_prob": decision.learn_prob,
        "action": "learn" if decision.learns else "obfuscate",
        "trajectory": decision.trajectory,
        "weights": weights,
        "clients": pack_clients(outcome.attendance.clients),
        "batches": pack_counts(outcome.attendance.batches),
        "examples": outcome.examples,
        "rejected": [list(entry) for entry in outcome.replies.rejected],
        "accepted": outcome.accepted,
        "updated": played.is_updated,
        "backlog_after": after.queue.backlog,
        "lost": after.queue.lost - before.queue.lost,
        "privacy_cost": played.costs.privacy,
        "learning_cost": played.costs.learning,
    }


def summarise(federation: Federation, state: RunState) -> dict[str, Any]:
    """Return the summary of a run that has ended."""
    served, measured = state.totals["served"], federation.measured
    queue_only = {}
    if isinstance(federation.problem, QueueProblem):
        queue_only = {
            "average_learning_cost": state.totals["learning_cost"] / max(state.round, 1),
            federation.problem.limit_name: federation.problem.limit,
            "lost_updates": state.queue.lost,
            "tasks_arrived": state.queue.arrived,
            "tasks_finished": int(state.totals["finished"]),
        }
    return {
        **federation.responder.describe(state.learner),
        "updates_done": state.learner.updates,
        "rounds": state.round,
        "learning_queries": state.learning_queries,
        "exposure": state.exposure,
        "completed": state.queue.backlog == 0,
        "updates_missing": state.queue.backlog,
        "replies": int(state.totals["replies"]),
        "rejected_replies": sum(state.rejected.values()),
        "rejected_by_reason": dict(state.rejected),
        "average_privacy_cost": state.totals["privacy_cost"] / max(state.round, 1),
        "mean_wait": state.totals["wait"] / served if served else None,
        "little_wait": state.totals["backlog"] / served if served else None,
        "success_measured": None if measured is None else measured.tolist(),
        "success_printed": federation.settings.problem.oracle.success.tolist(),
        **queue_only,
    }
