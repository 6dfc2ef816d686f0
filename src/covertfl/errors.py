"""The exceptions of covertfl, and the exit status each one ends a command with.

CovertflError
├── InvalidInput      2  a file, key or argument is wrong
├── NoSolution        3  the question is well put and has no answer
│   ├── Infeasible       a limit cannot be met; carries the best reachable value
│   ├── Unstable         the backlog grows without bound
│   ├── SplitChain       the optimum belongs to no start state
│   └── SolverFailed     a solver gave up; what it had is not returned
└── Missing           4  data or an optional dependency is not there
"""

from __future__ import annotations


class CovertflError(Exception):
    """Anything that covertfl refuses to do, in one sentence."""

    exit_status = 1


class InvalidInput(CovertflError, ValueError):
    """Input that cannot be used: names what it is, what is allowed and what came."""

    exit_status = 2


class NoSolution(CovertflError):
    """A well-posed problem that has no solution of the kind asked for."""

    exit_status = 3


class Infeasible(NoSolution):
    """A limit that no policy can meet.

    Parameters
    ----------
    message : what cannot be met
    best : the best value that any policy reaches
    """

    def __init__(self, message: str, *, best: float) -> None:
        super().__init__(message)
        self.best = best


class Unstable(NoSolution):
    """A queue whose backlog grows without bound under the policy asked for."""


class SplitChain(NoSolution):
    """A policy under which the long-run average depends on where the chain starts."""


class SolverFailed(NoSolution):
    """A numerical method that stopped without an answer it can vouch for."""


class Missing(CovertflError):
    """Data or a dependency that is not there, with the way to get it."""

    exit_status = 4
