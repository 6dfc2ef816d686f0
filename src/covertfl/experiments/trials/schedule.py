"""What happens in a run whatever the weights are: oracle, actions, acceptance, updates.

Neither the policy nor the acceptance of a round looks at weights, so all of it can be drawn before
anything is trained.  What has to be trained follows from it: only rounds that move a trajectory,
and of the decoy's only those that the eavesdropper's estimate (6) can point to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covertfl.decision.problem import FiniteHorizon
from covertfl.runs.clients import ClientAnswers
from covertfl.runs.federation import Federation, decide
from covertfl.runs.learner import start_learner
from covertfl.runs.participation import Attendance, count_examples
from covertfl.runs.queue import UpdateQueue
from covertfl.runs.state import RunState

NOTHING = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rounds of a run.

    Parameters
    ----------
    oracle_states : (N,)
    learns : (N,) True where the true weights are sent
    moves : (N,) True where the trajectory that is queried moves after the round
    attendances : (N,) who answers
    owed : updates still owed at the end
    """

    oracle_states: tuple[int, ...]
    learns: tuple[bool, ...]
    moves: tuple[bool, ...]
    attendances: tuple[Attendance, ...]
    owed: int

    @property
    def exposure(self) -> float:
        """Learning queries over all rounds (F3)."""
        return sum(self.learns) / len(self.learns)

    @property
    def is_completed(self) -> bool:
        """Whether no update is owed."""
        return self.owed == 0


def draw_schedule(federation: Federation) -> Schedule:
    """Draw the rounds of a finite horizon as `federation.run_rounds` would run them."""
    answers, problem = federation.answerers, federation.problem
    assert isinstance(answers, ClientAnswers) and isinstance(problem, FiniteHorizon)
    state = RunState(
        round=0,
        learner=start_learner(NOTHING, [NOTHING] * answers.num_decoys, "fedavg"),
        queue=UpdateQueue().admit(problem.updates, 0, None),
        oracle_state=-1,
        learning_queries=0,
        scores=(),
        rejected={},
        totals={},
        seen=(),
    )
    oracle_states, learns, moves, attendances = [], [], [], []
    for number in range(1, federation.settings.rounds + 1):
        decision = decide(federation, state, federation.policy)
        oracle_state = int(decision.observation.oracle_state)
        attendance = answers.draw_clients(oracle_state, number)
        examples = _count_examples(answers, attendance)
        accepted = answers.is_accepted(oracle_state, number, examples)
        moved = _moves(federation, decision.learns, accepted, examples, state.queue.backlog)
        queue = state.queue
        if decision.learns and moved and queue.backlog > 0:
            queue, _ = queue.serve(number)
        state = replace(
            state,
            round=number,
            queue=queue,
            oracle_state=oracle_state,
            learning_queries=state.learning_queries + decision.learns,
        )
        oracle_states.append(oracle_state)
        learns.append(decision.learns)
        moves.append(moved)
        attendances.append(attendance)
    return Schedule(
        tuple(oracle_states), tuple(learns), tuple(moves), tuple(attendances), state.queue.backlog
    )


def _count_examples(answers: ClientAnswers, attendance: Attendance) -> int:
    batch_size = answers.settings.sections.federation.batch_size
    sizes = answers.sizes[attendance.clients]
    return int(count_examples(attendance.batches, sizes, batch_size).sum())


def _moves(
    federation: Federation, learns: bool, accepted: bool, examples: int, backlog: int
) -> bool:
    """Whether the trajectory that is queried moves."""
    if not learns:
        return accepted or not federation.settings.sections.decoy.gated
    policy = federation.policy
    counts = accepted or (policy.takes_every_reply and examples > 0)
    return counts and (backlog > 0 or policy.updates_unowed)


# --- what the eavesdropper of (6) holds ---------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What the estimate (6) is after a round.

    Parameters
    ----------
    true : the number of updates behind the true weights it holds, None where it holds none
    decoy : the number of moves behind the decoy's, None where it holds none; both where they tie
    """

    true: int | None
    decoy: int | None


def follow_estimate(schedule: Schedule) -> list[Held]:
    """The estimate (6) after each round: the last query of the trajectory with most queries."""
    held = []
    counts, sent, moved = [0, 0], [0, 0], [0, 0]
    for learns, moves in zip(schedule.learns, schedule.moves, strict=True):
        trajectory = 0 if learns else 1
        counts[trajectory] += 1
        sent[trajectory] = moved[trajectory]
        moved[trajectory] += moves
        held.append(
            Held(
                sent[0] if counts[0] >= counts[1] else None,
                sent[1] if counts[1] >= counts[0] else None,
            )
        )
    return held


def name_truth(held: Held) -> float:
    """1 where the estimate is the true trajectory, 0 where it is the decoy, one half for a tie."""
    return 0.5 * ((held.true is not None) + (held.decoy is None))


def list_needed_moves(held: Sequence[Held]) -> list[int]:
    """Numbers of moves after which the decoy's weights are ever held."""
    return sorted({entry.decoy for entry in held if entry.decoy is not None})
