"""What happens in a run whatever the weights are: oracle, actions, acceptance, updates.

Neither the policy nor the acceptance of a round depends on the weights, so all of this can be drawn
before anything is trained.  What has to be trained follows from it: only rounds that move a
trajectory, and of the decoy's only those that the eavesdropper's estimate, equation (6), points to.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covertfl.kernels.weights import Vector
from covertfl.runs.actions import decide
from covertfl.runs.clients import ClientResponder
from covertfl.runs.driver import drive
from covertfl.runs.federation import Federation, start_run
from covertfl.runs.learner import LearnerState, SiftedReplies
from covertfl.runs.participation import Attendance
from covertfl.runs.records import PlayedRound
from covertfl.runs.responder import Outcome, Query, Work
from covertfl.runs.rounds import play_round

NO_WEIGHTS = np.empty(0, dtype=np.float32)
NO_REPLIES = SiftedReplies((), (), np.empty(0, np.int64), ())


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rounds of a run.

    Parameters
    ----------
    trajectories : (N,) 0 where the true weights are sent, else the number of the decoy
    moves : (N,) True where the queried trajectory moves after the round
    attendances : (N,) the clients that answer
    owed : number of updates still owed at the end
    """

    oracle_states: tuple[int, ...]
    trajectories: tuple[int, ...]
    moves: tuple[bool, ...]
    attendances: tuple[Attendance, ...]
    owed: int

    @property
    def learns(self) -> tuple[bool, ...]:
        """(N,) True where the true weights are sent."""
        return tuple(trajectory == 0 for trajectory in self.trajectories)

    @property
    def exposure(self) -> float:
        """Share of learning queries among all rounds (formula F3 of docs/paper_map.md)."""
        return sum(self.learns) / len(self.learns)

    @property
    def is_completed(self) -> bool:
        """Whether no update is owed at the end."""
        return self.owed == 0

    def list_queries(self, *, learns: bool) -> list[tuple[int, int]]:
        """Return round and oracle state of the rounds that move the truth, or the decoy."""
        rounds = zip(self.oracle_states, self.learns, self.moves, strict=True)
        return [
            (number, state)
            for number, (state, is_true, moves) in enumerate(rounds, start=1)
            if is_true == learns and moves
        ]


class WeightlessClients(ClientResponder):
    """The clients of a run, answering without training: trajectories only count their moves."""

    def first_weights(self, seed: int) -> Vector:
        """Return no weights."""
        return NO_WEIGHTS

    def score(self, weights: Vector) -> float:
        """Return zero."""
        return 0.0

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Draw the clients that take part, and whether the round is accepted."""
        attendance = self.draw_clients(query.oracle_state, query.round)
        examples = self.count_examples(attendance)
        accepted = self.is_accepted(query.oracle_state, query.round, examples)
        return Outcome(attendance, examples, NO_REPLIES, accepted)
        yield  # a generator without work

    def move_learner(self, learner: LearnerState, query: Query, outcome: Outcome) -> LearnerState:
        """Count an update."""
        return replace(learner, updates=learner.updates + 1)

    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, LearnerState]:
        """Count a move of the decoy."""
        return learner.with_decoy(query.trajectory, NO_WEIGHTS)
        yield  # a generator without work


def draw_schedule(federation: Federation) -> Schedule:
    """Draw the rounds of a run whose policy is fixed, exactly as `run_rounds` would run them."""
    full = federation.responder
    assert isinstance(full, ClientResponder)
    clients = WeightlessClients(
        full.settings, full.task, full.kernel, full.decoy, full.success, full.recorded
    )
    (rounds,) = drive([_play(replace(federation, responder=clients))], _refuse)
    return Schedule(
        tuple(played.decision.oracle_state for played in rounds),
        tuple(played.decision.trajectory for played in rounds),
        tuple(played.is_moved for played in rounds),
        tuple(played.outcome.attendance for played in rounds),
        rounds[-1].after.queue.backlog,
    )


def _play(federation: Federation) -> Generator[Work, Any, list[PlayedRound]]:
    state, rounds = start_run(federation), []
    for _ in range(federation.settings.rounds):
        decision = decide(federation, state, federation.policy)
        played = yield from play_round(federation, state, federation.policy, decision)
        rounds.append(played)
        state = played.after
    return rounds


def _refuse(requests: Mapping[int, Work]) -> dict[int, Any]:
    raise AssertionError("rounds without weights request no work")


@dataclass(frozen=True)
class Held:
    """The eavesdropper's estimate, equation (6), after a round; both parts in a tie.

    Of several decoys it is the one queried most, the first of them in a tie.  Each part is the
    number of moves behind the weights that it holds, None if it holds none.
    """

    true: int | None
    decoy: int | None


def follow_estimate(schedule: Schedule) -> list[Held]:
    """Return the estimate after each round: the last query of the trajectory queried most."""
    held = []
    counts, sent, moved = np.zeros((3, max(1, *schedule.trajectories) + 1), dtype=np.int64)
    for trajectory, moves in zip(schedule.trajectories, schedule.moves, strict=True):
        counts[trajectory] += 1
        sent[trajectory] = moved[trajectory]
        moved[trajectory] += moves
        decoy = 1 + int(counts[1:].argmax())
        true = int(sent[0]) if counts[0] >= counts[decoy] else None
        held.append(Held(true, int(sent[decoy]) if counts[decoy] >= counts[0] else None))
    return held


def score_estimate(held: Held) -> float:
    """Return 1 if the estimate is the true trajectory, 0 if it is the decoy, 0.5 in a tie."""
    return 0.5 * ((held.true is not None) + (held.decoy is None))


def list_needed_moves(held: Sequence[Held]) -> list[int]:
    """Return the numbers of moves after which the decoy's weights are ever held."""
    return sorted({entry.decoy for entry in held if entry.decoy is not None})
