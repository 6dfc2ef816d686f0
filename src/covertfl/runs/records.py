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
from covertfl.kernels.job import Layout, Vector
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.files import (
    METRICS,
    ROUNDS,
    SENT,
    UPDATES,
    pack_clients,
    pack_counts,
    unpack_record,
)
from covertfl.runs.queue import DoneUpdate
from covertfl.runs.state import Federation, RunState, pack_state
from covertfl.schemes.scheme import Outcome, Query
from covertfl.tasks.scores import FURTHER, Scores


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


class NoRecords(MemoryRecords):
    """Keeps nothing: the state after each round is all that is looked at."""

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Do nothing."""
        return ""

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Do nothing."""


class Costs(NamedTuple):
    """Privacy and learning cost of a round."""

    privacy: float
    learning: float


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """A round that has ended.

    Parameters
    ----------
    before, after : states
    arrival : number of updates that arrived in it
    done : the update that it served, if any
    """

    before: RunState
    after: RunState
    query: Query
    arrival: int
    outcome: Outcome
    costs: Costs
    done: DoneUpdate | None


def charge_round(problem: Problem, backlog: int, query: Query, lost: int) -> Costs:
    """Return the costs of a round that starts with a backlog and loses some updates.

    In a finite horizon the learning cost is due at its end (deviation D6).
    """
    privacy = float(problem.privacy_cost[query.oracle_state]) if query.learns else 0.0
    if isinstance(problem, FiniteHorizon):
        return Costs(privacy, 0.0)
    learning = 0.0
    if problem.learning_cost.charged == "always" or not query.learns:
        learning = float(problem.backlog_cost(query.oracle_state, np.array(backlog)))
    if backlog == problem.capacity and not query.learns:
        learning += problem.full_cost
    return Costs(privacy, learning + (problem.overflow_cost or 0.0) * lost)


def seal_state(federation: Federation, records: Records, state: RunState) -> None:
    """Seal the state after a round, or the one that a run starts from, with a checkpoint.

    Meanwhile all that the next round may send is made ready.
    """
    packed = pack_state(federation, state)
    records.seal(packed, lambda: prepare_queries(federation, state))


def prepare_queries(federation: Federation, state: RunState) -> None:
    """Make ready all that the next round may send, and the owner's model if it is never sent."""
    scheme = federation.scheme
    shown, own = scheme.shown(state.scheme), scheme.models(state.scheme)[0]
    is_shown = any(one is own for one in shown)
    federation.engine.prepare(shown if is_shown else (*shown, own), in_sight=scheme.moves_in_sight)


def begin_query(federation: Federation, records: Records, state: RunState, query: Query) -> None:
    """Hand records, while clients work, what is known before they answer.

    Where all trajectories move in the same rounds, which clients see, the owner's model in the next
    checkpoint is that of the last one in all other rounds.
    """
    scheme = federation.scheme
    ahead = {"true": scheme.models(state.scheme)[0]} if scheme.moves_in_sight else {}
    records.begin_query(federation.layout, query.payload, ahead)


def record_round(federation: Federation, records: Records, played: PlayedRound) -> None:
    """Write the public and private records of a round, and seal it with a checkpoint."""
    after = played.after
    weights = records.write_weights(federation.layout, played.query.payload)
    public = {"round": after.round, "client": None, "weights": weights}
    records.append(SENT, public)
    is_service = federation.settings.sections.service is not None
    records.append(ROUNDS, describe_round(played, weights, is_service=is_service))
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


def describe_round(played: PlayedRound, weights: str, *, is_service: bool) -> dict[str, Any]:
    """Return the private record of a round; `weights` names the file of those that were sent.

    That of a service says if clients hold data as of an earlier round (`RunState.data`).
    """
    before, after, outcome = played.before, played.after, played.outcome
    query, observation = played.query, played.query.seen
    data = {"data": after.data} if is_service and after.data != after.round else {}
    return {
        "round": after.round,
        "oracle_state": query.oracle_state,
        "backlog": int(observation.backlog),
        "arrival": played.arrival,
        "rounds_left": int(observation.rounds_left),
        "learning_queries": int(observation.learning_queries),
        "learn_prob": query.learn_prob,
        "action": "learn" if query.learns else "obfuscate",
        "trajectory": query.trajectory,
        "weights": weights,
        "clients": pack_clients(outcome.clients),
        "batches": pack_counts(outcome.batches),
        "examples": outcome.examples,
        "rejected": [list(entry) for entry in outcome.replies.rejected],
        "accepted": outcome.accepted,
        "updated": after.updates > before.updates,
        "backlog_after": after.queue.backlog,
        "lost": after.queue.lost - before.queue.lost,
        "privacy_cost": played.costs.privacy,
        "learning_cost": played.costs.learning,
        **data,
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
        **_describe_models(federation, state),
        **federation.engine.describe(),
        "updates_done": state.updates,
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


def _describe_models(federation: Federation, state: RunState) -> dict[str, Any]:
    """Return the scores of the final models, and a warning if the owner's answers one class."""
    validation = federation.validation
    own, *others = federation.scheme.models(state.scheme)
    found = validation.measure(own)
    return {
        "learner_accuracy": found.accuracy,
        **{f"learner_{name}": getattr(found, name) for name in FURTHER},
        "decoy_accuracy": [validation.score(weights) for weights in others],
        "warnings": _list_warnings(federation, found),
    }


def _list_warnings(federation: Federation, found: Scores) -> list[str]:
    if found.only_answer is None:
        return []
    remedy = "raise `updates` and `rounds`, change the learning rate, or check the labels"
    if not federation.settings.sections.data.balance:
        remedy = "set [data] balance = true, or train longer"
    number = len(federation.validation.examples)
    return [
        f"the learner answers class {found.only_answer} to all {number} validation examples, so "
        f"that it tells no classes apart: {remedy}"
    ]
