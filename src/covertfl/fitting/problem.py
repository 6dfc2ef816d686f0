"""A complete problem file from a fitted oracle, ready to plan with and to solve.

The oracle and, if there are any, the arrivals come from the log.  Costs and limits are the user's
choice; the file starts from the paper's costs and marks them as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem import LearningCost
from covertfl.errors import Infeasible, InvalidInput, NoSolution
from covertfl.fitting.oracle import ArrivalFit, FittedOracle
from covertfl.solvers.constrained import solve_queue

# The paper's privacy costs of the worst, the middle and the best state; others are interpolated.
PRIVACY_ANCHORS = (1.8, 0.8, 0.3)
QUEUE_COST = LearningCost("linear", 0.6, "always")
# The limit in the file as a multiple of the least reachable learning cost.
LIMIT_MARGIN = 1.25
DEFAULT_ROUNDS, DEFAULT_UPDATES = 45, 16


def default_privacy_cost(num_states: int) -> FloatArray:
    """Return privacy costs that fall from 1.8 to 0.3, (W,); for three states the paper's own."""
    return np.interp(np.linspace(0.0, 1.0, num_states), [0.0, 0.5, 1.0], PRIVACY_ANCHORS)


def format_oracle_section(fitted: FittedOracle) -> str:
    """Return the [oracle] section, with 95% intervals as comments."""
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
    """Return a problem file: a queue if the log has arrivals that can be served, else a horizon.

    The horizon has N = `rounds` and M = `updates`, at least 1 each.
    """
    for name, number in (("rounds", rounds), ("updates", updates)):
        if number < 1:
            raise InvalidInput(f"{name} must be at least 1, got {number}")
    privacy = default_privacy_cost(fitted.oracle.num_states)
    limit, obstacle = _choose_limit(fitted, privacy)
    if limit is None or fitted.arrival is None:
        learning = 'learning = { shape = "quadratic", scale = 0.6 }'
        remark = f"# The log has arrivals, but {obstacle}.\n" if obstacle else ""
        scheme = f"{remark}[horizon]\nrounds  = {rounds}\nupdates = {updates}\n"
    else:
        learning = 'learning = { shape = "linear", scale = 0.6, charged = "always" }'
        scheme = _format_queue_section(fitted.arrival, limit)
    cost = (
        "[cost]  # yours to choose; these begin with the paper's\n"
        f"privacy  = {_format_row(np.round(privacy, 4))}\n{learning}\n"
    )
    evidence = (
        "[evidence]  # the counts behind [oracle]: the planner carries their uncertainty on\n"
        f"transition_counts = {fitted.transition_counts.tolist()}\n"
        f"success_counts    = {fitted.success_counts.tolist()}\n"
    )
    return "\n".join(
        [format_oracle_section(fitted), cost, scheme, format_states_section(fitted), evidence]
    )


def format_states_section(fitted: FittedOracle) -> str:
    """Return the [states] section: what training needs to put rounds into the fitted states."""
    remarks = {
        "cuts": "the values of the column at which a better state begins",
        "participation": "clients of a round, by state",
        "examples": "examples of a round, by state",
        "min_examples": "of an accepted round",
        "gaps": "missing rounds and blank cells of a log",
    }
    lines = ["[states]  # what the oracle states stand for: train, replay and audit use it"]
    for key, value in fitted.meaning.to_dict().items():
        # TOML requires every control character to be escaped; JSON does not escape this one.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        remark = f"  # {remarks[key]}" if key in remarks else ""
        lines.append(f"{key:13} = {text}{remark}")
    return "\n".join(lines) + "\n"


def _format_queue_section(arrival: ArrivalFit, limit: float) -> str:
    return (
        f"[queue]\n{_format_arrivals(arrival)}"
        f"learning_limit = {limit:.4g}  # {LIMIT_MARGIN} times the least: yours to choose\n"
        'capacity       = "auto"\n'
    )


def _format_arrivals(arrival: ArrivalFit) -> str:
    intervals = _format_intervals(arrival.size_intervals)
    if not arrival.sizes_vary:
        return (
            f"arrival_prob   = {arrival.arrival_prob!r}  # {intervals}\n"
            f"arrival_size   = {arrival.arrival_size}\n"
        )
    pairs = zip(arrival.sizes, arrival.size_probs, strict=True)
    sizes = ", ".join(f"{size} = {prob!r}" for size, prob in pairs)
    return f"arrival_sizes  = {{ {sizes} }}  # {intervals}\n"


def _choose_limit(fitted: FittedOracle, privacy: FloatArray) -> tuple[float | None, str]:
    """Return a learning limit that can be met, or None and, with arrivals, the reason."""
    if fitted.arrival is None:
        return None, ""
    try:
        solve_queue(fitted.arrival.build_queue(fitted.oracle, privacy, QUEUE_COST, limit=0.0))
    except Infeasible as refusal:
        return LIMIT_MARGIN * refusal.best, ""
    except (NoSolution, InvalidInput) as refusal:
        return None, str(refusal)
    raise AssertionError("with arrivals there is a backlog, and a backlog costs")


def _format_row(values: FloatArray) -> str:
    return "[" + ", ".join(repr(float(value)) for value in values) + "]"


def _format_intervals(intervals: Iterable[Sequence[float]] | FloatArray) -> str:
    return " ".join(f"[{low:.3f}, {high:.3f}]" for low, high in intervals)
