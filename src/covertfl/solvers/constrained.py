"""The constrained queue problem (9), solved exactly (Theorem 3).

One average cost is minimised while the other stays within a limit.  `multiplier` finds the
multiplier of the limit and the mixture; this module puts the pieces together, increases an
automatic capacity, and evaluates the result again: its cost is compared with the lower bound that
the multiplier proves, and the difference is the certificate.  A result that fails the comparison is
not returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.arguments import require_type
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.errors import Infeasible, NoSolution, SolverFailed, SplitChain, Unstable
from covertfl.evaluation.bounds import privacy_cost_bound, service_capacity
from covertfl.evaluation.queue import (
    SLOWEST_SETTLING,
    QueueEvaluation,
    evaluate_queue_policy,
    require_settling,
    split_costs,
)
from covertfl.solvers.average_cost import AverageCostSolution, TooMuchWork, always_learn
from covertfl.solvers.capacity import (
    MOST_WORK,
    describe_stay,
    find_cheapest,
    find_first_capacity,
    find_longest_stay,
    grow,
    is_large_enough,
    largest_capacity,
)
from covertfl.solvers.multiplier import (
    LIMIT_TOLERANCE,
    Lagrangian,
    Mixing,
    Path,
    bracket_limit,
    find_critical,
    mix_policies,
)

CERTIFICATE_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class QueueSolution:
    """An optimal policy of a queue problem and what is proven of it.

    Parameters
    ----------
    problem : the problem that was solved, with a numeric capacity
    method : "exact", "lp" or "spga"
    policy : the policy, a table [oracle][arrival][backlog]
    evaluation : its exact long-run averages
    multiplier : multiplier of the limit, 0 if the limit does not bind
    mixing : the state in which it randomises, None if there is none
    lower_bound : no policy within the limit costs less than this
    iterations : number of policies evaluated
    """

    problem: QueueProblem
    method: str
    policy: QueueTable
    evaluation: QueueEvaluation
    multiplier: float
    mixing: Mixing | None
    lower_bound: float
    iterations: int

    @property
    def cost(self) -> float:
        """The minimised average cost."""
        return split_costs(self.problem, self.evaluation)[0]

    @property
    def constrained_cost(self) -> float:
        """The average cost that the limit is on."""
        return split_costs(self.problem, self.evaluation)[1]

    @property
    def certificate_gap(self) -> float:
        """Relative excess of the cost over the proven lower bound."""
        return (self.cost - self.lower_bound) / max(abs(self.lower_bound), 1e-300)


OnStep = Callable[[str], None]


def solve_queue(
    problem: QueueProblem, *, on_progress: OnStep = lambda words: None
) -> QueueSolution:
    """Solve the constrained problem of equation (9) exactly (Theorem 3).

    Parameters
    ----------
    problem : with capacity None, the capacity grows until the queue is full with probability below
        1e-9
    on_progress : called with a few words on what is being done

    Raises
    ------
    Infeasible
        if the limit cannot be met; carries the best reachable value
    Unstable
        if the capacity is automatic and no capacity is large enough
    SolverFailed
        if the capacity is automatic and finding it takes too much work
    SplitChain
        if the optimum is attained from no start state
    """
    require_type(problem, QueueProblem, "problem")
    if problem.capacity is not None:
        return _solve_bounded(Lagrangian(problem), None, 0.0)
    return _solve_growing(problem, on_progress)


def _solve_growing(problem: QueueProblem, on_progress: OnStep) -> QueueSolution:
    _require_serviceable(problem)
    floor = privacy_cost_bound(problem)
    capacity, largest = find_first_capacity(problem), largest_capacity(problem)
    cheapest = find_cheapest(problem)
    if cheapest is not None:
        bounded, policy, evaluation = cheapest
        on_progress(f"capacity {bounded.capacity}")
        return QueueSolution(bounded, "exact", policy, evaluation, 0.0, None, floor, 1)
    solution: QueueSolution | None = None
    work = 0
    while True:
        on_progress(f"capacity {capacity}")
        bounded = problem.with_capacity(capacity)
        lagrangian = Lagrangian(bounded)
        lagrangian.operator.most_policies = max(MOST_WORK - work, 0) // bounded.num_states
        try:
            solution = _solve_bounded(lagrangian, solution, floor)
            full_prob = solution.evaluation.full_prob
            if is_large_enough(bounded, solution.evaluation):
                return solution
        except Infeasible:
            # Lost updates are charged, so too small a capacity can make the limit look unreachable;
            # only a capacity that is large enough can tell.
            least = Lagrangian(bounded).solve_for_constraint()
            evaluation = evaluate_queue_policy(bounded, QueueTable(least.learn.astype(np.float64)))
            full_prob = evaluation.full_prob
            if capacity >= largest or is_large_enough(bounded, evaluation):
                raise
        except TooMuchWork as stop:
            raise SolverFailed(_describe_stop(bounded, solution)) from stop
        except (SolverFailed, SplitChain) as error:
            if find_longest_stay(problem)[1] > SLOWEST_SETTLING:
                raise SplitChain(f"{describe_stay(problem)}, so no average settles") from error
            # The larger the capacity, the rarer the passage between a full queue and a short one.
            # Only a cost that grows with the backlog makes a full queue too costly in the end.
            if problem.learning_cost.shape == "constant" or capacity >= largest:
                if solution is None:
                    raise
                raise Unstable(_describe_unstable(solution)) from error
            full_prob = 1.0
        if capacity >= largest:
            assert solution is not None
            raise Unstable(_describe_unstable(solution))
        work += lagrangian.operator.policies * bounded.num_states
        capacity = grow(capacity, full_prob, largest)


def _describe_stop(problem: QueueProblem, solution: QueueSolution | None) -> str:
    before = ""
    if solution is not None:
        before = (
            f"; with room for {solution.problem.capacity:,} the queue is full in a share of "
            f"{solution.evaluation.full_prob:.3g} of rounds"
        )
    return (
        f"the search for a capacity was stopped at {problem.capacity:,} updates, after policies "
        f"with {MOST_WORK:,} states in all were evaluated{before}; {describe_stay(problem)}, and "
        f"backlogs grow as long; set capacity and overflow_cost, or change {problem.limit_name} = "
        f"{problem.limit:g}"
    )


def _require_serviceable(problem: QueueProblem) -> None:
    service = service_capacity(problem)
    if problem.load >= service:
        raise Unstable(
            f"the queue cannot be stable: {problem.load:.6g} updates arrive in a round and at most "
            f"{service:.6g} can be done even if every query learns, so the backlog grows by "
            f"{problem.load - service:.6g} a round or more"
        )
    least = privacy_cost_bound(problem)
    if problem.objective == "learning" and problem.limit <= least:
        raise Infeasible(
            f"privacy_limit = {problem.limit:g} cannot be met by a stable queue: "
            f"the best reachable value is above {least:.6g}",
            best=least,
        )


def _describe_unstable(solution: QueueSolution) -> str:
    problem, evaluation = solution.problem, solution.evaluation
    done = problem.load - evaluation.lost_per_round
    return (
        f"the queue is unstable under this cost: with room for {problem.capacity:,} updates it is "
        f"still full in a share of {evaluation.full_prob:.3g} of rounds, and of "
        f"{problem.load:.6g} updates that arrive in a round only {done:.6g} are done, a drift of "
        f"{evaluation.lost_per_round:.3g} a round; use a cost that grows with the backlog, or a "
        "fixed capacity with an overflow_cost"
    )


def _solve_bounded(
    lagrangian: Lagrangian, smaller: QueueSolution | None, privacy_floor: float
) -> QueueSolution:
    """Solve with a given capacity, starting from a solution with a smaller one if there is one.

    `privacy_floor` is a lower bound on the privacy cost of every admissible policy.
    """
    problem = lagrangian.problem
    tight = lagrangian.solve_for_constraint()
    least = lagrangian.costs(tight.chain)[1]
    if least > problem.limit * (1.0 + LIMIT_TOLERANCE):
        raise Infeasible(
            f"{problem.limit_name} = {problem.limit:g} cannot be met: "
            f"the best reachable value is {least:.6g}",
            best=least,
        )
    # A limit below the least reachable value by rounding only is replaced by that value.
    lagrangian.limit = max(problem.limit, least)
    free = lagrangian.solve_without_limit()
    if lagrangian.costs(free.chain)[1] <= lagrangian.limit:
        return _finish(lagrangian, 0.0, free.learn.astype(np.float64), None)
    if lagrangian.limit == 0.0:
        return _solve_without_room(lagrangian, tight)
    start, first_multiplier = always_learn(problem), None
    if smaller is not None and smaller.multiplier > 0.0:
        start, first_multiplier = _extend(smaller.policy.table > 0.5, problem), smaller.multiplier
    floor = privacy_floor if problem.objective == "privacy" else 0.0
    loose, tight = bracket_limit(lagrangian, free, tight, first_multiplier, start, floor)
    if loose is None:
        return _finish(lagrangian, 0.0, tight.learn.astype(np.float64), None, bound=floor)
    multiplier, path = find_critical(lagrangian, loose, tight)
    reason: NoSolution | None = None
    trials: tuple[Callable[[], Path], ...] = (
        lambda: path,
        path.make_direct,
        path.from_critical,
        lambda: path.from_critical(upwards=True),
    )
    for make_trial in trials:
        try:
            return _finish(lagrangian, multiplier, *mix_policies(make_trial()))
        except (SolverFailed, SplitChain) as error:
            reason = reason or error  # the first is the most informative
    assert reason is not None
    if isinstance(reason, SplitChain):
        raise SplitChain(f"{reason}; {path.describe_ends()}") from reason
    raise reason


def _solve_without_room(lagrangian: Lagrangian, tight: AverageCostSolution) -> QueueSolution:
    """Find the cheapest policy whose constrained cost is 0, with a very large multiplier."""
    for multiplier in (1e3, 1e6, 1e9):
        solution = lagrangian.solve(multiplier, tight.learn)
        if lagrangian.costs(solution.chain)[1] == 0.0:
            return _finish(lagrangian, multiplier, solution.learn.astype(np.float64), None)
    return _finish(lagrangian, multiplier, tight.learn.astype(np.float64), None)


def _extend(learn: BoolArray, problem: QueueProblem) -> BoolArray:
    """Extend a policy to a larger capacity; it learns at the new levels."""
    extended = always_learn(problem)
    # The last levels of the smaller problem are distorted by its boundary.
    trusted = max(learn.shape[2] - 2 * problem.largest_arrival, 1)
    extended[:, :, :trusted] = learn[:, :, :trusted]
    return extended


def _finish(
    lagrangian: Lagrangian,
    multiplier: float,
    table: FloatArray,
    mixing: Mixing | None,
    *,
    bound: float | None = None,
) -> QueueSolution:
    """Evaluate the result again, compare it with the lower bound, and return it or raise."""
    problem = lagrangian.problem
    policy = QueueTable(table)
    evaluation = evaluate_queue_policy(problem, policy)
    if bound is None:
        bound = lagrangian.solve(multiplier, table > 0.5).gain - multiplier * problem.limit
    solution = QueueSolution(
        problem, "exact", policy, evaluation, multiplier, mixing, bound, lagrangian.iterations
    )
    require_settling(evaluation)
    if solution.constrained_cost > problem.limit * (1.0 + 1e-9) + 1e-15:
        raise SolverFailed(
            f"the policy found exceeds {problem.limit_name} = {problem.limit:g} "
            f"({solution.constrained_cost:.12g}) and is not returned"
        )
    scale = max(abs(solution.lower_bound), solution.multiplier * problem.limit)
    if solution.cost - solution.lower_bound > CERTIFICATE_TOLERANCE * scale:
        raise SolverFailed(
            f"the policy found costs {solution.cost:.12g}, above the proven bound "
            f"{solution.lower_bound:.12g}, and is not returned"
        )
    return solution
