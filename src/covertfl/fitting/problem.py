"""From a fitted oracle to a problem file that can be planned with and solved at once.

The log gives the oracle and, where it has them, the arrivals.  Costs and limits are the user's to
choose; the file begins with the paper's costs and says so.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import Infeasible, InvalidInput, NoSolution
from covertfl.fitting.oracle import FittedOracle
from covertfl.solvers.constrained import solve_queue

# The paper's privacy costs of the worst, the middle and the best state; others lie between.
PRIVACY_ANCHORS = (1.8, 0.8, 0.3)
QUEUE_COST = LearningCost("linear", 0.6, "always")
# How much above the least reachable learning cost the limit starts out.
LIMIT_MARGIN = 1.25
DEFAULT_ROUNDS, DEFAULT_UPDATES = 45, 16


def default_privacy_cost(num_states: int) -> FloatArray:
    """Privacy costs that fall from 1.8 to 0.3, (W,); the paper's own for three states."""
    return np.interp(np.linspace(0.0, 1.0, num_states), [0.0, 0.5, 1.0], PRIVACY_ANCHORS)


def format_oracle_section(fitted: FittedOracle) -> str:
    """The [oracle] section with 95% intervals as comments."""
    column = " ".join(fitted.column.split())  # a comment ends with its line
    lines = [
        f"# Fitted to {fitted.num_rounds} rounds; states by {column}, "
        f"cut at {', '.join(f'{cut:g}' for cut in fitted.cuts)}; 95% intervals in the comments.",
        "[oracle]",
        "transition = [",
    ]
    for row, intervals, visits in zip(
        fitted.oracle.transition, fitted.transition_interval, fitted.visits, strict=True
    ):
        lines.append(f"  {_format_row(row)},  # {_format_intervals(intervals)}, {visits} rounds")
    lines += [
        "]",
        f"success    = {_format_row(fitted.oracle.success)}"
        f"  # {_format_intervals(fitted.success_interval)}",
    ]
    return "\n".join(lines) + "\n"


def format_problem(
    fitted: FittedOracle, *, rounds: int = DEFAULT_ROUNDS, updates: int = DEFAULT_UPDATES
) -> str:
    """A whole problem file: a queue where the log has arrivals that can be served, else a horizon.

    Parameters
    ----------
    rounds, updates : of the horizon, at least 1
    """
    for name, number in (("rounds", rounds), ("updates", updates)):
        if number < 1:
            raise InvalidInput(f"{name} must be at least 1, got {number}")
    privacy = default_privacy_cost(fitted.oracle.num_states)
    limit, obstacle = _choose_limit(fitted, privacy)
    if limit is None:
        learning = 'learning = { shape = "quadratic", scale = 0.6 }'
        remark = f"# The log has arrivals, but {obstacle}.\n" if obstacle else ""
        scheme = f"{remark}[horizon]\nrounds  = {rounds}\nupdates = {updates}\n"
    else:
        assert fitted.arrival is not None
        learning = 'learning = { shape = "linear", scale = 0.6, charged = "always" }'
        low, high = fitted.arrival.interval
        scheme = (
            "[queue]\n"
            f"arrival_prob   = {fitted.arrival.arrival_prob!r}  # [{low:.3f}, {high:.3f}]\n"
            f"arrival_size   = {fitted.arrival.arrival_size}\n"
            f"learning_limit = {limit:.4g}  # {LIMIT_MARGIN} times the least: yours to choose\n"
            'capacity       = "auto"\n'
        )
    cost = (
        "[cost]  # yours to choose; these begin with the paper's\n"
        f"privacy  = {_format_row(np.round(privacy, 4))}\n{learning}\n"
    )
    evidence = (
        "[evidence]  # the counts behind [oracle]: the planner carries their uncertainty on\n"
        f"transition_counts = {fitted.transition_counts.tolist()}\n"
        f"success_counts    = {fitted.success_counts.tolist()}\n"
    )
    return "\n".join([format_oracle_section(fitted), cost, scheme, evidence])


def _choose_limit(fitted: FittedOracle, privacy: FloatArray) -> tuple[float | None, str]:
    """A learning limit that can be met, or None and, with arrivals, why there is none."""
    if fitted.arrival is None:
        return None, ""
    try:
        solve_queue(
            QueueProblem(
                fitted.oracle,
                privacy,
                QUEUE_COST,
                fitted.arrival.arrival_prob,
                fitted.arrival.arrival_size,
                limit=0.0,
            )
        )
    except Infeasible as refusal:
        return LIMIT_MARGIN * refusal.best, ""
    except (NoSolution, InvalidInput) as refusal:
        return None, str(refusal)
    raise AssertionError("with arrivals there is a backlog, and a backlog costs")


def _format_row(values: FloatArray) -> str:
    return "[" + ", ".join(repr(float(value)) for value in values) + "]"


def _format_intervals(intervals: FloatArray) -> str:
    return " ".join(f"[{low:.3f}, {high:.3f}]" for low, high in intervals)
