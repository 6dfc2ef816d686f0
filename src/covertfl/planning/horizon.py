"""What a finite horizon allows: completion, rounds needed, and the best eavesdropper.

The formulas are those of docs/paper_map.md: the largest probability of finishing with learning
queries a strict minority (F5), the same with the uncertainty of a fitted oracle (F11), the learning
queries of the greedy policy (F10), and the success of the best eavesdropper that knows the policy
(F4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import require_irreducible
from covertfl.decision.problem import FiniteHorizon
from covertfl.decision.problem_file import Evidence
from covertfl.errors import NoSolution
from covertfl.evaluation.horizon import (
    HorizonEvaluation,
    evaluate_horizon_policy,
    mean_greedy_queries,
)
from covertfl.evaluation.schedule import ScheduleBound, bound_best_eavesdropper
from covertfl.fitting.oracle import sample_oracles
from covertfl.planning.trajectories import HorizonPrices, price_horizon
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.minority import completion_by_rounds, completion_probs, rounds_needed

COMPLETION_PROBS = (0.9, 0.95, 0.99)
BOUND_SAMPLES, MIN_BOUND_SAMPLES = 4000, 100
BOUND_WORK = 200_000_000  # array elements that the sampled bound may touch: a few seconds
MAX_ROUNDS = 3000  # longest horizon tried in the search for the rounds needed
POSTERIOR_SAMPLES = 200


@dataclass(frozen=True, eq=False)
class HorizonPlan:
    """What a finite horizon allows.

    Parameters
    ----------
    problem, solution : the problem and its optimal policy
    evaluation : costs and completion of the optimal policy, first oracle state stationary
    minority, prefix_minority : (W,) largest probability, by first oracle state, of finishing with
        learning queries a strict minority at the end, and after every round (formula F5)
    minority_interval : (W, 2) 95% interval of `minority` from the evidence (formula F11), or None
    rounds_needed : rounds for a probability of 90, 95 and 99% (formula F5), None if out of reach
    greedy_learning_queries : expected learning queries of the greedy policy (formula F10), None if
        it may never finish
    best_eavesdropper : success of the best eavesdropper that knows the optimal policy, first oracle
        state stationary (formula F4)
    exchangeable : rounds with exchangeable trajectories (formula F12)
    """

    problem: FiniteHorizon
    solution: HorizonSolution
    evaluation: HorizonEvaluation
    minority: FloatArray
    prefix_minority: FloatArray
    minority_interval: FloatArray | None
    rounds_needed: dict[float, int | None]
    greedy_learning_queries: float | None
    best_eavesdropper: ScheduleBound
    exchangeable: HorizonPrices

    @property
    def advice(self) -> str:
        """One sentence on whether the horizon is long enough."""
        problem = self.problem
        task = f"{problem.updates} updates in {problem.rounds} rounds"
        low, high = (round(100 * float(p)) for p in (self.minority.min(), self.minority.max()))
        best = f"{low}%" if low == high else f"{low} to {high}%"
        where = "" if low == high else ", depending on the first round"
        if low >= 95:
            return (
                f"{task} can be covert against an eavesdropper that counts queries: {best} chance "
                f"to finish at best{where}."
            )
        needed = self.rounds_needed[0.95]
        remedy = (
            "no number of rounds tried gives 95%" if needed is None else f"{needed} rounds give 95%"
        )
        if high == 0:
            return f"{task} cannot be covert: {remedy}."
        return f"{task} cannot be both covert and certain: {best} at best{where}; {remedy}."


def plan_horizon(
    problem: FiniteHorizon, *, generator: np.random.Generator, evidence: Evidence | None = None
) -> HorizonPlan:
    """Return what a finite horizon allows.

    Parameters
    ----------
    generator : for the sampled bound on eavesdroppers (F4) and the posterior of the oracle (F11)
    evidence : counts behind the oracle, if it was fitted

    Raises
    ------
    InvalidInput
        if the oracle is not irreducible: the first state is drawn from the stationary distribution
    """
    require_irreducible(problem.oracle)
    solution = solve_horizon(problem)
    policy = solution.policy
    needed = _find_rounds_needed(problem)
    return HorizonPlan(
        problem=problem,
        solution=solution,
        evaluation=evaluate_horizon_policy(problem, policy),
        minority=completion_probs(problem.oracle, problem.updates, problem.rounds),
        prefix_minority=completion_probs(
            problem.oracle, problem.updates, problem.rounds, every_prefix=True
        ),
        minority_interval=_compute_interval(problem, evidence, generator),
        rounds_needed=needed,
        greedy_learning_queries=_count_greedy_queries(problem),
        best_eavesdropper=bound_best_eavesdropper(
            problem, policy, num_samples=_choose_num_samples(problem), generator=generator
        ),
        exchangeable=price_horizon(problem, needed),
    )


def _find_rounds_needed(problem: FiniteHorizon) -> dict[float, int | None]:
    """Return the rounds needed for each of `COMPLETION_PROBS` (formula F5).

    The search goes well beyond the rounds that waiting for good oracle states takes.
    """
    horizon, updates = problem.rounds, problem.updates
    last = min(max(4 * horizon, 60 * updates), max(MAX_ROUNDS, horizon))
    # Even if every query succeeded, learning would not be a minority.
    if last <= 2 * updates:
        return dict.fromkeys(COMPLETION_PROBS)
    # By Markov's inequality n rounds bring M successes with probability n max g / M at most.
    most = last * float(problem.oracle.success.max()) / updates
    within = [prob for prob in COMPLETION_PROBS if 0.999 * prob <= most]
    found = rounds_needed(problem.oracle, updates, within, max_rounds=last)
    return dict.fromkeys(COMPLETION_PROBS) | found


def _count_greedy_queries(problem: FiniteHorizon) -> float | None:
    try:
        return mean_greedy_queries(problem.oracle, problem.updates)
    except NoSolution:
        return None


def _choose_num_samples(problem: FiniteHorizon) -> int:
    """Return fewer samples where each takes long; the bound's interval widens accordingly."""
    work = problem.rounds * problem.oracle.num_states * (problem.updates + 1)
    return max(MIN_BOUND_SAMPLES, min(BOUND_SAMPLES, BOUND_WORK // work))


def _compute_interval(
    problem: FiniteHorizon, evidence: Evidence | None, generator: np.random.Generator
) -> FloatArray | None:
    """Return the 95% interval of `minority` over the posterior of the oracle (formula F11)."""
    if evidence is None:
        return None
    counts = evidence.transition_counts, evidence.success_counts
    oracles = sample_oracles(*counts, POSTERIOR_SAMPLES, generator=generator)
    probs = [completion_probs(oracle, problem.updates, problem.rounds) for oracle in oracles]
    return np.quantile(np.array(probs), [0.025, 0.975], axis=0).T


def compute_completion_curve(plan: HorizonPlan) -> FloatArray:
    """Return the largest probability of finishing covertly for each number of rounds (formula F5).

    The array is (rounds + 1,), up to what 99% takes, the first oracle state stationary.
    """
    last = plan.rounds_needed[max(COMPLETION_PROBS)] or 4 * plan.problem.rounds
    rounds = max(plan.problem.rounds, last) + 5
    return completion_by_rounds(plan.problem.oracle, plan.problem.updates, rounds)
