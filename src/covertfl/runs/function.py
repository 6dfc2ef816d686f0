"""A noisy oracle of a function as the one who answers queries (section 2, (2), (4), (5))."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.federation import Outcome, Query, Remembered, Work
from covertfl.runs.learner import LearnerState, SiftedReplies, move_decoy
from covertfl.runs.participation import Attendance
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.function import FunctionTask

NOBODY = Attendance(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class FunctionAnswers:
    """An oracle that answers with noisy gradients; there is one decoy, which moves by (5).

    Parameters
    ----------
    settings : of the run
    task : the function and its noise
    """

    settings: RunSettings
    task: FunctionTask
    num_decoys: int = 1
    is_steady: bool = False

    @property
    def layout(self) -> Layout:
        """One parameter, the point."""
        return self.task.layout

    def first_weights(self, seed: int) -> Vector:
        """A point far from the minimum."""
        return self.task.first_weights(seed)

    def score(self, weights: Vector) -> float:
        """The function's value, 0 at its least."""
        return self.task.value(weights)

    def observe(self, round_number: int) -> int | None:
        """Nothing shows: the oracle state is drawn."""
        return None

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """A noisy gradient, accepted where its bound sigma_k is small enough."""
        generator = make_generator(self.settings.seed, Stream.RESPONSE, query.round)
        response, sigma = self.task.respond(query.weights, query.oracle_state, generator=generator)
        replies = SiftedReplies((0,), response[np.newaxis], np.ones(1, dtype=np.int64), ())
        return Outcome(NOBODY, 1, replies, self.task.accepts(sigma))
        yield  # nobody else has work to do

    def learn(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> LearnerState:
        """(4) with step 1/m, and Theorem 1's randomised estimate."""
        m = learner.updates + 1
        generator = make_generator(self.settings.seed, Stream.FINAL, query.round)
        estimate = learner.estimate
        if estimate is None or self.task.keeps(m, generator=generator):
            estimate = query.weights
        moved = self.task.step(query.weights, outcome.replies.values[0], m)
        return replace(learner, true=moved, updates=m, estimate=estimate)

    def deceive(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> Generator[Work, Any, LearnerState]:
        """(5): the decoy follows a function with another minimum."""
        generator = make_generator(self.settings.seed, Stream.DECOY, query.round)
        response, _ = self.task.respond_decoy(
            query.weights, query.oracle_state, generator=generator
        )
        moves = learner.moves[query.trajectory - 1] + 1
        moved = self.task.step(query.weights, response, moves)
        return move_decoy(learner, query.trajectory, moved)
        yield  # nobody else has work to do

    def remember(self) -> Remembered:
        """Nothing."""
        return Remembered()

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Value and squared gradient norm of the last point and of the randomised estimate."""
        estimate = learner.true if learner.estimate is None else learner.estimate
        return {
            "learner_accuracy": None,
            "learner_value": self.task.value(learner.true),
            "estimate_value": self.task.value(estimate),
            "estimate_gradient_norm_squared": float(np.sum(self.task.gradient(estimate) ** 2)),
        }
