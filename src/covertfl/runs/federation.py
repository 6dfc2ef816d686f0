"""The parts of a run that do not change, its state between two rounds, and the checkpoint of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Policy
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.generations import Generation, show
from covertfl.runs.learner import LearnerState, start_learner
from covertfl.runs.live import LiveState, SeenRound
from covertfl.runs.participation import RecordedRounds
from covertfl.runs.policy import RunPolicy, expect_policy
from covertfl.runs.queue import OwedTask, UpdateQueue
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, draw_seed

TOTALS = ("privacy_cost", "learning_cost", "backlog", "served", "wait", "finished", "replies")


@dataclass(frozen=True, eq=False)
class Federation:
    """The parts of a run that do not change.

    Parameters
    ----------
    problem : with the success probabilities in force
    measured : success probabilities measured for the federation, whichever are in force
    recorded : participation to replay, None to draw it
    arrivals : number of updates that arrive by round, None to draw it
    joining : tasks that make up the arrivals of the present round, None for one task of that size
    is_refit : whether the policy is made anew before the present round
    """

    settings: RunSettings
    responder: ClientResponder
    problem: Problem
    policy: RunPolicy
    measured: FloatArray | None = None
    recorded: RecordedRounds | None = None
    arrivals: Mapping[int, int] | None = None
    joining: tuple[OwedTask, ...] | None = None
    is_refit: bool = False

    @property
    def policy_of_truth(self) -> Policy:
        """The expected policy, as who knows the scheme can compute it."""
        return expect_policy(self.settings.sections.policy, self.problem, self.policy)


@dataclass(frozen=True, eq=False)
class RunState:
    """The state of a run after a round.

    Parameters
    ----------
    round : number of rounds done
    oracle_state : oracle state of the last round, -1 before the first
    queries : number of queries of the true trajectory, then of each decoy
    scores : score of the true weights, then of each decoy's
    rejected : number of rejected replies so far, by reason
    totals : sums over rounds of the privacy cost, the learning cost and the backlog; numbers of
        owed updates done and of tasks finished, the sum of the updates' waits, and the number of
        replies that were needed or rejected
    seen : oracle state, arriving updates and acceptance of the latest rounds, if the
        policy is refreshed; a round without a learning query counts as accepted if one would have
        been
    live : what the refreshed policy was made from
    generation : how far the present generation of an exchangeable run has come
    """

    round: int
    learner: LearnerState
    queue: UpdateQueue
    oracle_state: int
    queries: tuple[int, ...]
    scores: tuple[float, ...]
    rejected: Mapping[str, int]
    totals: Mapping[str, float]
    seen: tuple[SeenRound, ...] = ()
    live: LiveState = field(default_factory=LiveState)
    generation: Generation = field(default_factory=Generation)

    @property
    def learning_queries(self) -> int:
        """Number of rounds in which the true weights were sent."""
        return self.queries[0]

    @property
    def exposure(self) -> float:
        """Share of learning queries among the rounds so far.

        It is the belief of the eavesdropper by proportional sampling, equation (6) of the paper.
        """
        return self.learning_queries / self.round if self.round else 0.0


def start_trajectories(
    settings: RunSettings, responder: ClientResponder, first: Sequence[Vector] | None = None
) -> LearnerState:
    """Return the true trajectory and the decoys before the first round.

    Parameters
    ----------
    first : weights that the true trajectory and the decoy start from, None to draw them
    """
    replicas = responder.replicas
    if replicas is not None:
        drawn = responder.first_weights(draw_seed(settings.hidden_seed, Stream.INITIAL, 0))
        algorithm = settings.sections.federation.algorithm
        return show(start_learner(replicas.start(drawn), (), algorithm), replicas)
    true, decoy = first or (
        responder.first_weights(draw_seed(settings.hidden_seed, Stream.INITIAL, number))
        for number in range(2)
    )
    return start_learner(true, [decoy], settings.sections.federation.algorithm)


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
        queries=(0,) * len(learner.trajectories),
        scores=tuple(responder.score(weights) for weights in learner.trajectories),
        rejected={},
        totals=dict.fromkeys(TOTALS, 0.0),
    )
