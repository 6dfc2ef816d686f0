"""The finite horizon, solved exactly by backward induction on equation (7) (section 3.1).

With n rounds left, oracle state o and backlog y, the cost to go of action u is

    Q_n(o, y, u) = c(o) u + sum_o' P(o, o') [s V_{n-1}(o', y - 1) + (1 - s) V_{n-1}(o', y)],

where s = g(o) u, V_n(o, y) = min_u Q_n(o, y, u) and V_0(o, y) = l(y).  Learning at backlog 0 is not
admissible (deviation D1).  Where l is convex, Q_n(o, y, 1) - Q_n(o, y, 0) does not increase in y:
the policy learns from a threshold chi_n(o) on (Theorem 2), and chi_n(o) does not decrease in n
(deviation D5).

Ties go to obfuscating.  Rounding must not decide them, so learning has to be cheaper by more than
a relative tolerance: 1e-12, or the bound (W + 4) * eps on the rounding error of a round times the
rounds left, if that is larger.  All terms of (7) are nonnegative, so these errors are relative to
the value itself.  If l is convex and learning is cheaper by that much at some backlog, it is chosen
at every larger one as well: by Theorem 2 it is cheaper there too, even if the larger value hides a
small gain.

The recursion is in `_induction.c`; whether the policy has thresholds is looked at when asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import require_type
from covertfl.decision.policy import HorizonTable
from covertfl.decision.problem import FiniteHorizon
from covertfl.solvers import _induction

TIE_TOLERANCE = 1e-12
ROUNDING_UNIT = float(np.finfo(np.float64).eps)

Counterexample = dict[str, Any]  # a sentence under the key text, and its numbers


@dataclass(frozen=True, eq=False)
class HorizonSolution:
    """The optimal policy of a finite horizon and its cost.

    Parameters
    ----------
    problem : the problem that was solved
    learn : (N, W, M + 1) booleans [rounds_left - 1][oracle][backlog], the optimal action
    final_value : (W, M + 1) optimal cost V_N of all rounds, by first oracle state and backlog
    values : (N + 1, W, M + 1) optimal costs V_0 .. V_N if they were kept, else None
    """

    problem: FiniteHorizon
    learn: BoolArray
    final_value: FloatArray
    values: FloatArray | None

    @cached_property
    def thresholds(self) -> IntArray | None:
        """Least backlog chi_n(o) at which it learns, (N, W) [rounds_left - 1][oracle].

        It is updates + 1 where it never learns; None if the policy is not a threshold policy.
        """
        return compute_thresholds(self.learn)

    @property
    def expected_cost(self) -> list[float]:
        """Optimal cost by first oracle state, with all updates still needed."""
        return [float(cost) for cost in self.final_value[:, -1]]

    @property
    def policy(self) -> HorizonTable:
        """The policy as a table of probabilities; eight times the memory of `learn`."""
        return HorizonTable(self.learn.astype(np.float64))


def has_convex_terminal_cost(problem: FiniteHorizon) -> bool:
    """Return whether l is convex on 0 .. updates up to rounding, assumption (M3)."""
    cost = problem.terminal_cost()
    bends = cost[2:] - 2.0 * cost[1:-1] + cost[:-2]
    return bool(np.all(bends >= -TIE_TOLERANCE * cost.max()))


def solve_horizon(problem: FiniteHorizon, *, keep_values: bool = False) -> HorizonSolution:
    """Compute the optimal policy and cost of a finite horizon, equation (7) for n = 1 .. N.

    Time and memory grow as N W M: one byte for each state, and eight more to keep V_0 .. V_N.
    """
    require_type(problem, FiniteHorizon, "problem")
    oracle, levels, rounds = problem.oracle, problem.updates + 1, problem.rounds
    num_kept = rounds + 1 if keep_values else 2
    values = np.empty((num_kept, oracle.num_states, levels))
    values[0] = problem.terminal_cost()
    learn = np.empty((rounds, oracle.num_states, levels), dtype=np.bool_)
    _induction.induct(
        oracle.transition,
        oracle.success,
        problem.privacy_cost,
        values,
        learn,
        rounds,
        oracle.num_states,
        levels,
        num_kept,
        TIE_TOLERANCE,
        (oracle.num_states + 4) * ROUNDING_UNIT,
        has_convex_terminal_cost(problem),
    )
    final_value = values[rounds % num_kept]
    return HorizonSolution(problem, learn, final_value, values if keep_values else None)


def compute_thresholds(learn: BoolArray) -> IntArray | None:
    """Return the least backlog, (N, W), at which the policy learns; M + 1 where it never learns.

    Returns None if the policy, [rounds_left - 1][oracle][backlog], has no thresholds.
    """
    if find_backlog_reversal(learn) is not None:
        return None
    return np.asarray((~learn).sum(axis=2), dtype=np.int64)


def find_backlog_reversal(learn: BoolArray) -> Counterexample | None:
    """Find the first state that contradicts Theorem 2, by rounds left, oracle state and backlog.

    In it the policy learns, although it obfuscates with one update more.
    """
    place = _find_first(learn[:, :, :-1] & ~learn[:, :, 1:])
    if place is None:
        return None
    n, o, y = place
    text = (
        f"with {n + 1} rounds left in oracle state {o} the policy "
        f"learns at backlog {y} but not at {y + 1}"
    )
    return {"text": text, "rounds_left": n + 1, "oracle_state": o, "backlog": y}


def find_rounds_reversal(thresholds: IntArray) -> Counterexample | None:
    """Find the first threshold chi_n(o) that is lower with a round more; none if l is convex (D5).

    The thresholds are (N, W) by rounds left - 1 and oracle state.
    """
    place = _find_first(thresholds[1:] < thresholds[:-1])
    if place is None:
        return None
    n, o = place
    here, later = int(thresholds[n, o]), int(thresholds[n + 1, o])
    text = (
        f"in oracle state {o} the threshold is {here} with "
        f"{n + 1} rounds left and {later} with one more"
    )
    where = {"rounds_left": n + 1, "oracle_state": o}
    return {"text": text, **where, "threshold": here, "threshold_with_one_more": later}


def find_oracle_reversal(thresholds: IntArray) -> Counterexample | None:
    """Find the first threshold chi_n(o) that is higher in the next better oracle state.

    Assumptions (M1), (M2) and (M5) do not exclude it: a middling state that is likely to be
    followed by a good one should wait (deviation D5).
    """
    place = _find_first(thresholds[:, 1:] > thresholds[:, :-1])
    if place is None:
        return None
    n, o = place
    here, better = int(thresholds[n, o]), int(thresholds[n, o + 1])
    text = (
        f"with {n + 1} rounds left the threshold is {here} in oracle "
        f"state {o} and {better} in the better state {o + 1}"
    )
    where = {"rounds_left": n + 1, "oracle_state": o}
    return {"text": text, **where, "threshold": here, "threshold_of_better": better}


def _find_first(broken: BoolArray) -> tuple[int, ...] | None:
    if not broken.any():
        return None
    return tuple(int(index) for index in np.unravel_index(int(broken.argmax()), broken.shape))
