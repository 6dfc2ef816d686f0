"""Pictures of policies and plans.

Colours are from Okabe and Ito's palette and from cividis, both safe for colour-blind readers; lines
also differ in marker or dash.  Everything is drawn with the object interface of matplotlib, so no
display is needed and no global state is touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.errors import InvalidInput, Missing
from covertfl.files.atomic import write_atomically
from covertfl.planning.horizon import HorizonPlan, compute_completion_curve
from covertfl.planning.queue import QueuePlan
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")  # with seven colours 28 different lines
FORMATS = (".png", ".svg", ".pdf")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches; `Missing` where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Missing(
            "pictures need matplotlib: install the extra with pip install 'covertfl[report]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save a figure as PNG, SVG or PDF, whole or not at all."""
    import io

    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInput(f"{path}: a picture's name must end in {', '.join(FORMATS)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], dpi=150)
    write_atomically(path, buffer.getvalue())


def _state_name(state: int, num_states: int) -> str:
    quality = " (worst)" if state == 0 else " (best)" if state == num_states - 1 else ""
    return f"oracle state {state}{quality}"


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def tidy(axes: Any) -> None:
    """Take away what does not carry information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


# --- policies ---------------------------------------------------------------------------------


def plot_queue_policy(solution: QueueSolution) -> Figure:
    """Chance of learning by oracle state and backlog, above how often each backlog is seen."""
    figure = new_figure(8.0, 5.2)
    panels = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1, 1, 0.9]})
    last = _last_interesting_backlog(solution)
    num_oracle = solution.problem.oracle.num_states
    for arrival, axes in enumerate(panels[:2]):
        image = axes.imshow(
            solution.policy.table[:, arrival, : last + 1],
            aspect="auto",
            origin="lower",
            cmap="cividis",
            vmin=0.0,
            vmax=1.0,
            extent=(-0.5, last + 0.5, -0.5, num_oracle - 0.5),
            interpolation="nearest",
        )
        names = [
            _state_name(state, num_oracle).removeprefix("oracle state ")
            for state in range(num_oracle)
        ]
        axes.set_yticks(range(num_oracle), names)
        axes.set_ylabel("oracle state")
        for edge in range(1, num_oracle):
            axes.axhline(edge - 0.5, color="white", linewidth=1.5)
        happened = "new updates arrive" if arrival else "no arrival"
        axes.set_title(f"Chance of learning, {happened} in this round", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=list(panels[:2]), ticks=[0.0, 0.25, 0.5, 0.75, 1.0])
    bar.ax.set_yticklabels(["0 (obfuscate)", "0.25", "0.5", "0.75", "1 (learn)"])
    mass = solution.evaluation.mass.sum(axis=(0, 1))[: last + 1]
    panels[2].bar(np.arange(last + 1), 100.0 * mass, width=0.9, color=PALETTE[1])
    panels[2].set_xlabel("backlog (updates owed)")
    panels[2].set_ylabel("share of rounds (%)")
    panels[2].set_xlim(-0.5, last + 0.5)
    panels[2].xaxis.set_major_locator(_whole_numbers())
    tidy(panels[2])
    evaluation = solution.evaluation
    figure.suptitle(
        f"Optimal policy of the queue: privacy cost {evaluation.privacy_cost:.4g}, "
        f"learning cost {evaluation.learning_cost:.4g}, "
        f"{evaluation.learn_fraction:.1%} learning queries",
        fontsize=11,
    )
    return figure


def _last_interesting_backlog(solution: QueueSolution) -> int:
    """A backlog that 95% of rounds stay below and by which the policy has taken its final form."""
    cumulative = np.cumsum(solution.evaluation.mass.sum(axis=(0, 1)))
    typical = int(np.searchsorted(cumulative, 0.95))
    within = solution.policy.table[:, :, : int(np.searchsorted(cumulative, 0.999)) + 1]
    changes = np.flatnonzero(np.any(np.diff(within, axis=2) != 0.0, axis=(0, 1)))
    last_change = int(changes[-1]) + 2 if len(changes) else 0
    return min(max(typical, last_change, 12), solution.problem.num_levels - 1)


def plot_horizon_policy(solution: HorizonSolution) -> Figure:
    """Thresholds chi_n(o) against rounds left (Theorem 2)."""
    problem = solution.problem
    if solution.thresholds is None:
        return _plot_horizon_table(solution)
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    rounds_left = np.arange(1, problem.rounds + 1)
    num_oracle = problem.oracle.num_states
    for state in range(num_oracle):
        axes.step(
            rounds_left,
            solution.thresholds[:, state],
            where="mid",
            marker="o" if problem.rounds == 1 else "",  # a single round is no line
            color=PALETTE[state % len(PALETTE)],
            linestyle=DASHES[state % len(DASHES)],
            linewidth=2.0,
            label=_state_name(state, num_oracle),
        )
    axes.axhline(problem.updates + 1, color="#888888", linewidth=0.8)
    axes.annotate(
        "never learns",
        (problem.rounds, problem.updates + 1),
        textcoords="offset points",
        xytext=(2, 4),
        ha="left",
        fontsize=8,
        color="#555555",
    )
    axes.set_xlabel("rounds left")
    axes.set_ylabel("learns from this backlog on (updates)")
    axes.set_ylim(0, problem.updates * 1.1 + 2)
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.set_xlim(problem.rounds + 0.5, 0.5)  # time runs to the right
    figure.legend(loc="outside lower center", ncols=min(num_oracle, 4), frameon=False)
    axes.set_title(
        f"Optimal thresholds, {problem.updates} updates in {problem.rounds} rounds",
        fontsize=11,
        loc="left",
    )
    tidy(axes)
    return figure


def _plot_horizon_table(solution: HorizonSolution) -> Figure:
    """Where the policy learns, for a policy that is no threshold policy."""
    problem = solution.problem
    num_oracle = problem.oracle.num_states
    figure = new_figure(8.0, 1.4 + 1.5 * num_oracle)
    panels = figure.subplots(num_oracle, 1, sharex=True, squeeze=False)[:, 0]
    for state, axes in enumerate(panels):
        axes.imshow(
            solution.learn[:, state].T,
            aspect="auto",
            origin="lower",
            cmap="cividis",
            vmin=0.0,
            vmax=1.0,
            extent=(0.5, problem.rounds + 0.5, -0.5, problem.updates + 0.5),
            interpolation="nearest",
        )
        axes.set_ylabel("backlog (updates)")
        axes.set_title(_state_name(state, num_oracle), fontsize=10, loc="left")
    panels[-1].set_xlim(problem.rounds + 0.5, 0.5)  # time runs to the right
    panels[-1].set_xlabel("rounds left")
    figure.suptitle("Learns in the light areas: not a threshold policy", fontsize=11)
    return figure


# --- plans ------------------------------------------------------------------------------------


def plot_completion(plan: HorizonPlan) -> Figure:
    """Largest chance to finish with learning a strict minority, by number of rounds (F5)."""
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots()
    probs = compute_completion_curve(plan)
    axes.plot(np.arange(len(probs)), 100.0 * probs, color=PALETTE[1], linewidth=2.0)
    for prob, rounds in plan.rounds_needed.items():
        if rounds is None:
            continue
        axes.plot(rounds, 100.0 * probs[rounds], "o", color=PALETTE[0])
        axes.annotate(
            f"{prob:.0%}: {rounds} rounds",
            (rounds, 100.0 * probs[rounds]),
            textcoords="offset points",
            xytext=(-8, 5),
            ha="right",
            fontsize=9,
        )
    here = plan.problem.rounds
    axes.axvline(here, color=PALETTE[0], linestyle="--", linewidth=1.2)
    axes.annotate(
        f"this problem: {here} rounds, {100.0 * probs[here]:.0f}%",
        (here, 3),
        textcoords="offset points",
        xytext=(6, 0),
        fontsize=9,
    )
    axes.set_xlabel("rounds")
    axes.set_ylabel("chance to finish covertly (%)")
    axes.set_ylim(0, 104)
    axes.set_xlim(0, len(probs) - 1)
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.set_title(
        f"{plan.problem.updates} updates with true queries a strict minority, best policy",
        fontsize=11,
        loc="left",
    )
    tidy(axes)
    return figure


def plot_frontier(plan: QueuePlan) -> Figure:
    """Optimal privacy cost and exposure against the limit (F9)."""
    if not plan.frontier:
        raise InvalidInput("the queue has no frontier to draw: it cannot be kept up with")
    figure = new_figure(8.0, 4.2)
    axes = figure.subplots(1, 2)
    limits = [point.limit for point in plan.frontier]
    costs = [point.privacy_cost for point in plan.frontier]
    if plan.problem.objective == "learning":
        costs = [point.learning_cost for point in plan.frontier]
    shares = [100.0 * point.learn_fraction for point in plan.frontier]
    name = plan.problem.limit_name.replace("_", " ")
    axes[0].plot(limits, costs, "o-", color=PALETTE[1], markersize=4)
    axes[0].set_ylabel(f"optimal average {plan.problem.objective} cost of a round")
    axes[1].plot(limits, shares, "o-", color=PALETTE[2], markersize=4, label="optimal policy")
    axes[1].set_ylabel("learning queries (% of rounds)")
    axes[1].axhline(50.0, color="#555555", linewidth=1.0, linestyle=":", label="one half")
    if plan.least_exposure is not None:
        axes[1].axhline(
            100.0 * plan.least_exposure,
            color=PALETTE[0],
            linestyle="--",
            linewidth=1.2,
            label="least that keeps up (F6)",
        )
    if plan.privacy_cost_bound is not None and plan.problem.objective == "privacy":
        axes[0].axhline(
            plan.privacy_cost_bound,
            color=PALETTE[0],
            linestyle="--",
            linewidth=1.2,
            label="lower bound of a queue that keeps up (F8)",
        )
    for panel in axes:
        panel.axvline(
            plan.problem.limit, color=PALETTE[3], linewidth=1.2, label="limit of this problem"
        )
        panel.set_xlabel(f"{name} (average of a round)")
        panel.set_ylim(bottom=0.0)
        panel.legend(frameon=False, fontsize=8)
        tidy(panel)
    figure.suptitle("What a looser limit buys", fontsize=11)
    return figure
