"""Clients with data, who answer queries by training the model locally (FedAvg, FedSGD)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decoys.decoy import Decoy, DecoyView
from covertfl.decoys.replica import Replicas
from covertfl.kernels.job import Examples, LocalJob, LocalKernel, LocalOptimizer, predict_all
from covertfl.kernels.weights import Float32Array, Layout, Vector
from covertfl.runs.learner import (
    LearnerState,
    Reply,
    SiftedReplies,
    average_replies,
    move_to_average,
    move_true,
    sift_replies,
)
from covertfl.runs.levelling import Level, choose_level, find_level
from covertfl.runs.participation import (
    Attendance,
    RecordedRounds,
    SimulatedParticipation,
    accepts_data,
    count_examples,
    find_least_share,
)
from covertfl.runs.responder import (
    ClientWork,
    Outcome,
    Query,
    Remembered,
    ScoreWork,
    ServerWork,
    Work,
)
from covertfl.runs.settings import RunSettings
from covertfl.seeding import Stream, make_generator, make_generator_and_seed
from covertfl.tasks.data import draw_rows
from covertfl.tasks.scores import FURTHER, Scores, compute_losses, compute_scores, score_accuracy
from covertfl.tasks.task import TrainingTask

MARKING_CLIENT = 0  # the client that marks its replies, if one does
MARK_SEED = 0x6D61726B
NOTHING: Float32Array = np.empty((0, 0), dtype=np.float32)


def make_mark(size: int) -> Vector:
    """Return the (P,) pattern of length 1 that an active eavesdropper adds to its replies."""
    signs = np.where(np.random.default_rng(MARK_SEED).random(size) < 0.5, -1.0, 1.0)
    return np.asarray(signs / math.sqrt(size), dtype=np.float32)


def add_mark(values: Vector, start: Vector, share: float, pattern: Vector) -> Vector:
    """Return a reply with a pattern `share` times as long as the reply is away from its start."""
    length = float(np.linalg.norm(values.astype(np.float64) - start))
    return np.asarray(values + np.float32(share * length) * pattern, dtype=np.float32)


def group_jobs(jobs: Sequence[LocalJob]) -> list[list[LocalJob]]:
    """Return groups of jobs of the same size, which run at the same time in a steady run.

    Jobs of unlike size may take less time together than one after the other.
    """
    return [list(group) for _, group in itertools.groupby(jobs, key=lambda job: len(job.rows))]


def count_sizes(task: TrainingTask) -> IntArray:
    """Return the number of examples of each client, (n,)."""
    return np.array([len(rows) for rows in task.clients], dtype=np.int64)


def make_client_job(
    run: RunSettings, task: TrainingTask, client: int, batches: int, weights: Vector, number: int
) -> LocalJob:
    """Return a client's job: its examples in an order of its own, cut to some batches.

    It depends on the client, the round and the weights, never on why the weights were sent.
    """
    section, most = run.sections.federation, batches * run.sections.federation.batch_size
    generator, own = make_generator_and_seed(run.seed, Stream.CLIENT, number, client)
    balance = run.sections.data.balance
    return LocalJob(
        weights=weights,
        examples=task.train,
        rows=draw_rows(task, client, most, balance=balance, generator=generator),
        batch_size=section.batch_size,
        seed=own,
        work="train" if section.algorithm == "fedavg" else "gradient",
    )


@dataclass(frozen=True, eq=False)
class ClientResponder:
    """A federation of clients that train a model.

    Parameters
    ----------
    decoy : how the decoy trajectory moves, None with replicas
    success : probability of acceptance by oracle state, for acceptance by model
    recorded : participation to replay, None to draw it
    replicas : how the trajectories of an exchangeable run are images of the true one, else None
    ignored : clients that are asked like all others, but whose replies are not used
    """

    settings: RunSettings
    task: TrainingTask
    kernel: LocalKernel
    decoy: Decoy | None
    success: FloatArray
    recorded: RecordedRounds | None = None
    replicas: Replicas | None = None
    ignored: frozenset[int] = frozenset()
    sizes: IntArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", count_sizes(self.task))

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return self.kernel.layout

    @property
    def is_steady(self) -> bool:
        """Whether clients could measure how long the server works, which must then be constant."""
        return False

    @property
    def replies_are_weights(self) -> bool:
        """Whether clients reply with weights, not with gradients."""
        return self.settings.sections.federation.algorithm == "fedavg"

    @property
    def optimizer(self) -> LocalOptimizer:
        """The optimizer of the run file."""
        return self.settings.sections.federation.optimizer.make()

    def first_weights(self, seed: int) -> Vector:
        """Draw the model's own initialisation."""
        return self.task.draw_weights(seed)

    def score(self, weights: Vector) -> float:
        """Return the accuracy on the validation set."""
        return self.score_all([weights])[0]

    def score_all(self, weights: Sequence[Vector]) -> list[float]:
        """Return the accuracies of several weights on the validation set."""
        validation, loss = self.task.validation, self.task.loss
        found = predict_all(self.kernel, weights, validation.features)
        return [score_accuracy(outputs, validation.labels, loss) for outputs in found]

    def measure_loss(self, weights: Vector) -> float:
        """Return the mean loss on the validation set."""
        return float(np.mean(self.find_losses(weights, self.task.validation)))

    def find_losses(self, weights: Vector, examples: Examples) -> FloatArray:
        """Return the loss of each of (n,) examples."""
        outputs = self.kernel.predict(weights, examples.features)
        return compute_losses(outputs, examples.labels, self.task.loss)

    def measure(self, weights: Vector) -> Scores:
        """Return all scores on the validation set; an accuracy of 0 and no others without one."""
        validation = self.task.validation
        if not len(validation):
            return Scores(0.0)
        outputs = self.kernel.predict(weights, validation.features)
        return compute_scores(outputs, validation.labels, self.task.loss)

    def observe(self, round_number: int) -> int | None:
        """Return the oracle state that a round shows, None if it must be drawn."""
        return None

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Send the query to the clients that take part; skip replies that nobody needs."""
        attendance = self.draw_clients(query.oracle_state, query.round)
        is_needed = self.needs_replies(query.trajectory)
        sifted: SiftedReplies
        sifted = yield ClientWork(query.round, query.weights, attendance, is_needed)
        examples = sifted.total if is_needed else self.count_examples(attendance)
        number = len(sifted.clients) if is_needed else np.count_nonzero(attendance.batches)
        has_quorum = self.has_quorum(int(number))
        accepted = has_quorum and self.is_accepted(query.oracle_state, query.round, examples)
        return Outcome(attendance, examples, sifted, accepted, has_quorum)

    def sift(self, work: ClientWork, replies: Sequence[Reply]) -> SiftedReplies:
        """Return the valid ones among the replies to a query."""
        marked = self._add_mark(replies, work.weights)
        return sift_replies(marked, len(work.weights), int(self.sizes.max()))

    def needs_replies(self, trajectory: int) -> bool:
        """Return whether replies are used; those to the truth and to replicas always are."""
        if trajectory == 0 or self.decoy is None or self.layout.measured > 0:
            return True
        return self.decoy.needs_replies

    def _add_mark(self, replies: Sequence[Reply], weights: Vector) -> Sequence[Reply]:
        """Return the replies with the pattern that an active eavesdropper adds to its own."""
        share = self.settings.sections.federation.mark
        if share == 0.0:
            return replies
        start = weights if self.replies_are_weights else np.zeros_like(weights)
        pattern = make_mark(len(weights))
        return [
            replace(reply, values=add_mark(reply.values, start, share, pattern))
            if reply.client == MARKING_CLIENT
            else reply
            for reply in replies
        ]

    def draw_clients(self, oracle_state: int, round_number: int) -> Attendance:
        """Draw the clients of a round and their batches."""
        participation = SimulatedParticipation(self.settings, self.sizes, self.recorded)
        return participation.draw_clients(oracle_state, round_number)

    def count_examples(self, attendance: Attendance) -> int:
        """Return the number of examples that the clients of a round train on."""
        batch_size = self.settings.sections.federation.batch_size
        sizes = self.sizes[attendance.clients]
        return int(count_examples(attendance.batches, sizes, batch_size).sum())

    def has_quorum(self, replies: int) -> bool:
        """Return whether a round has as many valid replies as it needs in any case."""
        return replies >= (self.settings.sections.federation.min_replies or 0)

    def is_accepted(self, oracle_state: int, round_number: int, examples: int) -> bool:
        """Return whether a round with some examples is, or would be, a success."""
        section = self.settings.sections.federation
        if examples == 0:
            return False
        if self.recorded is not None and self.recorded.success is not None:
            return bool(self.recorded.success[round_number - 1])
        if section.acceptance == "data":
            total = int(self.sizes.sum())
            return accepts_data(examples, total, find_least_share(self.settings, total))
        seed = self.settings.hidden_seed
        draw = make_generator(seed, Stream.ACCEPTANCE, round_number).random()
        return bool(draw < self.success[oracle_state])

    def make_jobs(self, work: ClientWork) -> list[LocalJob]:
        """Return the jobs of all clients that are not absent."""
        attendance = work.attendance
        return [
            self.make_client_job(int(client), int(batches), work.weights, work.round)
            for client, batches in zip(attendance.clients, attendance.batches, strict=True)
            if batches > 0
        ]

    def make_client_job(
        self, client: int, batches: int, weights: Vector, round_number: int
    ) -> LocalJob:
        """Return a client's job, see the function `make_client_job`."""
        return make_client_job(self.settings, self.task, client, batches, weights, round_number)

    def update(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, is_moving: bool
    ) -> Generator[Work, Any, LearnerState | None]:
        """Move the trajectory that was queried, if `is_moving`; None where that fails.

        An engine that computes moves in any case returns None also for one that is not used.
        """
        if not is_moving:
            return learner
        if query.trajectory == 0:
            return self.move_learner(learner, query, outcome)
        return (yield from self.move_decoy(learner, query, outcome))

    def move_learner(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> LearnerState | None:
        """Move the true trajectory by FedAvg or FedSGD on the replies.

        None where there are none, or the result is not finite.
        """
        if not outcome.replies.clients:
            return None
        learned = move_true(learner, outcome.replies, self.optimizer)
        return learned if np.isfinite(learned.true).all() else None

    def average(self, learner: LearnerState, query: Query, outcome: Outcome) -> Vector | None:
        """Return the average of the replies to any replica, in the frame of the truth.

        None where there are too few, or where an aggregation fails.  Nothing is moved.
        """
        used = self.use_level(query, outcome)
        if used is None:
            return None
        assert self.replicas is not None
        # One vector is taken back instead of all replies: reflections commute with averages.
        return self.replicas.restore(average_replies(used.replies), query.trajectory)

    @cached_property
    def level(self) -> Level | None:
        """What every move of an exchangeable run averages, None for all replies."""
        section = self.settings.sections.federation
        return find_level(
            section.participation,
            self.success,
            float(self.sizes.mean()),
            by_data=section.acceptance == "data",
            is_drawn=len(self.task.train) > 0,
        )

    def use_level(self, query: Query, outcome: Outcome) -> Outcome | None:
        """Return the outcome with the replies that a move averages, None if they are too few."""
        replies, seed = outcome.replies, self.settings.hidden_seed
        if self.level is None:
            return outcome if replies.clients else None
        generator = make_generator(seed, Stream.LEVEL, query.round)
        used = choose_level(replies.examples, self.level, generator=generator)
        if used is None:
            return None
        return replace(outcome, replies=replies.choose(used))

    def settle(self, learner: LearnerState, average: Vector) -> LearnerState:
        """Move the true trajectory by FedAvg or FedSGD, given the average of the replies."""
        return move_to_average(learner, average, self.optimizer)

    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, LearnerState | None]:
        """Move the decoy that was queried; its training is work like any other.

        None where it lacks the replies it needs, or the result is not finite.
        """
        proposed = yield from self.propose(learner, query, outcome)
        if proposed is None or not np.isfinite(proposed).all():
            return None
        return learner.with_decoy(query.trajectory, proposed)

    def propose(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, Vector | None]:
        """Return where the queried decoy would move to, None if it lacks the replies it needs."""
        decoy = self.decoy
        assert decoy is not None
        if decoy.needs_replies and not len(outcome.replies.examples):
            return None
        view = self.view_decoy(learner, query, outcome)
        planning = make_generator(self.settings.hidden_seed, Stream.DECOY, query.round, 0)
        plan = partial(decoy.plan, view, generator=planning)
        results: list[Vector] = []
        if self.is_steady:
            for group in group_jobs(plan()):
                results += yield ServerWork(partial(tuple, group))
        elif decoy.needs_replies:
            results = yield ServerWork(plan)
        else:
            origin = (id(decoy), self.settings.hidden_seed, query.round, view.moves)
            results = yield ServerWork(plan, (view.weights, view.learner), origin)
        moving = make_generator(self.settings.hidden_seed, Stream.DECOY, query.round, 1)
        results = [self._hold_measured(result, view.weights) for result in results]
        return self._measure(decoy.move(view, results, generator=moving), outcome)

    def _hold_measured(self, values: Float32Array, weights: Vector) -> Float32Array:
        """Set what (..., P) results measured to where it was: a decoy moves parameters alone."""
        if self.layout.measured and values.size:
            values[..., self.layout.num_trained :] = weights[self.layout.num_trained :]
        return values

    def _measure(self, proposed: Vector, outcome: Outcome) -> Vector:
        """Return a decoy's proposal with what the clients measured at its query.

        Running statistics of public data would tell a decoy from the truth, and so would
        statistics that stay: they are the average of the replies on every trajectory.
        """
        replies = outcome.replies
        if self.layout.measured == 0 or not replies.clients:
            return proposed
        measured, place = proposed.copy(), slice(self.layout.num_trained, None)
        if replies.average is not None:
            measured[place] = replies.average[place]
        elif replies.values[0].size:
            parts = tuple(values[place] for values in replies.values)
            measured[place] = average_replies(replace(replies, values=parts))
        return measured

    def view_decoy(self, learner: LearnerState, query: Query, outcome: Outcome) -> DecoyView:
        """Return what the decoy that was queried may use."""
        decoy = self.decoy
        assert decoy is not None
        replies = outcome.replies.stack() if decoy.needs_replies else NOTHING
        return DecoyView(
            weights=query.weights,
            learner=learner.true,
            replies=self._hold_measured(replies, query.weights),
            examples=outcome.replies.examples,
            moves=learner.moves[query.trajectory - 1],
            predict=self.kernel.predict,
            is_steady=self.is_steady,
        )

    def rescore(
        self, scores: Sequence[float], before: LearnerState, after: LearnerState
    ) -> Generator[Work, Any, tuple[float, ...]]:
        """Return the score of each trajectory after a round; unmoved ones keep their score."""
        found = []
        for known, old, new in zip(scores, before.trajectories, after.trajectories, strict=True):
            found.append(known if old is new else (yield ScoreWork(new)))
        return tuple(found)

    def prepare(self, learner: LearnerState) -> None:
        """Make ready what the next round sends, while the last is being sealed."""

    def remember(self) -> Remembered:
        """Return what a resumed run needs, beside its own state."""
        return Remembered()

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Return the scores of the final weights, and a warning if they answer one class only."""
        found = self.measure(learner.true)
        return {
            "learner_accuracy": found.accuracy,
            **{f"learner_{name}": getattr(found, name) for name in FURTHER},
            "decoy_accuracy": [self.score(weights) for weights in learner.decoys],
            "warnings": self._list_warnings(found),
        }

    def _list_warnings(self, found: Scores) -> list[str]:
        if found.only_answer is None:
            return []
        remedy = "raise `updates` and `rounds`, change the learning rate, or check the labels"
        if not self.settings.sections.data.balance:
            remedy = "set [data] balance = true, or train longer"
        return [
            f"the learner answers class {found.only_answer} to all {len(self.task.validation)} "
            f"validation examples, so that it tells no classes apart: {remedy}"
        ]
