"""The constrained queue problem (9) as a linear program over occupation measures.

An independent check of `constrained`: it is written on the full states (o, e, y) with the
transitions (8) spelled out as sparse matrices, and solved by HiGHS (dual simplex).  Variables
x(s, u) >= 0 are the long-run shares of rounds spent in state s with action u; they balance, sum to
1, and meet the limit.

Costs of a full queue can be thousands of times the limit, so the programme has a second form in
which shares are measured in units that cost about 1.  HiGHS fails on either form of some problems,
even of a few hundred states, and then the next form is tried.  If it fails on all of them, or no
result agrees with an exact evaluation of its policy, an error is raised and no policy is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.arguments import require_type
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import Action, QueueProblem, next_backlog, round_learning_cost
from covertfl.errors import Infeasible, NoSolution, SolverFailed, SplitChain
from covertfl.evaluation.queue import evaluate_queue_policy, require_settling
from covertfl.solvers.average_cost import lead_into
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.multiplier import Mixing

# Shares below this are rounding errors of the simplex method.
VISIBLE = 1e-11
AGREEMENT = 1e-6
UNPROVEN = 1e-4
# Reduced costs of a dear column may be wrong by HiGHS's tolerance times its cost, for which a
# slightly larger multiplier makes up.
RAISED = (0.0, *np.geomspace(1e-12, 1e-4, 9).tolist())
# Seconds for each form.
TIME_LIMIT = 300.0
# With a relative rounding error above this the next form is tried as well.
CLEAN = 1e-9
# Whether columns are scaled by their cost, and whether HiGHS may simplify before it starts.
FORMS = ((False, True), (True, True), (True, False), (False, False))


def solve_occupation_lp(problem: QueueProblem) -> QueueSolution:
    """Solve the constrained problem of equation (9) as a linear program by HiGHS.

    Parameters
    ----------
    problem : with a numeric capacity

    Raises
    ------
    Infeasible
        if the limit cannot be met; carries the best reachable value
    SolverFailed
        if HiGHS fails on every form of the programme
    SplitChain
        if the measure mixes closed classes, so that its averages belong to no start state
    """
    require_type(problem, QueueProblem, "problem")
    failure: NoSolution | None = None
    answers: list[QueueSolution] = []
    for form in FORMS:
        try:
            answers.append(_solve_form(problem, form))
        except (SolverFailed, SplitChain) as error:
            failure = failure or error
            continue
        if _measure_rounding(answers[-1]) <= CLEAN:
            return answers[-1]
    if not answers:
        assert failure is not None
        raise failure
    return min(answers, key=_measure_rounding)


def _measure_rounding(solution: QueueSolution) -> float:
    """Return how far the policy is from the result of HiGHS, relative to the Lagrangian.

    The policy should have the cost that the programme claims, and attain a limit whose multiplier
    is positive.
    """
    limit = solution.problem.limit
    unused = solution.multiplier * abs(limit - solution.constrained_cost)
    scale = max(abs(solution.cost), solution.multiplier * limit, 1e-300)
    return (abs(solution.cost - solution.lower_bound) + unused) / scale


def _solve_form(problem: QueueProblem, form: tuple[bool, bool]) -> QueueSolution:
    privacy, learning = _stack_costs(problem)
    objective, constrained = (
        (privacy, learning) if problem.objective == "privacy" else (learning, privacy)
    )
    optimum = _minimise(problem, objective, constrained, problem.limit, form)
    if optimum is None:
        least = _minimise(problem, constrained, constrained, float(constrained.max()), form)
        if least is None or least.value <= problem.limit:
            raise SolverFailed("HiGHS contradicts itself on whether the limit can be met")
        raise Infeasible(
            f"{problem.limit_name} = {problem.limit:g} cannot be met: "
            f"the best reachable value is {least.value:.6g}",
            best=least.value,
        )
    policy = _read_policy(problem, optimum.shares)
    evaluation = evaluate_queue_policy(problem, policy)
    require_settling(evaluation)
    shares = optimum.shares.ravel()
    _require_agreement(float(privacy @ shares), evaluation.privacy_cost)
    _require_agreement(float(learning @ shares), evaluation.learning_cost)
    return QueueSolution(
        problem,
        "lp",
        policy,
        evaluation,
        multiplier=max(optimum.multiplier, 0.0),
        mixing=_find_mixing(policy.table),
        lower_bound=optimum.value,
        iterations=0,
    )


def _stack_costs(problem: QueueProblem) -> tuple[FloatArray, FloatArray]:
    """Return the costs of x(s, u) as vectors: all states obfuscating, then all learning."""
    learn_privacy = np.broadcast_to(problem.privacy_cost[:, None, None], problem.table_shape)
    privacy = np.concatenate([np.zeros(problem.num_states), learn_privacy.ravel()])
    learning = np.concatenate([round_learning_cost(problem, action).ravel() for action in Action])
    return privacy, learning


def build_transition_matrix(problem: QueueProblem, action: Action) -> Any:
    """Build the sparse transition matrix of equation (8) under one action.

    States are in the C order of [oracle][arrival][backlog].
    """
    from scipy import sparse

    num_oracle, num_arrivals, num_levels = problem.table_shape
    g = problem.oracle.success if action is Action.LEARN else np.zeros(num_oracle)
    ones, backlog = np.ones(num_levels), np.arange(num_levels)
    unserved, served = (
        [sparse.csr_array((ones, (backlog, later)), shape=2 * (num_levels,)) for later in after]
        for after in (next_backlog(problem, served=False), next_backlog(problem, served=True))
    )
    rows = []
    for o in range(num_oracle):
        for e in range(num_arrivals):
            move = (1.0 - g[o]) * unserved[e] + g[o] * served[e]
            rows.append(
                [
                    problem.oracle.transition[o, following] * arrival_prob * move
                    for following in range(num_oracle)
                    for arrival_prob in problem.arrival_probs
                ]
            )
    return sparse.csr_array(sparse.block_array(rows))


@dataclass(frozen=True, eq=False)
class _Optimum:
    """The result of HiGHS: the value, the shares x(u, s) and the multiplier of the limit."""

    value: float
    shares: FloatArray
    multiplier: float


def _minimise(
    problem: QueueProblem,
    objective: FloatArray,
    constrained: FloatArray,
    limit: float,
    form: tuple[bool, bool],
) -> _Optimum | None:
    """Return the optimum, or None if HiGHS has proven that the limit cannot be met.

    All forms of the programme have the same optimum; a form is an entry of `FORMS`.
    """
    from scipy import optimize, sparse

    scaled, presolve = form
    unit = np.ones(2 * problem.num_states)
    if scaled:
        unit /= 1.0 + np.maximum(objective, constrained)
    identity = sparse.eye_array(problem.num_states)
    balance = sparse.hstack(
        [identity - build_transition_matrix(problem, action).T for action in Action]
    )
    scaled_balance = balance @ sparse.diags_array(unit)
    upper = np.full((2, *problem.table_shape), np.inf)
    upper[Action.LEARN, :, :, 0] = 0.0
    outcome = optimize.linprog(
        objective * unit,
        A_ub=(constrained * unit)[None, :],
        b_ub=[limit],
        A_eq=sparse.vstack([scaled_balance, unit[None, :]], format="csr"),
        b_eq=np.append(np.zeros(problem.num_states), 1.0),
        bounds=np.column_stack([np.zeros(2 * problem.num_states), upper.ravel()]),
        method="highs-ds",
        options={
            "presolve": presolve,
            "time_limit": TIME_LIMIT,
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        },
    )
    if outcome.status == 1:
        raise SolverFailed(f"HiGHS found no solution in {TIME_LIMIT:.0f} s")
    if outcome.status == 2:
        return None
    if outcome.status != 0:
        raise SolverFailed(f"HiGHS failed, so there is no solution: {outcome.message}")
    multiplier, prices = -float(outcome.ineqlin.marginals[0]), outcome.eqlin.marginals[:-1]
    lowered, allowed = objective - balance.T @ prices, upper.ravel() > 0.0
    # Weak duality: each of these is a lower bound on the optimum.
    bound = max(
        float((lowered + trial * constrained)[allowed].min()) - trial * limit
        for trial in (max(multiplier, 0.0) + raised for raised in RAISED)
    )
    if outcome.fun - bound > UNPROVEN * max(abs(bound), multiplier * limit, 1.0):
        # HiGHS drops coefficients below 1e-9, which large costs scale others down to.
        raise SolverFailed(
            f"HiGHS claims an optimum of {outcome.fun:.9g} where its multipliers prove {bound:.9g}"
        )
    shares = (np.maximum(outcome.x, 0.0) * unit).reshape(2, *problem.table_shape)
    return _Optimum(float(outcome.fun), shares, multiplier)


def _read_policy(problem: QueueProblem, shares: FloatArray) -> QueueTable:
    """Return the policy: shares give it in visited states, and the others are led to them."""
    mass = shares.sum(axis=0)
    visited = mass > VISIBLE
    learn_prob = np.divide(shares[Action.LEARN], mass, out=np.zeros_like(mass), where=visited)
    learn_prob = np.where(shares[Action.LEARN] < VISIBLE, 0.0, learn_prob)
    learn_prob = np.where(shares[Action.OBFUSCATE] < VISIBLE, 1.0, learn_prob)
    steered = lead_into(problem, learn_prob > 0.5, visited.any(axis=1).T)
    table = np.where(visited, learn_prob, steered)
    table[:, :, 0] = 0.0
    return QueueTable(table)


def _find_mixing(table: FloatArray) -> Mixing | None:
    mixed = np.argwhere((table > 0.0) & (table < 1.0))
    if not len(mixed):
        return None
    o, e, y = (int(index) for index in mixed[0])
    return Mixing(o, e, y, float(table[o, e, y]))


def _require_agreement(claimed: float, evaluated: float) -> None:
    if abs(claimed - evaluated) > AGREEMENT * max(abs(claimed), abs(evaluated), 1.0):
        raise SplitChain(
            f"the linear program claims an average of {claimed:.9g}, but its policy has "
            f"{evaluated:.9g}: it mixes ways of running the queue that rarely meet, and its "
            "average belongs to no start state"
        )
