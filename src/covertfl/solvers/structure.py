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

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import find_dominance_violation
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.solvers.backward_induction import (
    Counterexample,
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
    counterexample: Counterexample | None
    notes: tuple[str, ...]

    @property
    def theory_applies(self) -> bool:
        """Whether every computable assumption holds and the theory covers the problem."""
        return not self.notes and all(item.holds is not False for item in self.assumptions)


def check_assumptions(problem: Problem) -> tuple[Assumption, ...]:
    """Check assumptions (M1) to (M5) on the numbers of a problem."""
    costs, success = problem.privacy_cost, problem.oracle.success
    largest = problem.updates if isinstance(problem, FiniteHorizon) else problem.num_levels - 1
    dominance = find_dominance_violation(problem.oracle)
    rising, falling = np.diff(costs) > 0.0, np.diff(success) < 0.0
    return (
        _assume(
            "M1",
            None if dominance is None else str(dominance),
            "rows of transition are ordered by first-order dominance",
        ),
        _assume(
            "M2",
            _find_free_query(costs) or _find_step("privacy rises", costs, rising),
            "privacy is positive and does not rise with the oracle state",
        ),
        _assume(
            "M3",
            _find_cost_violation(problem.learning_cost.at(np.arange(largest + 1))),
            "l is 0 at backlog 0, does not fall and is convex",
        ),
        Assumption("M4", None, "the learner observes its state, the eavesdropper does not"),
        _assume(
            "M5",
            _find_step("success falls", success, falling),
            "success does not fall with the oracle state",
        ),
    )


def _assume(name: str, violation: str | None, statement: str) -> Assumption:
    return Assumption(name, violation is None, violation or statement)


def _find_free_query(costs: FloatArray) -> str | None:
    for state in np.flatnonzero(costs <= 0.0):
        return f"privacy[{state}] = {costs[state]:g} is not positive"
    return None


def _find_step(what: str, values: FloatArray, wrong: BoolArray) -> str | None:
    for state in np.flatnonzero(wrong):
        here, better = values[state : state + 2]
        return f"{what} from {here:g} in oracle state {state} to {better:g} in {state + 1}"
    return None


def _find_cost_violation(values: FloatArray) -> str | None:
    """Describe where a learning cost violates (M3), given its values at backlog 0, 1, ..."""
    steps = np.diff(values)
    slack = TOLERANCE * max(float(np.abs(values).max()), 1.0)
    if abs(values[0]) > slack:
        return f"l(0) = {values[0]:g} is not 0"
    for y in np.flatnonzero(steps < -slack):
        return f"l falls from {values[y]:g} to {values[y + 1]:g} at {y + 1}"
    for y in np.flatnonzero(np.diff(steps) < -slack):
        return (
            f"l is not convex: l({y + 2}) - l({y + 1}) = {steps[y + 1]:g} "
            f"is below l({y + 1}) - l({y}) = {steps[y]:g}"
        )
    return None


def examine_queue_solution(solution: QueueSolution) -> StructureReport:
    """Report the structure of a queue's solution on its visited states (Theorem 3)."""
    table, visited = solution.policy.table, solution.evaluation.mass > VISITED
    in_backlog = _find_reversal_in_backlog(table, visited)
    in_oracle = _find_reversal_in_oracle(table, visited)
    return StructureReport(
        assumptions=check_assumptions(solution.problem),
        monotone_in_backlog=in_backlog is None,
        monotone_in_oracle=in_oracle is None,
        monotone_in_rounds=None,
        counterexample=in_backlog or in_oracle,
        notes=tuple(_queue_notes(solution.problem)),
    )


def _queue_notes(problem: QueueProblem) -> list[str]:
    notes = []
    if problem.learning_cost.charged == "when-obfuscating":
        notes.append(
            "the learning cost is charged only when obfuscating; the theory charges always"
        )
    if np.ptp(problem.state_factors) > 0.0:
        notes.append(
            "the learning cost depends on the oracle state; that of the theory on the backlog alone"
        )
    if problem.full_cost > 0.0:
        notes.append("a full queue costs extra when obfuscating, which the theory does not know")
    return notes


def _find_reversal_in_backlog(table: FloatArray, visited: BoolArray) -> Counterexample | None:
    for o, e in np.ndindex(table.shape[:2]):
        levels = np.flatnonzero(visited[o, e])
        for drop in np.flatnonzero(np.diff(table[o, e, levels]) < -TOLERANCE):
            low, high = (int(level) for level in levels[drop : drop + 2])
            return _describe_reversal("backlog", table, (o, e, low), (o, e, high))
    return None


def _find_reversal_in_oracle(table: FloatArray, visited: BoolArray) -> Counterexample | None:
    worse, better = table[:-1], table[1:]
    drops = np.argwhere((better < worse - TOLERANCE) & visited[:-1] & visited[1:])
    if not len(drops):
        return None
    o, e, y = (int(index) for index in drops[0])
    return _describe_reversal("oracle state", table, (o, e, y), (o + 1, e, y))


def _describe_reversal(
    direction: str, table: FloatArray, here: tuple[int, int, int], there: tuple[int, int, int]
) -> Counterexample:
    """Describe two visited states between which the policy of a queue is not monotone."""
    example = {
        "direction": direction,
        **dict(zip(("oracle", "arrival", "backlog"), here, strict=True)),
        "learn_prob": float(table[here]),
        "next_oracle": there[0],
        "next_backlog": there[2],
        "next_learn_prob": float(table[there]),
    }
    text = (
        "not increasing in the {direction}: with arrival {arrival} it learns with chance "
        "{learn_prob:.4g} at oracle state {oracle}, backlog {backlog}, but {next_learn_prob:.4g} "
        "at oracle state {next_oracle}, backlog {next_backlog}"
    )
    return {"text": text.format(**example), **example}


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


def examine_horizon_solution(solution: HorizonSolution) -> StructureReport:
    """Report the structure of a horizon's solution: Theorem 2 and two further orders."""
    in_backlog = find_backlog_reversal(solution.learn)
    in_rounds = in_oracle = None
    if solution.thresholds is not None:
        in_rounds = find_rounds_reversal(solution.thresholds)
        in_oracle = find_oracle_reversal(solution.thresholds)
    learn = solution.learn
    return StructureReport(
        assumptions=check_assumptions(solution.problem),
        monotone_in_backlog=in_backlog is None,
        monotone_in_oracle=bool(np.all(learn[:, :-1] <= learn[:, 1:])),
        monotone_in_rounds=bool(np.all(learn[1:] <= learn[:-1])),
        counterexample=in_backlog or in_rounds or in_oracle,
        notes=(),
    )
