"""A noisy oracle of a function, which answers queries with gradients (section 2 of the paper)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
    """An oracle that answers with noisy gradients, and one decoy."""

    settings: RunSettings
    task: FunctionTask
    num_decoys: int = 1

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
        replies = SiftedReplies((0,), response[np.newaxis], np.ones(1, dtype=np.int64), ())
        return Outcome(NOBODY, 1, replies, self.task.accepts(sigma))
        yield  # a generator without work

    def move_learner(self, learner: LearnerState, query: Query, outcome: Outcome) -> LearnerState:
        """Take the step 1/m of equation (4), and keep the randomised estimate of Theorem 1."""
        m = learner.updates + 1
        generator = make_generator(self.settings.seed, Stream.FINAL, query.round)
        estimate = learner.estimate
        if estimate is None or self.task.keeps(m, generator=generator):
            estimate = query.weights
        moved = self.task.step(query.weights, outcome.replies.values[0], m)
        return replace(learner, true=moved, updates=m, estimate=estimate)

    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, LearnerState]:
        """Take the decoy's step of equation (5), on a function with another minimum."""
        generator = make_generator(self.settings.seed, Stream.DECOY, query.round)
        state = query.oracle_state
        response, _ = self.task.respond_decoy(query.weights, state, generator=generator)
        moves = learner.moves[query.trajectory - 1] + 1
        moved = self.task.step(query.weights, response, moves)
        return learner.with_decoy(query.trajectory, moved)
        yield  # a generator without work

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Return the last point's value, and value and gradient norm of the estimate."""
        estimate = learner.true if learner.estimate is None else learner.estimate
        return {
            "learner_accuracy": None,
            "learner_value": self.task.value(learner.true),
            "estimate_value": self.task.value(estimate),
            "estimate_gradient_norm_squared": float(np.sum(self.task.gradient(estimate) ** 2)),
        }
