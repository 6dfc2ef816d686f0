"""A training run as plain sequential code: observe, decide, query, update, record.

`run_rounds` is a generator: it yields work, the clients' or its own, and is sent the results.  Who
carries the work out, alone or together with that of other runs, is the engine's concern
(`drive`), and who answers the queries is the responder's (`responder`).

Everything random in a round comes from streams of its own (`seeding`), and the state after a round
is all that the next one needs, so a run can be interrupted anywhere and resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.runs.actions import Decision, decide
from covertfl.runs.federation import TOTALS, Federation, RunState
from covertfl.runs.generations import advance
from covertfl.runs.learner import LearnerState
from covertfl.runs.live import SeenRound, is_due, make_live_policy, refresh_live
from covertfl.runs.policy import RunPolicy
from covertfl.runs.queue import DoneUpdate
from covertfl.runs.records import (
    Costs,
    PlayedRound,
    Records,
    begin_query,
    charge_round,
    record_round,
)
from covertfl.runs.responder import Outcome, Query, Work
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator

# Learning queries, and moves of the true weights, that a matched decoy assumes before the first.
FIRST_QUERIES, FIRST_MOVES = 2.0, 1.5

Rounds = Generator[Work, Any, RunState]
Request = TypeVar("Request")
Returned = TypeVar("Returned")
OnState = Callable[[RunState], None]


def run_rounds(
    federation: Federation,
    records: Records,
    state: RunState,
    after_round: OnState | None = None,
    intake: Intake | None = None,
) -> Rounds:
    """Run and record the rounds that are left; yield work and receive its results.

    Parameters
    ----------
    after_round : called with the state after each round, which is on the disk then
    intake : changes the federation and the state before a round, or ends the run
    """
    policy, pending = federation.policy, records.read_note()
    while state.round < federation.settings.rounds:
        if intake is not None:
            is_repeated = pending is not None and pending.get("round") == state.round + 1
            begun = intake.begin(federation, state, is_repeated=is_repeated)
            if begun is None:
                break
            federation, state = begun
        state, policy = refresh_policy(federation, state, policy)
        # Always decided: the responder finds out here who is connected.
        decision = decide(federation, state, policy)
        repeated, pending = repeat_decision(federation, records, pending, state), None
        decision = repeated or decision
        records.note({"round": state.round + 1, **decision.to_dict()})
        begin_query(federation, records, state, decision)
        played = yield from play_round(federation, state, policy, decision)
        record_round(federation, records, played)
        state = played.after
        if after_round is not None:
            after_round(state)
    return state


def repeat_decision(
    federation: Federation, records: Records, pending: dict[str, Any] | None, state: RunState
) -> Decision | None:
    """Return the decision of a round that was interrupted, None if none was.

    Decisions are written down before their queries are sent.  A round that was interrupted is
    repeated as it was decided, whatever is observed now and however many rounds are left: another
    query would show clients two trajectories in one round.

    Parameters
    ----------
    pending : what was written down last
    """
    if pending is None or pending.pop("round", None) != state.round + 1:
        return None
    repeated = Decision.from_dict(pending)
    trajectories, states = len(state.learner.trajectories), federation.problem.oracle.num_states
    for name, value, most in (
        ("trajectory", repeated.trajectory, trajectories - 1),
        ("oracle_state", repeated.oracle_state, states - 1),
    ):
        if value > most:
            raise InvalidInput(f"{records.note_name}: {name} must be at most {most}, got {value}")
    return repeated


def play_round(
    federation: Federation, state: RunState, policy: RunPolicy, decision: Decision
) -> Generator[Work, Any, PlayedRound]:
    """Run the round that follows a state, as decided: query, update the queried trajectory."""
    sent = state.learner.query(decision.trajectory)
    number = state.round + 1
    query = Query(number, decision.oracle_state, decision.trajectory, sent)
    outcome = yield from federation.responder.ask(query)
    if policy.is_exchangeable:
        learner, generation, outcome = advance(
            federation.responder,
            state.learner,
            state.generation.enter(state.queue.backlog),
            query,
            outcome,
            is_last=isinstance(federation.problem, FiniteHorizon) and state.queue.backlog == 1,
        )
        state = replace(state, generation=generation)
    else:
        learner, outcome = yield from update_trajectories(federation, policy, state, query, outcome)
    return (yield from _close_round(federation, state, decision, outcome, learner))


def update_trajectories(
    federation: Federation, policy: RunPolicy, state: RunState, query: Query, outcome: Outcome
) -> Generator[Work, Any, tuple[LearnerState, Outcome]]:
    """Move the trajectory that was queried: the coupled updates, equation (1) of the paper.

    x_{k+1} = x_k - mu_k H(r_k, y_k, q_k), where H is zero for every trajectory but the queried one:

    - the true trajectory moves on the replies if the round is a success and an update is owed
      (some policies use every reply, or learn when nothing is owed);
    - a decoy moves by its own rule: if the round is a success (gated), in any case (not gated), or
      as often as learning queries have moved the true trajectory (matched).

    A round whose aggregation fails moves nothing and is not accepted, whichever trajectory it was.
    """
    if query.trajectory == 0:
        is_enough = outcome.has_quorum and outcome.examples > 0
        is_used = outcome.accepted or (policy.takes_every_reply and is_enough)
        is_moving = is_used and (state.queue.backlog > 0 or policy.updates_unowed)
    else:
        is_moving = moves_decoy(federation.settings, state, outcome)
    moved = yield from federation.responder.update(
        state.learner, query, outcome, is_moving=is_moving
    )
    if moved is None:
        return state.learner, replace(outcome, accepted=False)
    return moved, outcome


def moves_decoy(settings: RunSettings, state: RunState, outcome: Outcome) -> bool:
    """Return whether a decoy that was queried moves; the draw of a matched one is hidden."""
    gated = settings.sections.decoy.gated
    if gated != "matched":
        return outcome.accepted or not gated
    moves, queries = state.learner.updates + FIRST_MOVES, state.learning_queries + FIRST_QUERIES
    draw = make_generator(settings.hidden_seed, Stream.MOVE, state.round + 1).random()
    return bool(draw < moves / queries)


def refresh_policy(
    federation: Federation, state: RunState, policy: RunPolicy
) -> tuple[RunState, RunPolicy]:
    """Make the policy anew from the rounds seen, if it is due or the run has just been resumed."""
    problem, section = federation.problem, federation.settings.sections.policy
    method, rounds = section.live_method, state.round
    is_new = section.refresh is not None and is_due(state.live, section.refresh, rounds)
    if is_new or (federation.is_refit and rounds > state.live.refreshed):
        is_learning = isinstance(problem, FiniteHorizon) or problem.objective == "privacy"
        live = refresh_live(
            problem,
            method,
            state.live,
            state.seen,
            rounds=rounds,
            spent=state.totals["learning_cost" if is_learning else "privacy_cost"],
            seed=federation.settings.hidden_seed,
        )
        state = replace(state, live=live)
    elif policy is not federation.policy or not state.live.refreshed:
        return state, policy
    made = make_live_policy(problem, method, state.live, state.seen, rounds=rounds)
    return state, replace(policy, policy=made)


def _remember(federation: Federation, state: RunState, seen: SeenRound) -> tuple[SeenRound, ...]:
    """Return the rounds that later refreshes, and a resumed run, need; none without refreshes."""
    number = federation.settings.remembered_rounds
    return (*state.seen, seen)[-number:] if number else ()


def _close_round(
    federation: Federation,
    state: RunState,
    decision: Decision,
    outcome: Outcome,
    learner: LearnerState,
) -> Generator[Work, Any, PlayedRound]:
    """Serve and fill the queue, charge the costs and score the trajectories after a round."""
    number, problem = state.round + 1, federation.problem
    queue, done = state.queue, None
    if learner.updates > state.learner.updates and queue.backlog > 0:
        judged = federation.responder.measure_loss(learner.true) if queue.needs_loss else None
        queue, done = queue.serve(number, judged)
    if federation.joining is not None:
        queue = queue.join(federation.joining)
    else:
        capacity = problem.capacity if isinstance(problem, QueueProblem) else None
        queue = queue.admit(decision.arrival, number, capacity)
    lost = queue.lost - state.queue.lost
    costs = charge_round(problem, state.queue.backlog, decision, lost)
    seen = (decision.oracle_state, decision.arrival, outcome.accepted)
    rejected = Counter(state.rejected) + Counter(reason for _, reason in outcome.replies.rejected)
    scores = yield from federation.responder.rescore(state.scores, state.learner, learner)
    after = RunState(
        round=number,
        learner=learner,
        queue=queue,
        oracle_state=decision.oracle_state,
        queries=_count_query(state.queries, decision.trajectory),
        scores=scores,
        rejected=dict(rejected),
        totals=_add_totals(state, costs, done, _count_replies(federation, decision, outcome)),
        seen=_remember(federation, state, seen),
        live=state.live,
        generation=state.generation,
    )
    return PlayedRound(state, after, decision, outcome, costs, done)


def _count_query(queries: tuple[int, ...], trajectory: int) -> tuple[int, ...]:
    """Return the numbers of queries with one more of a trajectory."""
    return tuple(count + (number == trajectory) for number, count in enumerate(queries))


def _count_replies(federation: Federation, decision: Decision, outcome: Outcome) -> int:
    """Return how many replies were needed or rejected; not all engines have the others."""
    is_needed = federation.responder.needs_replies(decision.trajectory)
    return len(outcome.replies.rejected) + is_needed * len(outcome.replies.clients)


def _add_totals(
    state: RunState, costs: Costs, done: DoneUpdate | None, replies: int
) -> dict[str, float]:
    """Add a round's costs, backlog, served update and replies to the totals of the run."""
    totals = {**dict.fromkeys(TOTALS, 0.0), **state.totals}
    totals["replies"] += replies
    totals["privacy_cost"] += costs.privacy
    totals["learning_cost"] += costs.learning
    totals["backlog"] += state.queue.backlog
    if done is not None:
        totals["served"] += 1
        totals["wait"] += done.done - done.came
        totals["finished"] += done.finished
    return totals


class Intake(Protocol):
    """What comes to a run from outside."""

    def begin(
        self, federation: Federation, state: RunState, *, is_repeated: bool
    ) -> tuple[Federation, RunState] | None:
        """Return the federation and the state that the next round starts from, None to end the run.

        What it returns may depend only on the state and on what it has stored itself: a round that
        was interrupted is begun again.  Whatever it does to the true trajectory it does to all.

        Parameters
        ----------
        federation : of the round before
        is_repeated : whether the round was decided before it was interrupted, so that nothing new
            may come to it
        """
        ...


class RequestDesk(Intake, Protocol):
    """An intake that is told what has become of every round."""

    def end(self, state: RunState) -> None:
        """Take note of the state after a round, which is on the disk."""
        ...


# Opens the desk of a run: its folder, its federation and the state that it starts from.
OpenDesk = Callable[[Path, Federation, RunState], AbstractContextManager[RequestDesk]]


def drive(
    generators: Sequence[Generator[Request, Any, Returned]],
    answer: Callable[[Mapping[int, Request]], Mapping[int, Any]],
) -> list[Returned]:
    """Run generators to their ends and return their results in order.

    Parameters
    ----------
    generators : not yet started; they need not proceed in step
    answer : callback that receives all open requests by the generator's number, and returns answers
        to at least one of them
    """
    waiting: dict[int, Request] = {}
    results: dict[int, Returned] = {}
    answers: Mapping[int, Any] = dict.fromkeys(range(len(generators)))
    while True:
        for number, sent in answers.items():
            try:
                waiting[number] = generators[number].send(sent)
            except StopIteration as stop:
                waiting.pop(number, None)
                results[number] = stop.value
        if not waiting:
            return [results[number] for number in range(len(generators))]
        answers = answer(dict(waiting))
