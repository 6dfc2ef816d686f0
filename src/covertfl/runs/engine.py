"""Engines: who answers the queries of a run, and the work that a run hands out.

A run is a generator that yields work and is sent its results (`round`), so that an engine can carry
the work of many runs out together.  An engine that simulates clients has all of them in its hands;
one with real clients sends them queries and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.kernels.job import Examples, LocalKernel, Vector, predict_all
from covertfl.runs.participation import Attendance, Clients
from covertfl.schemes.replies import Aggregator
from covertfl.schemes.scheme import Jobs, Outcome, Packed, Query, Scheme
from covertfl.tasks.scores import Scores, compute_losses, compute_scores, score_accuracy
from covertfl.tasks.task import TrainingTask

Request = TypeVar("Request")
Returned = TypeVar("Returned")


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A query to simulated clients, who receive nothing that depends on the secret but the weights.

    Parameters
    ----------
    weights : (P,) that they are sent
    attendance : who takes part, with how much data
    clients : the data that they hold
    fault : returns why a reply is refused, None if it is not
    needed : whether replies are used; otherwise the work may be skipped
    judge : what decides which replies are refused, the same for runs that share them
    """

    round: int
    weights: Vector
    attendance: Attendance
    clients: Clients
    fault: Callable[[Any], str | None]
    needed: bool = True
    judge: Hashable = None


@dataclass(frozen=True, eq=False)
class ScoreWork:
    """Weights whose score on the validation set is needed."""

    weights: Vector


Work = ClientWork | Jobs | ScoreWork


class Engine(Protocol):
    """Answers the queries of a run."""

    @property
    def aggregator(self) -> Aggregator:
        """Turns replies into moves."""
        ...

    def observe(self, round_number: int) -> int | None:
        """Return the oracle state that a round shows, None if it must be drawn."""
        ...

    def ask(self, query: Query, scheme: Scheme, clients: Clients) -> Generator[Work, Any, Outcome]:
        """Send a query and return what has become of it."""
        ...

    def prepare(self, weights: Sequence[Vector], *, in_sight: bool) -> None:
        """Make weights ready to be sent.

        Parameters
        ----------
        in_sight : whether clients can tell anyway that weights are new; if not, the work is always
            the same
        """
        ...

    def remember(self) -> Packed:
        """Return what a checkpoint keeps for the engine."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the summary of a run says of the engine."""
        ...


@dataclass(frozen=True, eq=False)
class Validation:
    """The validation set of a task, on which models are scored; it may be empty."""

    task: TrainingTask
    kernel: LocalKernel

    @property
    def examples(self) -> Examples:
        """The labelled examples."""
        return self.task.validation

    def score(self, weights: Vector) -> float:
        """Return the accuracy of weights; 0 if there are no examples."""
        return self.score_all([weights])[0]

    def score_all(self, weights: Sequence[Vector]) -> list[float]:
        """Return the accuracies of several weights."""
        if not len(self.examples):
            return [0.0] * len(weights)
        found = predict_all(self.kernel, weights, self.examples.features)
        return [score_accuracy(each, self.examples.labels, self.task.loss) for each in found]

    def measure_loss(self, weights: Vector) -> float:
        """Return the mean loss of weights."""
        return float(np.mean(self.find_losses(weights, self.examples)))

    def find_losses(self, weights: Vector, examples: Examples) -> FloatArray:
        """Return the loss of each of (n,) examples."""
        outputs = self.kernel.predict(weights, examples.features)
        return compute_losses(outputs, examples.labels, self.task.loss)

    def measure(self, weights: Vector) -> Scores:
        """Return all scores of weights; an accuracy of 0 and no others without examples."""
        if not len(self.examples):
            return Scores(0.0)
        outputs = self.kernel.predict(weights, self.examples.features)
        return compute_scores(outputs, self.examples.labels, self.task.loss)


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
