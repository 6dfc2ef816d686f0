"""Settings of the structured policy gradient: as printed in the paper, and as corrected.

`printed_settings` is Algorithm 1 as the paper has it (deviations D12 to D17 describe where it falls
short).  `default_settings` differs in

- the perturbation: +1 or -1 instead of 0 or 1, and the difference divided by twice its size (D13),
- common random numbers: both policies are tried on the same rounds with the same draws (D13),
- the backlog, which is carried over from one iteration to the next (D14),
- steps divided by a running root mean square of the gradient, with momentum (D17),
- long rollouts, a multiplier scaled by the problem's own costs, and an average of the iterates.

With a constant step (`tracking=True`) the search follows a system that changes.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np

from covertfl.decision.arguments import read_count
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.solvers.spga.experience import Experience
from covertfl.solvers.spga.rules import extract_rules, find_typical_threshold

# The history is kept in memory, one row for each iteration.
MAX_ITERATIONS = 10_000_000
# Upper bound of the thresholds, as a multiple of the typical threshold.
BOX = 3.0
# Backlog from which the paper starts every rollout (Appendix A); it is the length of its queue.
PRINTED_BACKLOG = 40
# Colder sigmoids are steps, and their odds overflow.
MIN_TEMPERATURE = 0.01


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the search runs; the defaults are those of the corrected algorithm.

    Parameters
    ----------
    iterations : K, number of parameter updates
    rollout : T, rounds over which a cost is averaged
    first_temperature, last_temperature : tau of equation (14), falling geometrically
    cooled_by : share of iterations after which the last temperature is reached
    perturbation, perturbation_decay : omega / n^decay, in units of backlog
    rademacher : perturb by +1 or -1; otherwise by 0 or 1 as printed
    divides : divide the difference by twice omega
    common_numbers : try both policies on the same rounds with the same draws
    carries_over : start from the backlog of the previous iteration, otherwise from `start_backlog`
    start_backlog : first backlog of every rollout if nothing is carried over
    step, step_decay : kappa / (1 + decay * share of iterations done)
    printed_step : kappa / n instead
    normalises : divide by a running root mean square of the gradient
    momentum, spread_memory : decay rates of the running mean and of the running mean square
    multiplier_step, penalty : kappa of the multiplier, rho of equation (15)
    printed_multiplier : the multiplier's update of (15), with its parenthesis corrected (D12)
    first_multiplier : xi_0
    smoothing : weight of the latest constrained cost in the average that the penalty uses
    largest_threshold : upper bound of theta; the lower bound is minus a tenth of it
    first_threshold : first value of theta
    averages_from : share of iterations after which iterates are averaged; 1 for the last iterate
    forgetting : least weight of the latest iterate in that average, 0 for a plain mean
    """

    iterations: int
    rollout: int
    first_temperature: float
    last_temperature: float = 0.3
    cooled_by: float = 0.5
    perturbation: float
    perturbation_decay: float = 0.1
    rademacher: bool = True
    divides: bool = True
    common_numbers: bool = True
    carries_over: bool = True
    start_backlog: int = 0
    step: float
    step_decay: float = 4.0
    printed_step: bool = False
    normalises: bool = True
    momentum: float = 0.9
    spread_memory: float = 0.99
    multiplier_step: float
    penalty: float
    printed_multiplier: bool = False
    first_multiplier: float
    smoothing: float = 0.05
    largest_threshold: float
    first_threshold: float
    averages_from: float = 0.5
    forgetting: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= MAX_ITERATIONS:
            raise InvalidInput(f"iterations must lie in 1..{MAX_ITERATIONS}, got {self.iterations}")
        read_count(self.rollout, "rollout")
        coldest = min(self.first_temperature, self.last_temperature)
        if not coldest >= MIN_TEMPERATURE:
            raise InvalidInput(f"temperatures must be at least {MIN_TEMPERATURE}, got {coldest}")

    @property
    def rounds_per_iteration(self) -> int:
        """Rounds of experience that one iteration uses."""
        return self.rollout if self.common_numbers else 3 * self.rollout

    def as_tuple(self) -> Any:
        """Return the settings as a named tuple, the form that compiled loops take."""
        return Schedule(*astuple(self))


Schedule: Any = namedtuple("Schedule", [field.name for field in fields(Settings)])  # type: ignore[misc]


def default_settings(
    problem: QueueProblem, *, iterations: int = 2000, rollout: int = 5000, tracking: bool = False
) -> Settings:
    """Return the corrected settings of Algorithm 1; docs/spga.md has the measurements behind them.

    Parameters
    ----------
    problem : its costs and limit set the scales; its probabilities are not read
    tracking : keep step and temperature constant, to follow a system that changes
    """
    scale = find_typical_threshold(problem)
    minimised = float(np.mean(problem.privacy_cost))
    if problem.objective == "learning":
        minimised = float(problem.learning_cost.at(np.array(int(scale / 4.0))))
        minimised *= float(problem.state_factors.mean())
    price = minimised / max(problem.limit, 1e-12)
    settings = Settings(
        iterations=iterations,
        rollout=rollout,
        first_temperature=max(scale / 20.0, 0.3),
        perturbation=max(scale / 20.0, 0.5),
        step=scale / 130.0,
        multiplier_step=0.02 * price / max(problem.limit, 1e-12),
        penalty=0.3 * price / max(problem.limit, 1e-12),
        first_multiplier=price,
        largest_threshold=BOX * scale,
        first_threshold=scale / 4.0,
    )
    if not tracking:
        return settings
    return replace(
        settings,
        first_temperature=0.3,
        perturbation_decay=0.0,
        step_decay=0.0,
        averages_from=0.0,
        forgetting=0.01,
    )


def settings_for_log(problem: Problem, recorded: Experience, *, iterations: int = 2000) -> Settings:
    """Return the default settings for recorded rounds that are replayed.

    Where more updates arrive in them than could be done, a queue that is carried over only grows,
    and far beyond all thresholds nothing can be learned about them: every rollout then starts from
    an empty queue.
    """
    if isinstance(problem, FiniteHorizon):
        return horizon_settings(problem, iterations=iterations)
    settings = default_settings(problem, iterations=iterations)
    if recorded.arrival.sum() < recorded.success.sum():
        return settings
    return replace(settings, carries_over=False, start_backlog=0)


def live_settings(problem: Problem, multiplier: float | None, *, iterations: int) -> Settings:
    """Return the settings of a search that continues an earlier one while a run goes on.

    Step and temperature stay as they are at the end of a search, so that it follows a change, and
    the later half of the iterates is averaged.  None as the multiplier stands for a first search,
    which starts from thresholds that learn whenever an update is owed.
    """
    if isinstance(problem, FiniteHorizon):
        return replace(horizon_settings(problem, iterations=iterations), first_threshold=0.0)
    settings = default_settings(problem, iterations=iterations, tracking=True)
    settings = replace(settings, averages_from=0.5, forgetting=0.0, first_threshold=0.0)
    return settings if multiplier is None else replace(settings, first_multiplier=multiplier)


def printed_settings(problem: QueueProblem, *, iterations: int = 4000) -> Settings:
    """Return Algorithm 1 as printed: step 0.5/n, rho = 20, xi_0 = 10, T = 100, start at backlog 40.

    The paper does not say where thresholds start or how large they may become.  Here they start at
    half of that backlog and stay below it, also where the queue is longer.
    """
    start = min(PRINTED_BACKLOG, extract_rules(problem).capacity)
    return Settings(
        iterations=iterations,
        rollout=100,
        first_temperature=1.0,
        last_temperature=1.0,
        cooled_by=1.0,
        perturbation=1.0,
        perturbation_decay=0.0,
        rademacher=False,
        divides=False,
        common_numbers=False,
        carries_over=False,
        start_backlog=start,
        step=0.5,
        step_decay=0.0,
        printed_step=True,
        normalises=False,
        momentum=0.0,
        spread_memory=0.0,
        multiplier_step=0.5,
        penalty=20.0,
        printed_multiplier=True,
        first_multiplier=10.0,
        smoothing=1.0,
        largest_threshold=float(start),
        first_threshold=start / 2.0,
        averages_from=1.0,
    )


def horizon_settings(problem: FiniteHorizon, *, iterations: int = 2000) -> Settings:
    """Return settings for a finite horizon: fifty episodes in a rollout, and no constraint."""
    scale = float(problem.updates)
    return Settings(
        iterations=iterations,
        rollout=50 * problem.rounds,
        first_temperature=max(scale / 20.0, 0.3),
        perturbation=max(scale / 20.0, 0.5),
        start_backlog=problem.updates,
        step=scale / 130.0,
        multiplier_step=0.0,
        penalty=0.0,
        first_multiplier=0.0,
        largest_threshold=1.2 * scale + 2.0,
        first_threshold=scale / 2.0,
    )
