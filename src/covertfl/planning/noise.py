"""The noise bound sigma weighed against the number of updates.

A looser bound makes each learning query likelier to be accepted, g(o) larger, and needs more
updates M for the same accuracy (formulas F1 and F2 of docs/paper_map.md with the noise sigma).  For
a horizon of N rounds each candidate has a probability of finishing its M updates covertly (formula
F5), and a smallest accuracy goal that it reaches with a given probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.noise import NoiseChoice
from covertfl.decision.oracle import compute_stationary_distribution, require_irreducible
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput, NoSolution
from covertfl.planning.updates import (
    reach_constant_step,
    reach_decreasing_step,
    updates_needed_constant_step,
    updates_needed_decreasing_step,
)
from covertfl.solvers.minority import completion_by_updates, minority_budget


@dataclass(frozen=True)
class NoiseLevel:
    """What one bound on the noise leads to, first oracle state stationary.

    Parameters
    ----------
    sigma : the bound
    success : by oracle state
    updates : M for the accuracy goal (formula F1 or F2), None above 1e308
    completion : largest probability of finishing them covertly in the rounds (formula F5)
    smallest_epsilon : smallest goal whose updates are finished with the wanted probability, None
        if not even one update is
    """

    sigma: float
    success: tuple[float, ...]
    updates: int | None
    completion: float
    smallest_epsilon: float | None


@dataclass(frozen=True)
class NoisePlan:
    """Bounds on the noise compared for one number of rounds.

    Parameters
    ----------
    rounds : N
    best_completion : the bound with the largest probability of finishing, None if none finishes
    best_epsilon : the bound with the smallest epsilon, None if there is none
    """

    choice: NoiseChoice
    rounds: int
    levels: tuple[NoiseLevel, ...]
    best_completion: NoiseLevel | None
    best_epsilon: NoiseLevel | None

    @property
    def advice(self) -> str:
        """One sentence on which bound to use."""
        best, goal = self.best_completion, f"epsilon = {self.choice.epsilon:g}"
        if best is None:
            return f"No bound on the noise reaches {goal} covertly in {self.rounds} rounds."
        return (
            f"sigma = {best.sigma:g} is best for {goal} in {self.rounds} rounds: {best.updates} "
            f"updates, finished with a probability of {best.completion:.1%}."
        )


def plan_noise(problem: FiniteHorizon, choice: NoiseChoice) -> NoisePlan:
    """Compare the candidates for the noise bound in a finite horizon.

    The problem's transition matrix and rounds are used; its success probabilities and updates are
    replaced by those of each candidate.

    Raises
    ------
    InvalidInput
        if the oracle is not irreducible, or the candidates are for another number of oracle states
    """
    require_irreducible(problem.oracle)
    states = problem.oracle.num_states
    if len(choice.success[0]) != states:
        raise InvalidInput(
            f"success must have {states} probabilities in each row, one for each oracle state, "
            f"got {len(choice.success[0])}"
        )
    levels = tuple(
        _judge_level(problem, choice, sigma, success)
        for sigma, success in zip(choice.levels, choice.success, strict=True)
    )
    finishing = [level for level in levels if level.completion > 0.0]
    reaching = [level for level in levels if level.smallest_epsilon is not None]
    return NoisePlan(
        choice,
        problem.rounds,
        levels,
        max(finishing, key=lambda level: level.completion, default=None),
        min(reaching, key=lambda level: level.smallest_epsilon or 0.0, default=None),
    )


def _judge_level(
    problem: FiniteHorizon, choice: NoiseChoice, sigma: float, success: tuple[float, ...]
) -> NoiseLevel:
    oracle = replace(problem.oracle, success=np.array(success))
    most = max(minority_budget(problem.rounds), 1)
    by_state = completion_by_updates(oracle, most, problem.rounds)
    probs = np.minimum(compute_stationary_distribution(oracle) @ by_state, 1.0)
    noise = choice.smoothness * sigma**2
    updates = _count_updates(choice, noise)
    is_possible = updates is not None and updates < len(probs)
    return NoiseLevel(
        sigma,
        success,
        updates,
        float(probs[updates]) if is_possible else 0.0,
        _reach(choice, noise, probs),
    )


def _count_updates(choice: NoiseChoice, noise: float) -> int | None:
    """Return the updates that the goal needs, at least one; `noise` is L sigma^2."""
    count = updates_needed_constant_step
    if choice.step == "decreasing":
        count = updates_needed_decreasing_step
    try:
        return max(count(choice.gap, noise, choice.epsilon), 1)
    except (NoSolution, OverflowError):
        return None


def _reach(choice: NoiseChoice, noise: float, probs: FloatArray) -> float | None:
    """Return the goal of the most updates that are finished with the wanted probability."""
    most = int(np.flatnonzero(probs >= choice.confidence)[-1])  # no updates are always finished
    if most == 0:
        return None
    reach = reach_decreasing_step if choice.step == "decreasing" else reach_constant_step
    return reach(choice.gap, noise, most)
