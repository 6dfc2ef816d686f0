"""Updates needed for a given accuracy.

The goal is E|grad f|^2 <= epsilon, equation (3), for the randomised estimate that is iterate i with
probability mu_i / sum(mu), mu the step sizes (Theorem 1 and the remark after it).  Theorem 1 states
the order only; here the gap to the optimum is kept and the constants are explicit (deviation D10).
The formulas are F1 and F2 of docs/paper_map.md.

=================  ==================  ========================================================
name               symbol              meaning
=================  ==================  ========================================================
`gap`              D = f(x_1) - f*     distance of the first value from the optimum, at least 0
`smoothness_noise` L s^2               Lipschitz constant times the noise bound, at least 0
`epsilon`          eps                 the goal, positive
=================  ==================  ========================================================
"""

from __future__ import annotations

import math

from covertfl.decision.arguments import require_number
from covertfl.errors import NoSolution

ROUNDING = 1e-12  # relative, so that a bound that is an integer up to rounding is not rounded up


def bound_decreasing_step(gap: float, smoothness_noise: float, epsilon: float) -> float:
    """Return the number of updates with steps 1/m that meets the goal, as a real number.

    Formula F1, from Theorem 1: sum of mu_m >= log(M + 1) and sum of mu_m^2 <= pi^2 / 6 imply
    M >= exp((D + pi^2 L s^2 / 12) / eps) - 1.  Raise NoSolution if that exceeds 1e308.
    """
    _check(gap, smoothness_noise, epsilon)
    exponent = (gap + math.pi**2 * smoothness_noise / 12.0) / epsilon
    try:
        return math.expm1(exponent)
    except OverflowError:
        raise NoSolution(
            f"with steps 1/m the goal epsilon = {epsilon:g} needs e^{exponent:.0f} updates"
        ) from None


def bound_constant_step(gap: float, smoothness_noise: float, epsilon: float) -> float:
    """Return the number of updates with the best constant step that meets the goal.

    Formula F2, from Theorem 1, a real number: the step sqrt(2 D / (L s^2 M)) implies
    M >= 2 D L s^2 / eps^2.
    """
    _check(gap, smoothness_noise, epsilon)
    return 2.0 * (gap / epsilon) * (smoothness_noise / epsilon)


def bound_updates(
    gap: float, smoothness_noise: float, epsilon: float
) -> tuple[float | None, float | None]:
    """Return the updates needed with steps 1/m and with a constant step, None above 1e308."""
    constant = bound_constant_step(gap, smoothness_noise, epsilon)
    try:
        decreasing = bound_decreasing_step(gap, smoothness_noise, epsilon)
    except NoSolution:
        return None, constant if math.isfinite(constant) else None
    return decreasing, constant


def updates_needed_decreasing_step(gap: float, smoothness_noise: float, epsilon: float) -> int:
    """Return the smallest number of updates that meets the goal with steps 1/m (formula F1)."""
    return _round_up(bound_decreasing_step(gap, smoothness_noise, epsilon))


def updates_needed_constant_step(gap: float, smoothness_noise: float, epsilon: float) -> int:
    """Return the smallest number of updates that meets the goal with a constant step (F2)."""
    return _round_up(bound_constant_step(gap, smoothness_noise, epsilon))


def _check(gap: float, smoothness_noise: float, epsilon: float) -> None:
    require_number(gap, "gap")
    require_number(smoothness_noise, "smoothness_noise")
    require_number(epsilon, "epsilon", above=True)


def _round_up(bound: float) -> int:
    return math.ceil(bound * (1.0 - ROUNDING))
