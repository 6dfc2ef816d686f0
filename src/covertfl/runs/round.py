"""One round of a run after the other: observe, ask, answer, learn, record.

    seen     = observation before the query                 oracle state, backlog, arrival, ...
    query    = scheme.ask(state, round, seen)               what every client is sent
    outcome  = engine.ask(query)                            replies; accepted if enough valid ones
    step     = scheme.learn(state, query, outcome)          x_{k+1} = x_k - mu_k H(r_k, y_k, q_k),
                                                            equation (1) of the paper
    queue    = served by the update, filled by arrivals
    records  = public: what was sent; private: what was observed, done and paid

`run_rounds` is the only loop: training, services, the replay of an exact purge, rehearsals of an
audit and the paper's experiments differ in the records that they keep and in what comes to a run
from outside (`Intake`).  It is a generator: it yields work, the clients' or its own, and is sent
the results.

Everything random in a round comes from streams of its own (`seeding`), and the state after a round
is all that the next one needs, so a run can be interrupted anywhere and resumed.  Oracle states and
arrivals depend on nothing that the run has done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.runs.engine import ScoreWork, Work
from covertfl.runs.participation import Clients, draw_state
from covertfl.runs.queue import DoneUpdate, OwedTask
from covertfl.runs.records import (
    Costs,
    PlayedRound,
    Records,
    begin_query,
    charge_round,
    record_round,
)
from covertfl.runs.state import TOTALS, Federation, RunState
from covertfl.schemes.scheme import History, Outcome, Query, SeenRound, Step
from covertfl.seeding import Stream, make_generator

Rounds = Generator[Work, Any, RunState]
OnState = Callable[[RunState], None]
BROKEN = "the round that was interrupted cannot be repeated as it was"


@dataclass(frozen=True, eq=False)
class Begun:
    """What a round begins with.

    Parameters
    ----------
    clients : with the data that they hold in it
    joining : tasks that join the queue at its end, None for those that arrive by draw
    is_outdated : whether the latest rounds contradict the problem
    """

    state: RunState
    clients: Clients
    joining: tuple[OwedTask, ...] | None = None
    is_outdated: bool = False


class Intake(Protocol):
    """What comes to a run from outside."""

    def begin(self, state: RunState, *, is_repeated: bool) -> Begun | None:
        """Return what the next round starts from, None to end the run.

        What it returns may depend only on the state and on what it has stored itself: a round that
        was interrupted is begun again.

        Parameters
        ----------
        is_repeated : whether the round was observed before it was interrupted, so that nothing new
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


@dataclass(frozen=True)
class Seen:
    """What was observed before a query, and the number of updates that arrive in the round."""

    observation: Observation
    arrival: int


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
    intake : changes data, queue and state before a round, or ends the run
    """
    pending = records.read_note()
    while state.round < federation.settings.rounds:
        begun: Begun | None = Begun(state, federation.clients)
        if intake is not None:
            is_repeated = pending is not None and pending.get("round") == state.round + 1
            begun = intake.begin(state, is_repeated=is_repeated)
        if begun is None:
            break
        begun = _follow(federation, begun)
        # Always observed: an engine finds out here who is connected.
        seen = observe(federation, begun)
        note, pending = _find_note(pending, state.round + 1), None
        seen = seen if note is None else _recall(federation, records, note)
        query = federation.scheme.ask(begun.state.scheme, state.round + 1, seen.observation)
        query = query if note is None else _repeat(federation, records, note, begun.state, query)
        records.note(_describe_note(query, seen))
        begin_query(federation, records, begun.state, query)
        played = yield from play_round(federation, begun, query, seen.arrival)
        record_round(federation, records, played)
        state = played.after
        if after_round is not None:
            after_round(state)
    return state


def _follow(federation: Federation, begun: Begun) -> Begun:
    """Let the scheme learn from the rounds so far."""
    state = begun.state
    history = recount(state, is_outdated=begun.is_outdated)
    followed = federation.scheme.follow(state.scheme, history)
    return replace(begun, state=replace(state, scheme=followed))


def recount(state: RunState, *, is_outdated: bool = False) -> History:
    """Return what a run has seen and spent so far."""
    return History(state.round, state.seen, state.totals, is_outdated)


# --- before the query -----------------------------------------------------------------------------


def observe(federation: Federation, begun: Begun) -> Seen:
    """Observe the round that follows a state."""
    state, problem = begun.state, federation.problem
    number, seed = state.round + 1, federation.settings.seed
    oracle_state = federation.engine.observe(number)
    if oracle_state is None:
        before = state.oracle_state
        oracle_state = draw_state(problem.oracle, federation.recorded, before, number, seed=seed)
    arrival = draw_arrival(federation, number)
    if begun.joining is not None:
        arrival = sum(task.left for task in begun.joining)
    if isinstance(problem, FiniteHorizon):
        index, rounds_left = 0, federation.settings.rounds - state.round
    else:
        index, rounds_left = int(problem.index_arrivals(arrival)), 0
    observation = Observation(
        oracle_state=oracle_state,
        backlog=state.queue.backlog,
        arrival=index,
        rounds_left=rounds_left,
        learning_queries=state.queries[0],
    )
    return Seen(observation, arrival)


def draw_arrival(federation: Federation, round_number: int) -> int:
    """Draw how many updates arrive in a round; zero in a finite horizon, where all are owed."""
    problem = federation.problem
    if isinstance(problem, FiniteHorizon):
        return 0
    if federation.arrivals is not None:
        return federation.arrivals.get(round_number, 0)
    if federation.recorded is not None and federation.recorded.arrivals is not None:
        return int(federation.recorded.arrivals[round_number - 1])
    draw = make_generator(federation.settings.hidden_seed, Stream.ARRIVAL, round_number).random()
    return int(problem.arrival_support[problem.draw_arrivals(draw)])


def _describe_note(query: Query, seen: Seen) -> dict[str, Any]:
    """Return what is written down before a query is sent.

    A round that was interrupted is asked again with the same observation, and sends the same
    trajectory, whatever is observed then and however many rounds are left: another query would show
    clients two trajectories in one round.
    """
    return {
        "round": query.round,
        "observation": dict(vars(seen.observation)),
        "arrival": seen.arrival,
        "trajectory": query.trajectory,
    }


def _find_note(pending: Mapping[str, Any] | None, number: int) -> Mapping[str, Any] | None:
    """Return the note of a round that was interrupted, None if this one was not."""
    return pending if pending is not None and pending.get("round") == number else None


def _recall(federation: Federation, records: Records, note: Mapping[str, Any]) -> Seen:
    """Return what a note says was observed; raise InvalidInput, naming it, if that cannot be."""
    try:
        numbers = {key: note[key] for key in ("arrival", "trajectory")}
        for name, value in (*numbers.items(), *note["observation"].items()):
            if type(value) is not int or value < 0:
                raise InvalidInput(f"{name} must be a whole number from 0, got {value}")
        observation = Observation(**note["observation"])
    except (LookupError, TypeError, AttributeError, InvalidInput) as error:
        raise InvalidInput(f"{records.note_name}: {BROKEN}: {error}") from error
    most = federation.problem.oracle.num_states - 1
    if int(observation.oracle_state) > most:
        raise InvalidInput(
            f"{records.note_name}: oracle_state must be at most {most}, got "
            f"{observation.oracle_state}"
        )
    return Seen(observation, note["arrival"])


def _repeat(
    federation: Federation, records: Records, note: Mapping[str, Any], state: RunState, query: Query
) -> Query:
    """Return the query of a round that was interrupted, with the trajectory that it has sent.

    A policy for another number of rounds, or of a file that was changed, might send another one.
    """
    trajectory, shown = note["trajectory"], federation.scheme.shown(state.scheme)
    if trajectory == query.trajectory:
        return query
    if trajectory >= len(shown):
        raise InvalidInput(
            f"{records.note_name}: trajectory must be at most {len(shown) - 1}, got {trajectory}"
        )
    is_needed = federation.scheme.uses_replies(trajectory)
    return replace(query, payload=shown[trajectory], trajectory=trajectory, needs_replies=is_needed)


# --- the round ------------------------------------------------------------------------------------


def play_round(
    federation: Federation, begun: Begun, query: Query, arrival: int
) -> Generator[Work, Any, PlayedRound]:
    """Send a query, learn from the replies, serve and fill the queue, charge and score."""
    scheme, engine, state = federation.scheme, federation.engine, begun.state
    outcome = yield from engine.ask(query, scheme, begun.clients)
    step = yield from scheme.learn(state.scheme, query, outcome, engine.aggregator)
    outcome = replace(outcome, accepted=step.accepted)
    return (yield from _close_round(federation, begun, query, arrival, outcome, step))


def _close_round(
    federation: Federation, begun: Begun, query: Query, arrival: int, outcome: Outcome, step: Step
) -> Generator[Work, Any, PlayedRound]:
    """Serve and fill the queue, charge the costs and score the models after a round."""
    state, problem, number = begun.state, federation.problem, query.round
    queue, done = state.queue, None
    loss = _judge(federation, state, step)
    if step.updates and queue.backlog > 0:
        queue, done = queue.serve(number, loss)
    if begun.joining is not None:
        queue = queue.join(begun.joining)
    else:
        capacity = problem.capacity if isinstance(problem, QueueProblem) else None
        queue = queue.admit(arrival, number, capacity)
    lost = queue.lost - state.queue.lost
    costs = charge_round(problem, state.queue.backlog, query, lost)
    rejected = Counter(state.rejected) + Counter(reason for _, reason in outcome.replies.rejected)
    scores = yield from _rescore(federation, state, step)
    after = RunState(
        round=number,
        scheme=step.state,
        queue=queue,
        updates=state.updates + step.updates,
        oracle_state=query.oracle_state,
        queries=_count_query(state.queries, query.trajectory),
        scores=scores,
        rejected=dict(rejected),
        totals=_add_totals(state, costs, done, _count_replies(query, outcome)),
        seen=_remember(federation, state, (query.oracle_state, arrival, outcome.accepted)),
        data=state.data,
    )
    return PlayedRound(state, after, query, arrival, outcome, costs, done)


def _hides_moves(federation: Federation) -> bool:
    """Return whether clients could tell from the time that a round takes what has moved."""
    return federation.engine.aggregator.is_steady and not federation.scheme.moves_in_sight


def _judge(federation: Federation, state: RunState, step: Step) -> float | None:
    """Return the loss by which the update of a round is judged, None if none is needed.

    It is found in every round in which it might be needed, if time could tell.
    """
    if not (state.queue.needs_loss and (step.updates or _hides_moves(federation))):
        return None
    return federation.validation.measure_loss(federation.scheme.models(step.state)[0])


def _rescore(
    federation: Federation, state: RunState, step: Step
) -> Generator[Work, Any, tuple[float, ...]]:
    """Return the score of each model after a round.

    Unmoved ones keep their score, unless clients could tell from the time it takes what has moved.
    """
    scheme, is_always = federation.scheme, _hides_moves(federation)
    models = zip(scheme.models(state.scheme), scheme.models(step.state), strict=True)
    found = []
    for known, (old, new) in zip(state.scores, models, strict=True):
        found.append(known if old is new and not is_always else (yield ScoreWork(new)))
    return tuple(found)


def _count_query(queries: tuple[int, ...], trajectory: int) -> tuple[int, ...]:
    """Return the numbers of queries with one more of a trajectory."""
    return tuple(count + (number == trajectory) for number, count in enumerate(queries))


def _count_replies(query: Query, outcome: Outcome) -> int:
    """Return how many replies were needed or rejected; not all engines have the others."""
    return len(outcome.replies.rejected) + query.needs_replies * len(outcome.replies.clients)


def _remember(federation: Federation, state: RunState, seen: SeenRound) -> tuple[SeenRound, ...]:
    """Return the latest rounds, as many as a run needs."""
    number = federation.settings.remembered_rounds
    return (*state.seen, seen)[-number:] if number else ()


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
