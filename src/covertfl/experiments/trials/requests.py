"""What a walk can request, beside the training of a decoy (`runs.responder.ServerWork`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from covertfl.arrays import FloatArray
from covertfl.experiments.trials.scorer import Scorer
from covertfl.kernels.job import Examples, LocalJob
from covertfl.kernels.weights import Vector
from covertfl.runs.participation import Attendance
from covertfl.runs.responder import Work

Jobs = Sequence[LocalJob]


@dataclass(frozen=True, eq=False)
class ToAverage:
    """The clients' jobs of a round, whose mean result is requested."""

    jobs: Jobs
    attendance: Attendance
    most_examples: int


@dataclass(frozen=True, eq=False)
class ToChain:
    """Jobs to be carried out one after the other, and the stops at which weights are rated."""

    jobs: Jobs
    stops: Sequence[int]
    scorer: Scorer


@dataclass(frozen=True, eq=False)
class ToRate:
    """Weights whose accuracy is requested, on all of the validation set or on a part of it."""

    scorer: Scorer
    weights: Vector
    fully: bool


Request = Work | ToAverage | ToChain | ToRate


@runtime_checkable
class AveragesJobs(Protocol):
    """A kernel that averages the results of jobs by itself."""

    def average_jobs(self, groups: Sequence[Jobs]) -> list[Vector]:
        """Return the mean result of each group's jobs, weighted by their rows."""
        ...


class RatedChain(Protocol):
    """Accuracies along a chain of jobs: coarse at its stops, full at the best and the last."""

    coarse: FloatArray
    best: float
    last: float


@runtime_checkable
class RatesChains(Protocol):
    """A kernel that carries out jobs one after the other and rates the weights on the way."""

    def rate_chains(
        self,
        chains: Sequence[Jobs],
        stops: Sequence[Sequence[int]],
        *,
        coarse: Examples,
        full: Examples,
    ) -> Sequence[RatedChain]:
        """Rate the weights of each chain at its stops, given as numbers of jobs done."""
        ...
