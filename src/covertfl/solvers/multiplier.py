"""The multiplier of a limit and the mixture that meets it (equations (10) and (12), Theorem 3).

For a multiplier lambda >= 0 the Lagrangian problem (10) has an optimal value that bounds the
constrained optimum from below, a concave piecewise linear function with one line for each
deterministic policy.  The lines of two policies on either side of the limit cross at some
multiplier; if no line lies below that crossing, it is the critical multiplier, both policies are
optimal there and the constrained optimum lies between them.  Otherwise the policy found below it
replaces one of the two.  The search ends after finitely many steps.

The two policies of the critical multiplier are joined by a path that changes one state at a time,
on which all policies are equally good.  Somewhere on the path the limit is crossed; the solution
randomises in the one state that changes there, with the probability that makes the limit hold with
equality (deviation D8: the weight printed in (12) does not).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.problem import QueueProblem
from covertfl.errors import SolverFailed, SplitChain
from covertfl.evaluation.chain import LEARNING, PRIVACY, ChainSolution
from covertfl.solvers.average_cost import (
    AverageCostSolution,
    QueueOperator,
    always_learn,
    never_learn,
    solve_average_cost,
)

MAX_STEPS = 500
# Factor and number of steps of the multiplier down to the first policy that exceeds the limit.
SHRINK, MAX_SHRINKS = 4.0, 12
# A policy lies below a crossing of two lines only if it does so by more than rounding.
GAIN_TOLERANCE = 1e-13
# A cost this close to a lower bound, in relative terms, attains it.
FLOOR_TOLERANCE = 1e-10
# Relative accuracy to which the limit is met.
LIMIT_TOLERANCE = 1e-11
# In a state with this stationary mass, a suboptimal action would show in the average.
OFTEN = 1e-6


@dataclass(frozen=True)
class Mixing:
    """The one state in which an optimal policy randomises."""

    oracle: int
    arrival: int
    backlog: int
    learn_prob: float


class Lagrangian:
    """The Lagrangian problem (10) as a function of the multiplier."""

    def __init__(self, problem: QueueProblem) -> None:
        self.problem = problem
        self.limit = problem.limit
        self.operator = QueueOperator(problem)
        self.minimised = PRIVACY if problem.objective == "privacy" else LEARNING
        self.iterations = 0

    def solve(self, multiplier: float, start: BoolArray) -> AverageCostSolution:
        """Minimise (minimised cost) + multiplier * (constrained cost), equation (10).

        From a start that gives up, each step of policy iteration only drains a few backlogs more.
        """
        return self._solve((1.0, multiplier), start)

    def solve_without_limit(self) -> AverageCostSolution:
        """Minimise the minimised cost alone."""
        return self._solve((1.0, 0.0), self._nearest_to_best(self.minimised))

    def solve_for_constraint(self) -> AverageCostSolution:
        """Minimise the constrained cost alone."""
        return self._solve((0.0, 1.0), self._nearest_to_best(1 - self.minimised))

    def _nearest_to_best(self, cost: int) -> BoolArray:
        return never_learn(self.problem) if cost == PRIVACY else always_learn(self.problem)

    def _solve(self, weights: tuple[float, float], start: BoolArray) -> AverageCostSolution:
        by_cost = weights if self.minimised == PRIVACY else (weights[1], weights[0])
        solution = solve_average_cost(self.operator, by_cost, start)
        self.iterations += solution.iterations
        return solution

    def evaluate(self, table: FloatArray) -> ChainSolution:
        """Return averages, stationary distribution and relative values of any policy."""
        self.iterations += 1
        return self.operator.evaluate(table)

    def costs(self, chain: ChainSolution) -> tuple[float, float]:
        """Return the minimised and the constrained average of a policy."""
        return float(chain.averages[self.minimised]), float(chain.averages[1 - self.minimised])


def bracket_limit(
    lagrangian: Lagrangian,
    free: AverageCostSolution,
    tight: AverageCostSolution,
    multiplier: float | None,
    start: BoolArray,
    floor: float,
) -> tuple[AverageCostSolution | None, AverageCostSolution]:
    """Find two optima of (10), one over the limit and one within it, by lowering the multiplier.

    Starting from a large multiplier keeps the queue stable: with a small one and a large capacity,
    policies that give up would have to be evaluated as well.

    Parameters
    ----------
    free : the optimum without a limit, which exceeds it
    tight : the policy of the least constrained cost
    multiplier, start : the first multiplier, None if nothing is known, and the first policy
    floor : lower bound on the cost of every admissible policy; if the policy within the limit
        attains it, the limit does not bind, and None is returned for the one over it
    """
    limit = lagrangian.limit
    if multiplier is None:
        cost, least = lagrangian.costs(tight.chain)
        multiplier = max(cost, 1e-3) / max(limit - least, 1e-3 * limit, 1e-12)
    for _ in range(MAX_SHRINKS):
        solution = lagrangian.solve(multiplier, start)
        if lagrangian.costs(solution.chain)[1] > limit:
            return solution, tight
        tight = solution
        if lagrangian.costs(tight.chain)[0] <= floor * (1.0 + FLOOR_TOLERANCE):
            return None, tight
        if lagrangian.minimised == PRIVACY:
            start = tight.learn
        multiplier /= SHRINK
    return free, tight


def find_critical(
    lagrangian: Lagrangian, loose: AverageCostSolution, tight: AverageCostSolution
) -> tuple[float, Path]:
    """Find the critical multiplier of Theorem 3, and the policies that are optimal there.

    The search starts from optima of (10) over the limit and within it.
    """
    for _ in range(MAX_STEPS):
        loose_cost, loose_excess = lagrangian.costs(loose.chain)
        tight_cost, tight_excess = lagrangian.costs(tight.chain)
        multiplier = max((tight_cost - loose_cost) / (loose_excess - tight_excess), 0.0)
        crossing = tight_cost + multiplier * tight_excess
        shorter = min(loose, tight, key=lambda end: float(end.chain.averages[LEARNING]))
        solution = lagrangian.solve(multiplier, shorter.learn)
        if solution.gain >= crossing - GAIN_TOLERANCE * max(abs(crossing), tight_cost):
            return multiplier, Path(lagrangian, solution, loose, tight)
        if lagrangian.costs(solution.chain)[1] > lagrangian.limit:
            loose = solution
        else:
            tight = solution
    raise SolverFailed(f"the multiplier did not converge in {MAX_STEPS} steps")


class Path:
    """Policies of the critical multiplier from `loose` to `tight`, changing one state at a time.

    Under the values of one policy that is optimal at the critical multiplier, both actions are
    equally good in every state that either end visits.  Elsewhere all policies of the path act as
    that one does, so that all of them are optimal.  If the two ends differ only in states that are
    rarely visited (a limit close to the least reachable value), rounding hides that both actions
    are equally good there; the `direct` path then keeps both ends as they are.

    A queue may have two optimal ways to run that rarely meet, such as keeping it short and leaving
    it full, and then an end that runs it in one way need not act well where only the other goes.
    The policy found at the critical multiplier does act well everywhere: the path `from_critical`
    leads from it to the end on the other side of the limit.  In which order states change matters
    if two ways of running the queue rarely meet: policies that are equally good take unequally long
    from one way to the other.
    """

    def __init__(
        self,
        lagrangian: Lagrangian,
        critical: AverageCostSolution,
        loose: AverageCostSolution,
        tight: AverageCostSolution,
        *,
        direct: bool = False,
        upwards: bool = False,
    ) -> None:
        self.lagrangian = lagrangian
        self.ends = (critical, loose, tight)
        self.loose, self.tight = loose.learn, tight.learn
        if not direct:
            self.loose = np.where(_is_tie(critical, loose), loose.learn, critical.learn)
            self.tight = np.where(_is_tie(critical, tight), tight.learn, critical.learn)
        # The largest backlog first, so that thresholds stay thresholds, unless asked otherwise.
        sign = 1 if upwards else -1
        self.states: list[tuple[int, int, int]] = sorted(
            ((int(o), int(e), int(y)) for o, e, y in np.argwhere(self.loose != self.tight)),
            key=lambda state: (sign * state[2], state[0], state[1]),
        )

    def make_direct(self) -> Path:
        """Return the path between the two ends as they are."""
        return Path(self.lagrangian, *self.ends, direct=True)

    def from_critical(self, *, upwards: bool = False) -> Path:
        """Return the path between the policy of the critical multiplier and the end beyond it.

        Going upwards, it changes the smallest backlog first.
        """
        critical, loose, tight = self.ends
        if self.lagrangian.costs(critical.chain)[1] > self.lagrangian.limit:
            loose = critical
        else:
            tight = critical
        return Path(self.lagrangian, critical, loose, tight, direct=True, upwards=upwards)

    def describe_ends(self) -> str:
        """Describe where the two ends keep the queue, and at what average costs."""
        _, loose, tight = self.ends
        over, within = (self._describe_end(end) for end in (loose, tight))
        return (
            f"one of them {over} and is over the limit, the other {within} and is within it; a "
            "start in either has its averages, not those of a mixture"
        )

    def _describe_end(self, end: AverageCostSolution) -> str:
        levels = np.flatnonzero(end.chain.mass.sum(axis=1) > OFTEN)
        privacy, learning = end.chain.averages
        return (
            f"keeps the backlog at {levels[0]}..{levels[-1]} "
            f"(privacy {privacy:.4g}, learning {learning:.4g})"
        )

    def policy(self, changed: int) -> BoolArray:
        """Return the policy after `changed` changes."""
        learn = self.loose.copy()
        for state in self.states[:changed]:
            learn[state] = self.tight[state]
        return learn

    def chain(self, changed: int) -> ChainSolution:
        """Return averages and stationary distribution of the policy after `changed` changes."""
        chain = self.lagrangian.evaluate(self.policy(changed).astype(np.float64))
        if len(chain.roots) > 1:
            raise SplitChain(
                "the optimum mixes policies that split the queue into closed classes, so no "
                "stationary policy reaches it from every start"
            )
        return chain


def _is_tie(critical: AverageCostSolution, end: AverageCostSolution) -> BoolArray:
    """Return the states in which both actions are equally good at the critical multiplier.

    The multiplier is subject to rounding of the averages, so the gap is compared loosely; states
    that an optimal policy visits often are ties in any case.  The certificate checks the result.
    """
    close = np.abs(critical.gap.gap) <= 1e3 * critical.gap.rounding
    visited = (end.chain.mass > OFTEN).T[:, None, :]
    return np.asarray(close | visited)


def mix_policies(path: Path) -> tuple[FloatArray, Mixing | None]:
    """Randomise in one state of the path so that the limit is met with equality (Theorem 3).

    Returns the (W, A, capacity + 1) probability of learning and the state where it is not 0 or 1.
    """
    lagrangian, limit = path.lagrangian, path.lagrangian.limit
    low, high = 0, len(path.states)
    over, within = path.chain(low), path.chain(high)
    while high - low > 1:
        middle = (low + high) // 2
        chain = path.chain(middle)
        if lagrangian.costs(chain)[1] > limit:
            low, over = middle, chain
        else:
            high, within = middle, chain
    if limit * (1.0 - LIMIT_TOLERANCE) <= lagrangian.costs(over)[1] <= limit:
        return path.policy(low).astype(np.float64), None  # over the limit by rounding only
    if lagrangian.costs(over)[1] <= limit or lagrangian.costs(within)[1] > limit:
        raise SplitChain(
            "the optimum lies between two ways of running the queue that rarely meet; a mixture of "
            "them is below rounding, so no average holds from every start"
        )
    if lagrangian.costs(within)[1] >= limit * (1.0 - LIMIT_TOLERANCE):
        return path.policy(high).astype(np.float64), None
    return _mix_in_state(
        lagrangian, path.policy(low), path.policy(high), over, within, path.states[low]
    )


def _mix_in_state(
    lagrangian: Lagrangian,
    over_policy: BoolArray,
    within_policy: BoolArray,
    over: ChainSolution,
    within: ChainSolution,
    state: tuple[int, int, int],
) -> tuple[FloatArray, Mixing | None]:
    """Find the learning probability in one state that meets the limit with equality (Theorem 3).

    With alpha = (limit - B_within) / (B_over - B_within) as in equation (12), the occupation
    measure is alpha m_over + (1 - alpha) m_within, and in the state s the action of `within` has
    probability w = (1 - alpha) m_within(s) / (alpha m_over(s) + (1 - alpha) m_within(s))
    (deviation D8).
    """
    limit = lagrangian.limit
    excess_over, excess_within = lagrangian.costs(over)[1], lagrangian.costs(within)[1]
    oracle, arrival, backlog = state
    m_over, m_within = float(over.mass[backlog, oracle]), float(within.mass[backlog, oracle])
    alpha = (limit - excess_within) / (excess_over - excess_within)
    weight = (1.0 - alpha) * m_within / (alpha * m_over + (1.0 - alpha) * m_within)
    for _ in range(3):  # Newton steps remove the remaining rounding error
        table = over_policy.astype(np.float64)
        table[state] = weight if within_policy[state] else 1.0 - weight
        excess = lagrangian.costs(lagrangian.evaluate(table))[1]
        if abs(excess - limit) <= LIMIT_TOLERANCE * limit + 1e-16:
            break
        slope = (excess_within - excess_over) * m_over * m_within
        slope /= (weight * m_over + (1.0 - weight) * m_within) ** 2
        weight = min(max(weight - (excess - limit) / slope, 0.0), 1.0)
    learn_prob = float(table[state])
    mixing = Mixing(oracle, arrival, backlog, learn_prob) if 0.0 < learn_prob < 1.0 else None
    return table, mixing
