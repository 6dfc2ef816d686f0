"""What passes between a run and its clients: queries, outcomes, and the work in between.

A run sends a `Query` and gets an `Outcome`.  Whatever takes time, local training by clients or by
the server, is yielded as `Work`, so that an engine can carry it out as it likes, alone or together
with the work of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector
from covertfl.runs.learner import SiftedReplies
from covertfl.runs.participation import Attendance


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A query to the clients; what they receive depends on the action through `weights` alone.

    If the replies are not `needed`, an engine that simulates clients may skip the work, while one
    with real clients asks them all the same.  Replies of `unused` clients do not count.
    """

    round: int
    weights: Vector
    attendance: Attendance
    needed: bool = True
    unused: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class ServerWork:
    """Training that the server does for a decoy.

    Parameters
    ----------
    plan : returns its jobs
    weights : the decoy's, and the true ones; empty where the jobs are not for other runs, too
    origin : what determines the jobs and their results beside the weights
    """

    plan: Callable[[], Sequence[LocalJob]]
    weights: tuple[Vector, ...] = ()
    origin: Hashable = None


@dataclass(frozen=True, eq=False)
class ScoreWork:
    """Weights whose score on the validation set is needed."""

    weights: Vector


Work = ClientWork | ServerWork | ScoreWork


@dataclass(frozen=True, eq=False)
class Query:
    """The query of a round.

    Parameters
    ----------
    round : 1, 2, ...
    trajectory : 0 for the true trajectory, 1, 2, ... for a decoy
    weights : the weights that are sent
    """

    round: int
    oracle_state: int
    trajectory: int
    weights: Vector


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a query.

    Parameters
    ----------
    attendance : the clients that were asked
    examples : number behind the valid replies, or behind all clients if replies were not needed
    replies : the valid replies; empty if they were not needed
    accepted : whether the round is a success, or would have been one
    has_quorum : whether it has as many valid replies as a round needs to be used at all
    """

    attendance: Attendance
    examples: int
    replies: SiftedReplies
    accepted: bool
    has_quorum: bool = True


@dataclass(frozen=True, eq=False)
class Remembered:
    """State of an engine that a checkpoint keeps: arrays by name, and facts as JSON values."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
