"""A training run as plain sequential code: observe, decide, query, update, record (equation (1)).

`run_rounds` is a generator.  It asks for work, the clients' or its own, and goes on with the
results; who carries the work out, alone or together with that of other runs, is not its concern.
What answers a query, clients with data or a function with noise, stands behind `Answerers`.

Everything random in a round comes from streams of its own (`seeding`), and the state after a round
is all that the next one needs, so a run can be cut anywhere and resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.folder import RunFolder
from covertfl.runs.learner import LearnerState, SiftedReplies, start_learner
from covertfl.runs.participation import Attendance, RecordedRounds
from covertfl.runs.policy import RunPolicy, refresh_policy
from covertfl.runs.queue import DoneUpdate, UpdateQueue
from covertfl.runs.settings import RunSettings
from covertfl.runs.state import RunState, pack_state
from covertfl.runs.world import draw_state
from covertfl.seeding import Stream, draw_seed, make_generator

# Rounds that must have been seen before the policy is searched for on them.
FEWEST_SEEN = 20


# --- who answers ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A query to the clients; what they are sent depends on the action through `weights` alone.

    Parameters
    ----------
    round, weights : of the query
    attendance : who is asked
    needed : whether anybody uses the replies; an engine that only simulates clients may then leave
        the work out, one that has clients asks them all the same
    """

    round: int
    weights: Vector
    attendance: Attendance
    needed: bool = True


@dataclass(frozen=True, eq=False)
class ServerWork:
    """Training that the server does for a decoy."""

    jobs: tuple[LocalJob, ...]


Work = ClientWork | ServerWork


@dataclass(frozen=True, eq=False)
class Query:
    """What is sent in a round.

    Parameters
    ----------
    round : 1, 2, ...
    oracle_state : how good the round is
    trajectory : 0 for the true one, 1, 2, ... for a decoy
    weights : that are sent
    """

    round: int
    oracle_state: int
    trajectory: int
    weights: Vector


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a query.

    Parameters
    ----------
    attendance : who was asked
    examples : that arrived, or would have where nobody needed the replies
    replies : valid ones; empty where nobody needed them
    accepted : whether the round is, or would be, a success
    """

    attendance: Attendance
    examples: int
    replies: SiftedReplies
    accepted: bool


@dataclass(frozen=True, eq=False)
class Remembered:
    """What a checkpoint keeps for those who answer.

    Parameters
    ----------
    arrays : by name
    facts : everything else, as JSON holds it
    """

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Answerers(Protocol):
    """Those who answer queries, and how the trajectories move on their answers."""

    @property
    def layout(self) -> Layout:
        """Names and shapes of what travels."""
        ...

    @property
    def num_decoys(self) -> int:
        """Decoy trajectories."""
        ...

    @property
    def is_steady(self) -> bool:
        """Whether every round does all work, learning's and a decoy's, whatever is then used.

        Where clients wait for the next query, the time until it comes must not tell what was done.
        """
        ...

    def first_weights(self, seed: int) -> Vector:
        """Where a trajectory begins."""
        ...

    def score(self, weights: Vector) -> float:
        """How good weights are: accuracy on the validation set, or the function's value."""
        ...

    def observe(self, round_number: int) -> int | None:
        """The oracle state of a round as it shows; None where it must be drawn."""
        ...

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Send a query and judge what comes back."""
        ...

    def learn(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> LearnerState:
        """Move the true trajectory on the replies to its query; not `kept`: only for the time."""
        ...

    def deceive(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> Generator[Work, Any, LearnerState]:
        """Move the decoy that was queried; not `kept`: only for the time it takes."""
        ...

    def remember(self) -> Remembered:
        """What those who answer must find again after a resume, beside the state of the run."""
        ...

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """What the summary says of the final weights."""
        ...


@dataclass(frozen=True, eq=False)
class Federation:
    """What does not change in a run.

    Parameters
    ----------
    settings : of the run
    answerers : who answers its queries
    problem : with the success chances in force
    policy : when to learn
    measured : success chances measured for the federation, whichever are in force
    recorded : participation to replay, None to draw it
    arrivals : updates that arrive by round, None to draw them
    """

    settings: RunSettings
    answerers: Answerers
    problem: Problem
    policy: RunPolicy
    measured: FloatArray | None = None
    recorded: RecordedRounds | None = None
    arrivals: Mapping[int, int] | None = None


Rounds = Generator[Work, Any, RunState]


def start_run(federation: Federation, first: Sequence[Vector] | None = None) -> RunState:
    """The state before the first round.

    Parameters
    ----------
    first : weights that the true trajectory and each decoy begin with, None to draw them
    """
    seed, answerers = federation.settings.hidden_seed, federation.answerers
    true, *decoys = first or (
        answerers.first_weights(draw_seed(seed, Stream.INITIAL, number))
        for number in range(1 + answerers.num_decoys)
    )
    queue = UpdateQueue()
    if isinstance(federation.problem, FiniteHorizon):
        queue = queue.admit(federation.problem.updates, 0, None)
    algorithm = federation.settings.sections.federation.algorithm
    return RunState(
        round=0,
        learner=start_learner(true, decoys, algorithm),
        queue=queue,
        oracle_state=-1,
        learning_queries=0,
        scores=tuple(answerers.score(weights) for weights in (true, *decoys)),
        rejected={},
        totals={
            "privacy_cost": 0.0,
            "learning_cost": 0.0,
            "backlog": 0.0,
            "served": 0.0,
            "wait": 0.0,
            "finished": 0.0,
        },
        seen=(),
    )


# --- what happens to the federation, whatever is done -------------------------------------------


def draw_oracle_state(federation: Federation, before: int, round_number: int) -> int:
    """The oracle state of a round; the first is drawn from the stationary law."""
    oracle, seed = federation.problem.oracle, federation.settings.seed
    return draw_state(oracle, federation.recorded, before, round_number, seed=seed)


def draw_arrival(federation: Federation, round_number: int) -> int:
    """Updates that arrive in a round; none in a horizon, where all are owed from the beginning."""
    problem = federation.problem
    if isinstance(problem, FiniteHorizon):
        return 0
    if federation.arrivals is not None:
        return federation.arrivals.get(round_number, 0)
    if federation.recorded is not None and federation.recorded.arrivals is not None:
        return int(federation.recorded.arrivals[round_number - 1])
    draw = make_generator(federation.settings.hidden_seed, Stream.ARRIVAL, round_number).random()
    return problem.arrival_size if draw < problem.arrival_prob else 0


# --- a round ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What was seen before a query, and what was decided.

    Parameters
    ----------
    observation : all that the policy knows
    arrival : updates that arrive in this round
    learn_prob : its chance of learning
    trajectory : 0 for the true one, 1, 2, ... for a decoy
    decoy : the decoy that is queried, or would be
    """

    observation: Observation
    arrival: int
    learn_prob: float
    trajectory: int
    decoy: int

    @property
    def learns(self) -> bool:
        """Whether the true weights are sent."""
        return self.trajectory == 0


def decide(federation: Federation, state: RunState, policy: RunPolicy) -> Decision:
    """Observe the federation and choose the trajectory that is queried."""
    number = state.round + 1
    oracle_state = federation.answerers.observe(number)
    if oracle_state is None:
        oracle_state = draw_oracle_state(federation, state.oracle_state, number)
    arrival = draw_arrival(federation, number)
    horizon = isinstance(federation.problem, FiniteHorizon)
    observation = Observation(
        oracle_state=oracle_state,
        backlog=state.queue.backlog,
        arrival=int(arrival > 0),
        rounds_left=federation.settings.rounds - state.round if horizon else 0,
        learning_queries=state.learning_queries,
    )
    learn_prob = float(policy.policy.learn_prob(observation))
    generator = make_generator(federation.settings.hidden_seed, Stream.ACTION, number)
    learns = generator.random() < learn_prob
    # Drawn in either case, so that the choice among decoys never moves other draws.
    decoy = 1 + int(generator.integers(federation.answerers.num_decoys))
    return Decision(observation, arrival, learn_prob, 0 if learns else decoy, decoy)


def run_rounds(
    federation: Federation,
    folder: RunFolder,
    state: RunState,
    *,
    after_round: Callable[[RunState], None] | None = None,
) -> Rounds:
    """Run the rounds that are left, recording each; yields work and is sent its results.

    Parameters
    ----------
    told : called with the state after every round
    """
    policy = federation.policy
    while state.round < federation.settings.rounds:
        policy = _refresh(federation, state, policy)
        decision = decide(federation, state, policy)
        query = Query(
            state.round + 1,
            int(decision.observation.oracle_state),
            decision.trajectory,
            state.learner.query(decision.trajectory),
        )
        outcome = yield from federation.answerers.ask(query)
        moved = yield from _update(federation, state, policy, decision, query, outcome)
        learner, queue, done = moved
        before, state = state, _close_round(federation, state, decision, outcome, learner, queue)
        state = _count_waits(state, done)
        _record(federation, folder, before, state, decision, outcome, done)
        if after_round is not None:
            after_round(state)
    return state


def _refresh(federation: Federation, state: RunState, policy: RunPolicy) -> RunPolicy:
    """Search the policy anew on the rounds seen, where the run asks for it and it is time."""
    every = federation.settings.sections.policy.refresh
    if every is None or state.round < FEWEST_SEEN:
        return policy
    last = state.round - state.round % every
    is_due = state.round == last or policy is federation.policy
    if not is_due or last < FEWEST_SEEN:
        return policy
    seed = federation.settings.hidden_seed
    found = refresh_policy(federation.problem, state.seen[:last], seed=seed)
    return replace(policy, policy=found)


def _update(
    federation: Federation,
    state: RunState,
    policy: RunPolicy,
    decision: Decision,
    query: Query,
    outcome: Outcome,
) -> Generator[Work, Any, tuple[LearnerState, UpdateQueue, DoneUpdate | None]]:
    """Move the trajectory that was queried, if the round was a success.

    Where the rounds are to be steady both kinds of work are done in the same order in every round,
    and what is not needed is thrown away.
    """
    learner, answerers = state.learner, federation.answerers
    learns = _learns(state, policy, query, outcome)
    gated = federation.settings.sections.decoy.gated
    deceives = query.trajectory > 0 and (outcome.accepted or not gated)
    moved = learner
    if learns or answerers.is_steady:
        learned = answerers.learn(learner, query, outcome, kept=learns)
        moved = learned if learns else moved
    if deceives or answerers.is_steady:
        lie = replace(query, trajectory=decision.decoy, weights=learner.query(decision.decoy))
        deceived = yield from answerers.deceive(learner, lie, outcome, kept=deceives)
        moved = deceived if deceives else moved
    has_learned = moved.updates > learner.updates  # an aggregation can fail, and nothing is done
    if not (has_learned and state.queue.backlog > 0):
        return moved, state.queue, None
    queue, done = state.queue.serve(query.round)
    return moved, queue, done


def _learns(state: RunState, policy: RunPolicy, query: Query, outcome: Outcome) -> bool:
    """Whether the round moves the true trajectory."""
    counts = outcome.accepted or (policy.takes_every_reply and len(outcome.replies.clients) > 0)
    is_owed = state.queue.backlog > 0 or policy.updates_unowed
    return query.trajectory == 0 and counts and is_owed


def _close_round(
    federation: Federation,
    state: RunState,
    decision: Decision,
    outcome: Outcome,
    learner: LearnerState,
    queue: UpdateQueue,
) -> RunState:
    """The state after the round, with its arrivals, costs and accuracies."""
    number, problem = state.round + 1, federation.problem
    capacity = problem.capacity if isinstance(problem, QueueProblem) else None
    queue = queue.admit(decision.arrival, number, capacity)
    privacy, learning = charge_round(problem, state, decision, queue.lost - state.queue.lost)
    totals = dict(state.totals)
    totals["privacy_cost"] += privacy
    totals["learning_cost"] += learning
    totals["backlog"] += state.queue.backlog
    rejected = Counter(state.rejected) + Counter(reason for _, reason in outcome.replies.rejected)
    oracle_state = int(decision.observation.oracle_state)
    return RunState(
        round=number,
        learner=learner,
        queue=queue,
        oracle_state=oracle_state,
        learning_queries=state.learning_queries + decision.learns,
        scores=_rescore(federation, state, learner),
        rejected=dict(rejected),
        totals=totals,
        seen=(*state.seen, (oracle_state, decision.arrival, outcome.accepted)),
    )


def charge_round(
    problem: Problem, state: RunState, decision: Decision, lost: int
) -> tuple[float, float]:
    """Privacy and learning cost of a round; a horizon's learning cost is due at its end (D6)."""
    oracle_state, backlog = int(decision.observation.oracle_state), state.queue.backlog
    privacy = float(problem.privacy_cost[oracle_state]) if decision.learns else 0.0
    if isinstance(problem, FiniteHorizon):
        return privacy, 0.0
    learning = 0.0
    if problem.learning_cost.charged == "always" or not decision.learns:
        learning = float(problem.learning_cost.at(np.array(backlog)))
    if backlog == problem.capacity and not decision.learns:
        learning += problem.full_cost
    return privacy, learning + (problem.overflow_cost or 0.0) * lost


def _rescore(federation: Federation, state: RunState, learner: LearnerState) -> tuple[float, ...]:
    """Scores, worked out anew only where weights have moved, or all where rounds are steady."""
    before = (state.learner.true, *state.learner.decoys)
    after = (learner.true, *learner.decoys)
    steady = federation.answerers.is_steady
    return tuple(
        known if old is new and not steady else federation.answerers.score(new)
        for known, old, new in zip(state.scores, before, after, strict=True)
    )


def _count_waits(state: RunState, done: DoneUpdate | None) -> RunState:
    if done is None:
        return state
    totals = dict(state.totals)
    totals["served"] += 1
    totals["wait"] += done.done - done.came
    totals["finished"] += done.finished
    return replace(state, totals=totals)


# --- records ----------------------------------------------------------------------------------


def _record(
    federation: Federation,
    folder: RunFolder,
    before: RunState,
    after: RunState,
    decision: Decision,
    outcome: Outcome,
    done: DoneUpdate | None,
) -> None:
    """Write a round down, public and private, and seal it."""
    sent = before.learner.query(decision.trajectory)
    weights = folder.write_weights(federation.answerers.layout, sent)
    if weights:
        folder.append(
            "public/rounds.jsonl", {"round": after.round, "client": None, "weights": weights}
        )
    costs = charge_round(federation.problem, before, decision, after.queue.lost - before.queue.lost)
    folder.append(
        "private/rounds.jsonl", describe_round(before, after, decision, outcome, weights, costs)
    )
    if done is not None:
        folder.append(
            "private/updates.jsonl",
            {"task": done.task, "came": done.came, "done": done.done, "finished": done.finished},
        )
    folder.append(
        "metrics.jsonl",
        {
            "round": after.round,
            "learner_score": after.scores[0],
            "decoy_scores": list(after.scores[1:]),
            "backlog": after.queue.backlog,
            "exposure": after.exposure,
        },
    )
    kept = federation.answerers.remember()
    folder.seal(pack_state(after, federation.answerers.layout, kept.arrays, kept.facts))


def describe_round(
    before: RunState,
    after: RunState,
    decision: Decision,
    outcome: Outcome,
    weights: str,
    costs: tuple[float, float],
) -> dict[str, Any]:
    """The private record of a round; `costs` are its privacy and learning cost."""
    observation = decision.observation
    return {
        "round": after.round,
        "oracle_state": int(observation.oracle_state),
        "backlog": int(observation.backlog),
        "arrival": decision.arrival,
        "rounds_left": int(observation.rounds_left),
        "learning_queries": int(observation.learning_queries),
        "learn_prob": decision.learn_prob,
        "action": "learn" if decision.learns else "obfuscate",
        "trajectory": decision.trajectory,
        "weights": weights,
        "clients": outcome.attendance.clients.tolist(),
        "batches": outcome.attendance.batches.tolist(),
        "examples": outcome.examples,
        "rejected": [list(entry) for entry in outcome.replies.rejected],
        "accepted": outcome.accepted,
        "updated": after.learner.updates > before.learner.updates,
        "backlog_after": after.queue.backlog,
        "lost": after.queue.lost - before.queue.lost,
        "privacy_cost": costs[0],
        "learning_cost": costs[1],
    }


def summarise(federation: Federation, state: RunState) -> dict[str, Any]:
    """The summary of a run that has ended."""
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
        **federation.answerers.describe(state.learner),
        "updates_done": state.learner.updates,
        "rounds": state.round,
        "learning_queries": state.learning_queries,
        "exposure": state.exposure,
        "completed": state.queue.backlog == 0,
        "updates_missing": state.queue.backlog,
        "rejected_replies": sum(state.rejected.values()),
        "rejected_by_reason": dict(state.rejected),
        "average_privacy_cost": state.totals["privacy_cost"] / max(state.round, 1),
        "mean_wait": state.totals["wait"] / served if served else None,
        "little_wait": state.totals["backlog"] / served if served else None,
        "success_measured": None if measured is None else measured.tolist(),
        "success_printed": federation.settings.problem.oracle.success.tolist(),
        **queue_only,
    }
