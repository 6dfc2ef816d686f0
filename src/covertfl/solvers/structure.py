"""The assumptions of the threshold theory, and whether a solution has the predicted structure.

Assumptions (section 3.1 of the paper, in their sound reading, docs/deviations.md):

- M1  rows of the oracle's transition matrix are ordered by first-order dominance
- M2  the privacy cost of a learning query is positive and nonincreasing in the oracle state
- M3  the learning cost is 0 at backlog 0, nondecreasing and convex
- M4  the learner observes its state and the eavesdropper does not; it cannot be computed
- M5  the success probability is nondecreasing in the oracle state (used tacitly by Lemma 2)

The policy of a queue is examined only on states with stationary mass above `VISITED`: near the
capacity of a truncated queue it is distorted, and states without mass do not matter.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import find_dominance_violation
from covertfl.decision.problem import FiniteHorizon, LearningCost, Problem, QueueProblem
from covertfl.solvers.backward_induction import (
    HorizonSolution,
    find_backlog_reversal,
    find_oracle_reversal,
    find_rounds_reversal,
)
from covertfl.solvers.constrained import QueueSolution

VISITED = 1e-9
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Assumption:
    """One assumption of the theory: its name, whether it holds (None if unknown), and why."""

    name: str
    holds: bool | None
    reason: str


@dataclass(frozen=True)
class Reversal:
    """The first pair of visited states in which the policy of a queue is not monotone."""

    direction: str
    oracle: int
    arrival: int
    backlog: int
    learn_prob: float
    next_oracle: int
    next_backlog: int
    next_learn_prob: float

    def __str__(self) -> str:
        return (
            f"not increasing in the {self.direction}: with arrival {self.arrival} it learns with "
            f"chance {self.learn_prob:.4g} at oracle state {self.oracle}, backlog {self.backlog}, "
            f"but {self.next_learn_prob:.4g} at oracle state {self.next_oracle}, "
            f"backlog {self.next_backlog}"
        )


@dataclass(frozen=True)
class StructureReport:
    """Assumptions, monotonicity and the first counterexample.

    Parameters
    ----------
    assumptions : (M1) to (M5)
    monotone_in_backlog : whether learning is nondecreasing in the backlog (Theorem 2)
    monotone_in_oracle : whether it is nondecreasing in the oracle state; implied by no theorem
    monotone_in_rounds : whether it is nonincreasing in the rounds left; None for a queue
    counterexample : the first counterexample found, in words and numbers
    notes : what the theory does not cover in this problem
    """

    assumptions: tuple[Assumption, ...]
    monotone_in_backlog: bool
    monotone_in_oracle: bool
    monotone_in_rounds: bool | None
    counterexample: dict[str, Any] | None
    notes: tuple[str, ...]

    @property
    def theory_applies(self) -> bool:
        """Whether every computable assumption holds and the theory covers the problem."""
        return not self.notes and all(item.holds is not False for item in self.assumptions)


# --- assumptions ------------------------------------------------------------------------------


def check_assumptions(problem: Problem) -> tuple[Assumption, ...]:
    """Check assumptions (M1) to (M5) on the numbers of a problem."""
    return (
        _check_dominance(problem),
        _check_privacy_cost(problem.privacy_cost),
        _check_learning_cost(problem.learning_cost, _largest_backlog(problem)),
        Assumption("M4", None, "about information, so it cannot be computed"),
        _check_success(problem.oracle.success),
    )


def _largest_backlog(problem: Problem) -> int:
    return problem.updates if isinstance(problem, FiniteHorizon) else problem.num_levels - 1


def _check_dominance(problem: Problem) -> Assumption:
    violation = find_dominance_violation(problem.oracle)
    if violation is None:
        return Assumption("M1", True, "rows of transition are ordered by first-order dominance")
    return Assumption("M1", False, str(violation))


def _check_privacy_cost(costs: FloatArray) -> Assumption:
    if np.any(costs <= 0.0):
        state = int(np.flatnonzero(costs <= 0.0)[0])
        return Assumption("M2", False, f"privacy[{state}] = {costs[state]:g} is not positive")
    rises = np.flatnonzero(np.diff(costs) > 0.0)
    if len(rises):
        state = int(rises[0])
        return Assumption(
            "M2",
            False,
            f"privacy rises from {costs[state]:g} in oracle state {state} "
            f"to {costs[state + 1]:g} in {state + 1}",
        )
    return Assumption("M2", True, "privacy is positive and does not rise with the oracle state")


def _check_learning_cost(cost: LearningCost, largest: int) -> Assumption:
    values = cost.at(np.arange(largest + 1))
    steps = np.diff(values)
    slack = TOLERANCE * max(float(np.abs(values).max()), 1.0)
    if abs(values[0]) > slack:
        return Assumption("M3", False, f"l(0) = {values[0]:g} is not 0")
    if np.any(steps < -slack):
        y = int(np.flatnonzero(steps < -slack)[0])
        return Assumption(
            "M3", False, f"l falls from {values[y]:g} to {values[y + 1]:g} at {y + 1}"
        )
    bends = np.flatnonzero(np.diff(steps) < -slack)
    if len(bends):
        y = int(bends[0])
        return Assumption(
            "M3",
            False,
            f"l is not convex: l({y + 2}) - l({y + 1}) = {steps[y + 1]:g} "
            f"is below l({y + 1}) - l({y}) = {steps[y]:g}",
        )
    return Assumption("M3", True, "l is 0 at backlog 0, does not fall and is convex")


def _check_success(success: FloatArray) -> Assumption:
    falls = np.flatnonzero(np.diff(success) < 0.0)
    if len(falls):
        state = int(falls[0])
        return Assumption(
            "M5",
            False,
            f"success falls from {success[state]:g} in oracle state {state} "
            f"to {success[state + 1]:g} in {state + 1}",
        )
    return Assumption("M5", True, "success does not fall with the oracle state")


# --- queue ------------------------------------------------------------------------------------


def examine_queue_solution(solution: QueueSolution) -> StructureReport:
    """Report the structure of a queue's solution on its visited states (Theorem 3)."""
    table, visited = solution.policy.table, solution.evaluation.mass > VISITED
    in_backlog = _find_reversal_in_backlog(table, visited)
    in_oracle = _find_reversal_in_oracle(table, visited)
    first = in_backlog or in_oracle
    return StructureReport(
        assumptions=check_assumptions(solution.problem),
        monotone_in_backlog=in_backlog is None,
        monotone_in_oracle=in_oracle is None,
        monotone_in_rounds=None,
        counterexample=None if first is None else {"text": str(first), **asdict(first)},
        notes=tuple(_queue_notes(solution.problem)),
    )


def _queue_notes(problem: QueueProblem) -> list[str]:
    notes = []
    if problem.learning_cost.charged == "when-obfuscating":
        notes.append(
            "the learning cost is charged only when obfuscating; the theory charges always"
        )
    if problem.full_cost > 0.0:
        notes.append("a full queue costs extra when obfuscating, which the theory does not know")
    return notes


def _find_reversal_in_backlog(table: FloatArray, visited: BoolArray) -> Reversal | None:
    num_oracle, num_arrival, _ = table.shape
    for o in range(num_oracle):
        for e in range(num_arrival):
            levels = np.flatnonzero(visited[o, e])
            probs = table[o, e, levels]
            drops = np.flatnonzero(np.diff(probs) < -TOLERANCE)
            if len(drops):
                low, high = int(levels[drops[0]]), int(levels[drops[0] + 1])
                return Reversal(
                    "backlog", o, e, low, float(table[o, e, low]), o, high, float(table[o, e, high])
                )
    return None


def _find_reversal_in_oracle(table: FloatArray, visited: BoolArray) -> Reversal | None:
    worse, better = table[:-1], table[1:]
    drops = np.argwhere((better < worse - TOLERANCE) & visited[:-1] & visited[1:])
    if not len(drops):
        return None
    o, e, y = (int(index) for index in drops[0])
    return Reversal(
        "oracle state", o, e, y, float(table[o, e, y]), o + 1, y, float(table[o + 1, e, y])
    )


Thresholds = list[list[list[int] | None]]


def find_queue_thresholds(solution: QueueSolution) -> Thresholds | None:
    """Find the two thresholds of equation (13) of a policy.

    Returns
    -------
    [oracle][arrival] = [first backlog where learning is possible, first from which it is certain],
    None where it never learns; None altogether if the policy is not monotone in the backlog
    """
    table, visited = solution.policy.table, solution.evaluation.mass > VISITED
    if _find_reversal_in_backlog(table, visited) is not None:
        return None
    return [
        [_column_thresholds(table[o, e], visited[o, e]) for e in range(table.shape[1])]
        for o in range(table.shape[0])
    ]


def _column_thresholds(probs: FloatArray, visited: BoolArray) -> list[int] | None:
    """Find the thresholds of one column; beyond visited levels as far as it is monotone."""
    drops = np.flatnonzero(np.diff(probs) < -TOLERANCE)
    first_drop = int(drops[0]) if len(drops) else len(probs) - 1
    if np.any(visited[first_drop + 1 :]):  # a drop between visited levels, not near the edge
        levels = np.flatnonzero(visited)
    else:
        levels = np.arange(first_drop + 1)
    some = levels[probs[levels] > 0.0]
    if not len(some):
        return None
    certain = levels[probs[levels] >= 1.0]
    return [int(some[0]), int(certain[0]) if len(certain) else len(probs)]


# --- horizon ----------------------------------------------------------------------------------


def examine_horizon_solution(solution: HorizonSolution) -> StructureReport:
    """Report the structure of a horizon's solution: Theorem 2 and two further orders."""
    in_backlog = find_backlog_reversal(solution.learn)
    in_rounds = in_oracle = None
    if solution.thresholds is not None:
        in_rounds = find_rounds_reversal(solution.thresholds)
        in_oracle = find_oracle_reversal(solution.thresholds)
    first = in_backlog or in_rounds or in_oracle
    learn = solution.learn
    return StructureReport(
        assumptions=check_assumptions(solution.problem),
        monotone_in_backlog=in_backlog is None,
        monotone_in_oracle=bool(np.all(learn[:, :-1] <= learn[:, 1:])),
        monotone_in_rounds=bool(np.all(learn[1:] <= learn[:-1])),
        counterexample=None if first is None else {"text": str(first), **asdict(first)},
        notes=(),
    )
