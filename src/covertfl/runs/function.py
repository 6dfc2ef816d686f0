"""A noisy oracle of a function, which answers queries with gradients (section 2 of the paper).

The step 1/m counts the updates of one task and starts anew with each task of the queue.  Decoys
start anew after as many moves as a task has updates, so that their steps look alike.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covertfl.decision.problem import QueueProblem
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.learner import LearnerState, SiftedReplies
from covertfl.runs.participation import Attendance
from covertfl.runs.responder import Outcome, Query, Responder, Work
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.function import FunctionTask

NOBODY = Attendance(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class FunctionResponder(Responder):
    """An oracle that answers with noisy gradients, and decoys."""

    settings: RunSettings
    task: FunctionTask

    @property
    def task_size(self) -> int | None:
        """Moves after which a decoy's steps start anew, as many as the largest task has updates."""
        problem = self.settings.problem
        return problem.largest_arrival if isinstance(problem, QueueProblem) else None

    @property
    def num_decoys(self) -> int:
        """Number of decoy trajectories."""
        return len(self.task.decoy_minima)

    @property
    def layout(self) -> Layout:
        """The single parameter, the point."""
        return self.task.layout

    def first_weights(self, seed: int) -> Vector:
        """Draw a point far from the minimum."""
        return self.task.first_weights(seed)

    def score(self, weights: Vector) -> float:
        """Return the function's value, zero at its minimum."""
        return self.task.value(weights)

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Return a noisy gradient, equation (2), accepted if its noise bound is small enough."""
        generator = make_generator(self.settings.seed, Stream.RESPONSE, query.round)
        response, sigma = self.task.respond(query.weights, query.oracle_state, generator=generator)
        replies = SiftedReplies((0,), (response,), np.ones(1, dtype=np.int64), ())
        return Outcome(NOBODY, 1, replies, self.task.accepts(sigma))
        yield  # a generator without work

    def move_learner(self, learner: LearnerState, query: Query, outcome: Outcome) -> LearnerState:
        """Take the step 1/m of equation (4), and keep the randomised estimate of Theorem 1.

        This is the m-th update of its task; one that no task asked for counts all updates so far.
        """
        m = query.update or learner.updates + 1
        generator = make_generator(self.settings.seed, Stream.FINAL, query.round)
        estimate = learner.estimate
        if estimate is None or self.task.keeps(m, generator=generator):
            estimate = query.weights
        response, size = outcome.replies.values[0], self.task.step_size(m)
        moved = self.task.step(query.weights, response, size)
        return replace(learner, true=moved, updates=learner.updates + 1, estimate=estimate)

    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, LearnerState]:
        """Take the decoy's step of equation (5), on a function with another minimum."""
        generator = make_generator(self.settings.seed, Stream.DECOY, query.round)
        state, decoy = query.oracle_state, query.trajectory
        response, _ = self.task.respond_decoy(query.weights, state, decoy, generator=generator)
        m = self._count_steps(learner, decoy) + 1
        moved = self.task.step(query.weights, response, self.task.step_size(m))
        return learner.with_decoy(query.trajectory, moved)
        yield  # a generator without work

    def _count_steps(self, learner: LearnerState, decoy: int) -> int:
        """Return how many steps a decoy has taken since its schedule started."""
        moves = learner.moves[decoy - 1]
        if learner.restarted is not None:
            return moves - learner.restarted[decoy - 1]
        return moves if self.task_size is None else moves % self.task_size

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Return the last point's value, and value and gradient norm of the estimate."""
        estimate = learner.true if learner.estimate is None else learner.estimate
        return {
            "learner_accuracy": None,
            "learner_value": self.task.value(learner.true),
            "estimate_value": self.task.value(estimate),
            "estimate_gradient_norm_squared": float(np.sum(self.task.gradient(estimate) ** 2)),
        }
