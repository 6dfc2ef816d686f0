"""Pictures of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.display.plots import (
    BESIDE,
    PALETTE,
    new_figure,
    plot_horizon_policy,
    tidy,
    use_whole_numbers,
)
from covertfl.errors import InvalidInput
from covertfl.planning.exchangeable import accepted_by_rounds
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve
from covertfl.planning.queue import QueuePlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHED: dict[str, Any] = {"color": PALETTE[0], "linestyle": "--", "linewidth": 1.2}
MARKERS = ("o", "s", "^")  # of 90, 95 and 99%


def plot_plan(plan: HorizonPlan | QueuePlan) -> dict[str, Figure]:
    """Plot everything there is to see of a plan; return the figures by file name.

    A queue without a frontier has no picture.
    """
    if isinstance(plan, HorizonPlan):
        return {
            "completion.png": plot_completion(plan),
            "thresholds.png": plot_horizon_policy(plan.solution),
            "exchangeable.png": plot_exchangeable(plan),
        }
    return {"frontier.png": plot_frontier(plan)} if plan.frontier else {}


def plot_completion(plan: HorizonPlan) -> Figure:
    """Plot the largest probability of finishing covertly against the rounds (formula F5)."""
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    percent = 100.0 * compute_completion_curve(plan)
    axes.plot(np.arange(len(percent)), percent, color=PALETTE[1], linewidth=2.0)
    for (prob, rounds), marker in zip(plan.rounds_needed.items(), MARKERS, strict=True):
        if rounds is not None:
            label = f"{prob:.0%}: {rounds} rounds"
            axes.plot(rounds, percent[rounds], marker, color=PALETTE[0], label=label)
    here = plan.problem.rounds
    words = f"this problem: {here} rounds, {percent[here]:.0f}%"
    axes.axvline(here, **DASHED, label=words)
    axes.set_xlabel("rounds")
    axes.set_ylabel("probability of finishing covertly (%)")
    axes.set_ylim(0, 103)
    axes.set_xlim(0, len(percent) - 1)
    use_whole_numbers(axes.xaxis)
    axes.legend(**BESIDE)
    title = f"{plan.problem.updates} updates with true queries a strict minority, best policy"
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes)
    return figure


def plot_exchangeable(plan: HorizonPlan) -> Figure:
    """Plot completion against the rounds with K exchangeable trajectories and with `minority`.

    The formulas are F12, for K = 1, 2, 4 and 8, and F5; dots mark 95%.
    """
    problem, prices = plan.problem, plan.exchangeable.prices
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    reached = [rounds for price in prices for rounds in price.rounds_needed.values()]
    last = max([problem.rounds, *(rounds for rounds in reached if rounds is not None)]) + 5
    for price, color in zip(prices, PALETTE[1:], strict=False):
        curve = accepted_by_rounds(problem.oracle, price.trajectories * problem.updates, last)
        name = f"K = {price.trajectories}{', no secrecy' * (price.trajectories == 1)}"
        _draw_completion(axes, curve, price.rounds_needed[0.95], name, color=color, linewidth=2.0)
    covert = compute_completion_curve(plan)[: last + 1]
    _draw_completion(axes, covert, plan.rounds_needed[0.95], "minority", **DASHED)
    here = f"this problem: {problem.rounds} rounds"
    axes.axvline(problem.rounds, color="#555555", linestyle=":", linewidth=1.2, label=here)
    axes.set_xlabel("rounds")
    axes.set_ylabel("probability of finishing (%)")
    axes.set_ylim(0, 103)
    axes.set_xlim(0, last)
    use_whole_numbers(axes.xaxis)
    axes.legend(**BESIDE)
    title = f"{problem.updates} updates with K exchangeable trajectories"
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes)
    return figure


def _draw_completion(
    axes: Any, curve: FloatArray, needed: int | None, name: str, **style: Any
) -> None:
    """Draw probabilities by rounds, marked where 95% is reached."""
    for_95 = "95% out of reach" if needed is None else f"{needed} rounds for 95%"
    axes.plot(100.0 * curve, label=f"{name}: {for_95}", **style)
    if needed is not None and needed < len(curve):
        axes.plot(needed, 100.0 * curve[needed], "o", color=style["color"])


def plot_frontier(plan: QueuePlan) -> Figure:
    """Plot the optimal cost and the exposure against the limit (formula F9)."""
    if not plan.frontier:
        raise InvalidInput("no frontier to draw: more updates arrive than can be done")
    figure = new_figure(8.0, 4.2)
    cost_axes, exposure_axes = figure.subplots(1, 2)
    _draw_costs(cost_axes, plan)
    _draw_exposure(exposure_axes, plan)
    name = plan.problem.limit_name.replace("_", " ")
    for axes in (cost_axes, exposure_axes):
        mark = {"color": PALETTE[3], "linewidth": 1.2, "label": "limit of this problem"}
        axes.axvline(plan.problem.limit, **mark)
        axes.set_xlabel(f"{name} (average per round)")
        axes.set_ylim(bottom=0.0)
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    figure.suptitle("Cost and exposure as the limit is loosened", fontsize=11)
    return figure


def _draw_costs(axes: Any, plan: QueuePlan) -> None:
    objective = plan.problem.objective
    limits = [point.limit for point in plan.frontier]
    costs = [getattr(point, f"{objective}_cost") for point in plan.frontier]
    axes.plot(limits, costs, "o-", color=PALETTE[1], markersize=4)
    axes.set_ylabel(f"optimal average {objective} cost per round")
    if plan.privacy_cost_bound is not None and objective == "privacy":
        axes.axhline(plan.privacy_cost_bound, **DASHED, label="lower bound for stable queues")


def _draw_exposure(axes: Any, plan: QueuePlan) -> None:
    limits = [point.limit for point in plan.frontier]
    percent = [100.0 * point.learn_fraction for point in plan.frontier]
    axes.plot(limits, percent, "o-", color=PALETTE[2], markersize=4, label="optimal policy")
    axes.set_ylabel("learning queries (% of rounds)")
    axes.axhline(50.0, color="#555555", linewidth=1.0, linestyle=":", label="one half")
    if plan.least_exposure is not None:
        axes.axhline(100.0 * plan.least_exposure, **DASHED, label="least of stable queues")
