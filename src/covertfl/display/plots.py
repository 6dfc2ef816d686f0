"""Pictures of policies and of plans, and what all pictures share.

Colours are from Okabe and Ito's palette and from cividis, both safe for colour-blind readers; lines
also differ in marker or dash.  Everything is drawn through matplotlib's object interface, so no
display is needed and no global state is changed.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput, Missing
from covertfl.files.disk import write_atomically
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve
from covertfl.planning.queue import QueuePlan
from covertfl.planning.trajectories import accepted_by_rounds
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")  # with seven colours 28 different lines
MOST_ARRIVALS = 6  # panels of a policy's figure
SUFFIXES = (".png", ".svg", ".pdf")
# A legend beside the axes: inside, it would sooner or later cover a line.
BESIDE: Any = {"frameon": False, "fontsize": 8, "loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
HEAT_MAP = {
    "aspect": "auto",
    "origin": "lower",
    "cmap": "cividis",
    "vmin": 0.0,
    "vmax": 1.0,
    "interpolation": "nearest",
}
DASHED: dict[str, Any] = {"color": PALETTE[0], "linestyle": "--", "linewidth": 1.2}
MARKERS = ("o", "s", "^")  # of 90, 95 and 99%


def name_state(state: int, num_states: int) -> str:
    """Return the number of an oracle state, marked if it is the worst or the best."""
    return f"{state}" + (" (worst)" if state == 0 else " (best)" if state == num_states - 1 else "")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, its size in inches; raise Missing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing(
            "pictures need matplotlib: install the extra with pip install 'covertfl[report]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, SVG or PDF; raise InvalidInput if the name ends otherwise."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{path}: a picture's name must end in {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def tidy(axes: Any) -> None:
    """Hide the upper and right border and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def use_whole_numbers(axis: Any) -> None:
    """Place the ticks of an axis at integers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def annotate(
    axes: Any, text: str, place: tuple[float, float], offset: tuple[int, int], **style: Any
) -> None:
    """Write a text beside a place, the offset in points."""
    axes.annotate(text, place, textcoords="offset points", xytext=offset, **style)


def plot_queue_policy(solution: QueueSolution) -> Figure:
    """Plot the probability of learning by oracle state and backlog, and how often each occurs.

    Of many sizes of arrivals the most frequent are drawn.
    """
    shown = _choose_shown_arrivals(solution)
    figure = new_figure(8.0, 2.0 + 1.6 * len(shown))
    ratios = [1.0] * len(shown) + [0.9]
    panels = figure.subplots(len(ratios), 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    last = _find_last_shown_backlog(solution)
    for axes, arrival in zip(panels, shown, strict=False):
        image = _draw_queue_policy(axes, solution, arrival, last)
    bar = figure.colorbar(image, ax=list(panels[:-1]), ticks=[0.0, 0.25, 0.5, 0.75, 1.0])
    bar.ax.set_yticklabels(["0 (obfuscate)", "0.25", "0.5", "0.75", "1 (learn)"])
    _draw_backlogs(panels[-1], solution, last)
    evaluation = solution.evaluation
    figure.suptitle(
        f"Optimal policy of the queue: privacy cost {evaluation.privacy_cost:.4g}, "
        f"learning cost {evaluation.learning_cost:.4g}, "
        f"{evaluation.learn_fraction:.1%} learning queries",
        fontsize=11,
    )
    return figure


def _choose_shown_arrivals(solution: QueueSolution) -> list[int]:
    """Return no arrival and the most frequent sizes, as many as a figure has room for."""
    by_prob = 1 + np.argsort(-solution.problem.arrival_probs[1:], kind="stable")
    return [0, *sorted(by_prob[: MOST_ARRIVALS - 1].tolist())]


def _find_last_shown_backlog(solution: QueueSolution) -> int:
    """Return a backlog beyond 95% of rounds, from which on the policy does not change."""
    cumulative = np.cumsum(solution.evaluation.mass.sum(axis=(0, 1)))
    typical = int(np.searchsorted(cumulative, 0.95))
    within = solution.policy.table[:, :, : int(np.searchsorted(cumulative, 0.999)) + 1]
    changes = np.flatnonzero(np.any(np.diff(within, axis=2) != 0.0, axis=(0, 1)))
    last_change = int(changes[-1]) + 2 if len(changes) else 0
    return min(max(typical, last_change, 12), solution.problem.num_levels - 1)


def _draw_queue_policy(axes: Any, solution: QueueSolution, arrival: int, last: int) -> Any:
    num_oracle = solution.problem.oracle.num_states
    extent = (-0.5, last + 0.5, -0.5, num_oracle - 0.5)
    table = solution.policy.table[:, arrival, : last + 1]
    image = axes.imshow(table, extent=extent, **HEAT_MAP)
    states = range(num_oracle)
    axes.set_yticks(states, [name_state(state, num_oracle) for state in states])
    axes.set_ylabel("oracle state")
    for edge in range(1, num_oracle):
        axes.axhline(edge - 0.5, color="white", linewidth=1.5)
    support = solution.problem.arrival_support
    happened = "new updates arrive" if arrival else "no arrival"
    if arrival and len(support) > 2:
        happened = f"arrival of {support[arrival]}"
    axes.set_title(f"Probability of learning, {happened} in this round", fontsize=10, loc="left")
    return image


def _draw_backlogs(axes: Any, solution: QueueSolution, last: int) -> None:
    mass = solution.evaluation.mass.sum(axis=(0, 1))[: last + 1]
    axes.bar(np.arange(last + 1), 100.0 * mass, width=0.9, color=PALETTE[1])
    axes.set_xlabel("backlog (updates)")
    axes.set_ylabel("share of rounds (%)")
    axes.set_xlim(-0.5, last + 0.5)
    use_whole_numbers(axes.xaxis)
    tidy(axes)


def plot_horizon_policy(solution: HorizonSolution) -> Figure:
    """Plot the thresholds chi_n(o) against the rounds left (Theorem 2).

    A policy without thresholds is drawn as a heat map of where it learns.
    """
    if solution.thresholds is None:
        return _plot_horizon_table(solution)
    problem = solution.problem
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    num_oracle = problem.oracle.num_states
    for state in range(num_oracle):
        axes.step(
            np.arange(1, problem.rounds + 1),
            solution.thresholds[:, state],
            where="mid",
            marker="o" if problem.rounds == 1 else "",  # a single round is no line
            color=PALETTE[state % len(PALETTE)],
            linestyle=DASHES[state % len(DASHES)],
            linewidth=2.0,
            label=f"oracle state {name_state(state, num_oracle)}",
        )
    never = problem.updates + 1  # no backlog reaches this threshold
    axes.axhline(never, color="#888888", linewidth=0.8)
    place, style = (problem.rounds, never), {"ha": "left", "fontsize": 8, "color": "#555555"}
    annotate(axes, "never learns", place, (2, 4), **style)
    axes.set_xlabel("rounds left")
    axes.set_ylabel("learns from this backlog on (updates)")
    axes.set_ylim(0, problem.updates * 1.1 + 2)
    use_whole_numbers(axes.xaxis)
    use_whole_numbers(axes.yaxis)
    axes.set_xlim(problem.rounds + 0.5, 0.5)  # time runs to the right
    figure.legend(loc="outside lower center", ncols=min(num_oracle, 4), frameon=False)
    title = f"Optimal thresholds, {problem.updates} updates in {problem.rounds} rounds"
    axes.set_title(title, fontsize=11, loc="left")
    tidy(axes)
    return figure


def _plot_horizon_table(solution: HorizonSolution) -> Figure:
    """Plot where the policy learns, for a policy without thresholds."""
    problem = solution.problem
    num_oracle = problem.oracle.num_states
    figure = new_figure(8.0, 1.4 + 1.5 * num_oracle)
    panels = figure.subplots(num_oracle, 1, sharex=True, squeeze=False)[:, 0]
    extent = (0.5, problem.rounds + 0.5, -0.5, problem.updates + 0.5)
    for state, axes in enumerate(panels):
        axes.imshow(solution.learn[:, state].T, extent=extent, **HEAT_MAP)
        axes.set_ylabel("backlog (updates)")
        axes.set_title(f"oracle state {name_state(state, num_oracle)}", fontsize=10, loc="left")
    panels[-1].set_xlim(problem.rounds + 0.5, 0.5)  # time runs to the right
    panels[-1].set_xlabel("rounds left")
    figure.suptitle("Learns in the light areas: not a threshold policy", fontsize=11)
    return figure


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
