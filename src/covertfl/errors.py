"""The exceptions of covertfl, and the exit status of a command that ends with each.

CovertflError
├── InvalidInput      2  a file, key or argument is wrong
├── NoSolution        3  the problem is well posed but has no solution
│   ├── Infeasible       a limit cannot be met; has the best value that can be
│   ├── Unstable         the backlog grows without bound
│   ├── SplitChain       the long-run average depends on the initial state
│   └── SolverFailed     a numerical method stopped without a solution
└── Missing           4  data or an optional dependency is not installed
"""

from __future__ import annotations


class CovertflError(Exception):
    """Base class of all exceptions that covertfl raises, each with a one-sentence message."""

    exit_status = 1


class InvalidInput(CovertflError, ValueError):
    """Input that cannot be used; the message names it, what is allowed and what came."""

    exit_status = 2


class NoSolution(CovertflError):
    """A well-posed problem that has no solution of the kind asked for."""

    exit_status = 3


class Infeasible(NoSolution):
    """A limit that no policy can meet; `best` is the best value of any policy."""

    def __init__(self, message: str, *, best: float) -> None:
        super().__init__(message)
        self.best = best


class Unstable(NoSolution):
    """A queue whose backlog grows without bound under the policy asked for."""


class SplitChain(NoSolution):
    """A policy under which the long-run average depends on the initial state."""


class SolverFailed(NoSolution):
    """A numerical method that stopped without a solution of the required accuracy."""


class Missing(CovertflError):
    """Data or a dependency that is not installed; the message explains how to get it."""

    exit_status = 4
