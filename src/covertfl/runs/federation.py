"""The parts of a run that do not change, and its state before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covertfl.arrays import FloatArray
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.kernels.weights import Vector
from covertfl.runs.learner import LearnerState, start_learner
from covertfl.runs.participation import RecordedRounds
from covertfl.runs.policy import RunPolicy
from covertfl.runs.queue import UpdateQueue
from covertfl.runs.responder import Responder
from covertfl.runs.settings import RunSettings
from covertfl.runs.state import RunState
from covertfl.seeding import Stream, draw_seed

TOTALS = ("privacy_cost", "learning_cost", "backlog", "served", "wait", "finished")


@dataclass(frozen=True, eq=False)
class Federation:
    """The parts of a run that do not change.

    Parameters
    ----------
    settings : of the run
    responder : answers its queries
    problem : with the success probabilities in force
    policy : when to learn
    measured : success probabilities measured for the federation, whichever are in force
    recorded : participation to replay, None to draw it
    arrivals : number of updates that arrive by round, None to draw it
    """

    settings: RunSettings
    responder: Responder
    problem: Problem
    policy: RunPolicy
    measured: FloatArray | None = None
    recorded: RecordedRounds | None = None
    arrivals: Mapping[int, int] | None = None


def start_trajectories(
    settings: RunSettings, responder: Responder, first: Sequence[Vector] | None = None
) -> LearnerState:
    """Return the true trajectory and the decoys before the first round.

    Parameters
    ----------
    first : weights that the true trajectory and each decoy start from, None to draw them
    """
    true, *decoys = first or (
        responder.first_weights(draw_seed(settings.hidden_seed, Stream.INITIAL, number))
        for number in range(1 + responder.num_decoys)
    )
    return start_learner(true, decoys, settings.sections.federation.algorithm)


def start_run(federation: Federation, first: Sequence[Vector] | None = None) -> RunState:
    """Return the state before the first round; `first` as in `start_trajectories`."""
    responder = federation.responder
    learner = start_trajectories(federation.settings, responder, first)
    queue = UpdateQueue()
    if isinstance(federation.problem, FiniteHorizon):
        queue = queue.admit(federation.problem.updates, 0, None)
    return RunState(
        round=0,
        learner=learner,
        queue=queue,
        oracle_state=-1,
        learning_queries=0,
        scores=tuple(responder.score(weights) for weights in learner.trajectories),
        rejected={},
        totals=dict.fromkeys(TOTALS, 0.0),
        seen=(),
    )
