"""The sections of the page about the policy gradient and the learning cost."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from paper.page.markdown import StoredResult, format_mean, format_percent, table

STAR = (
    "\n(*) With this cost the exact policy is not of the form (13): in some state it learns at a "
    "small backlog, waits at larger ones and learns again (D6). The number is the backlog from "
    "which on it always learns.\n"
)


COSTS = ("exact", "privacy cost", "exact", "gap", "learning cost", "limit", "runs that keep it")
GAP = (
    "The *gap* is the excess of the privacy cost over the exact optimum at the same learning cost, "
    "so that to use more of the limit is no advantage."
)


def render_spga(result: StoredResult) -> str:
    """Render Figure 4 of the paper, the convergence of Algorithm 1."""
    rows = [
        [
            f"`{panel['problem']}`",
            panel["variant"],
            _format_thresholds(panel["final"]),
            *_compare_costs(panel),
            str(panel["costs"]["gave_up"]),
        ]
        for panel in result["panels"]
    ]
    thresholds = "last thresholds by state (mean ± deviation)"
    columns = ["queue", "Algorithm 1", thresholds, *COSTS, "gave up"]
    return (
        f"{result['settings']['runs']} runs each. Thresholds are those without an arrival, theta_1 "
        "and theta_2 weighted by h; costs are exact averages of the policies found, without the "
        "runs that gave up on the queue (learning cost over ten times the limit). "
        + GAP
        + " A limit counts as kept if it is exceeded by at most 5%. As printed, every rollout "
        "starts at backlog 40 in the best oracle state, and thresholds start at 20; the paper "
        "does not state the latter.\n\n"
        + table(columns, rows, "llllrrrrrrr")
        + (STAR if any(" *" in row[3] for row in rows) else "")
        + "\n**Differences.** The paper prints no numbers: its thresholds come close to the exact "
        "ones and decrease as the oracle improves, and that of the best state is negative. It "
        "plots theta_2; here theta_1 and theta_2 are weighted, because that is where the policy "
        "changes its action. "
        + " ".join(map(_describe_panel, result["panels"]))
        + " The printed steps and perturbations (D12 to D17) do not suit the problem, and probably "
        "are not those behind the figure. All thresholds below 1 mean that the policy always "
        "learns, so the search may stop at any of them.\n"
    )


def _describe_panel(panel: Mapping[str, Any]) -> str:
    """Return whether thresholds decrease as the oracle improves, and whether the limit is kept."""
    means = [entry["mean"] for entry in panel["final"]]
    falls = all(after <= before for before, after in itertools.pairwise(means))
    costs = panel["costs"]
    kept = f"{costs['keep_limit']} of {costs['runs']} runs keep the limit"
    if costs["learning_cost"] is not None:
        ratio = costs["learning_cost"]["mean"] / panel["optimum"]["limit"] - 1.0
        kept += f", and the mean learning cost is {abs(ratio):.1%} "
        kept += "above it" if ratio > 0.0 else "below it"
    if costs["gap"] is not None:
        kept += f"; the gap is {costs['gap']['mean']:.1%}"
    order = "decrease" if falls else "do not decrease"
    return (
        f"On `{panel['problem']}`, {panel['variant']}, the mean thresholds {order} with "
        f"the oracle state; {kept}."
    )


def _format_thresholds(entries: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{entry['mean']:.1f} ± {entry['deviation']:.1f}" for entry in entries)


def _compare_costs(found: Mapping[str, Any]) -> list[str]:
    """Return the cells of the columns `COSTS`: exact thresholds, costs and the limit.

    Thresholds have a star if the policy is not of the form (13); costs are empty if all gave up.
    """
    optimum, costs = found["optimum"], found["costs"]
    privacy, learning = costs["privacy_cost"], costs["learning_cost"]
    exact = ["never" if backlog is None else str(backlog) for backlog in optimum["thresholds"]]
    return [
        ", ".join(exact) + ("" if optimum["has_threshold_form"] else " *"),
        "" if privacy is None else format_mean(privacy, 4),
        f"{optimum['privacy_cost']:.4f}",
        "" if costs["gap"] is None else format_percent(costs["gap"]),
        "" if learning is None else format_mean(learning, 4),
        f"{optimum['limit']:g}",
        f"{costs['keep_limit']} of {costs['runs']}",
    ]


def render_tracking(result: StoredResult) -> str:
    """Render the tracking figure of Appendix A."""
    rows = [
        [when, _format_thresholds(stage["thresholds"]), *_compare_costs(stage)]
        for when, stage in zip(("before", "after"), result["stages"], strict=True)
    ]
    columns = ["the change", "last thresholds by state", *COSTS]
    return (
        f"{result['settings']['runs']} runs with a constant step; at iteration "
        f"{result['settings']['change_at']:,} the arrivals change from 10 updates with "
        "probability 0.03 to 4 with probability 0.1 (D21). Costs are exact averages of the "
        "policies at the change and at the end. "
        + GAP
        + "\n\n"
        + table(columns, rows, "lllrrrrrr")
        + STAR
        + "\n**Differences.** "
        + _describe_tracking(result)
    )


def _describe_tracking(result: StoredResult) -> str:
    """Return what follows the change of the system, and what does not."""
    stages = result["stages"]
    worst = [stage["thresholds"][0]["mean"] for stage in stages]
    exact = [stage["optimum"]["thresholds"][0] for stage in stages]
    late = [stage["late_learning"] for stage in stages]
    privacy = [format_mean(stage["late_privacy"], 4) for stage in stages]
    optima = [f"{stage['optimum']['privacy_cost']:.4f}" for stage in stages]
    moved = f"{privacy[0]} before (exact {optima[0]}) and {privacy[1]} after (exact {optima[1]})"
    text = (
        "The paper prints no numbers and states that the change shows most in the threshold of the "
        f"worst oracle state. Ours goes from {worst[0]:.1f} to {worst[1]:.1f}, the exact one from "
        f"{exact[0]} to {exact[1]}. "
    )
    if result["made"]["reading"] == "paper-text":
        text += (
            "With the text's costs the optimum learns in the best oracle state while the queue is "
            "short, and waits there while it is long (D6); the form (14), which learns more the "
            "longer the queue is, cannot come near it, as the gap shows. "
        )
    else:
        text += (
            "It does not show the change: such backlogs are hardly ever reached, so that almost "
            "nothing drives the threshold to its optimum, and the same holds for thresholds below "
            "1. The reading `paper-code` has the same problems as `sound`. "
        )
    return (
        f"{text}The costs do follow the change: in the last {result['settings']['last']:,} "
        f"iterations the simulated privacy cost is {moved}, the learning cost "
        f"{format_mean(late[0], 4)} and {format_mean(late[1], 4)} with the limits "
        f"{stages[0]['optimum']['limit']:g} and {stages[1]['optimum']['limit']:g}; the lower panel "
        "of the figure shows them by iteration.\n"
    )


def render_cost(result: StoredResult) -> str:
    """Render Figure 5 of the paper, learning cost against learning queries."""
    names = {
        "price": "queue, learning cost as a price (10)",
        "limit": "queue, learning cost limited (9)",
        "horizon": "finite horizon, terminal cost as a price (7)",
    }
    rows = [
        [
            names[curve["curve"]],
            f"{len(curve['costs']):,}",
            str(curve.get("vertices", "")),
            str(curve["jumps"]),
            f"{100 * curve['largest_jump']:.1f}",
            f"{100 * min(curve['exact']):.1f} to {100 * max(curve['exact']):.1f}",
            f"{100 * curve['mean_error']:.2f} ({100 * curve['largest_error']:.2f})",
        ]
        for curve in result["curves"]
    ]
    settings = result["settings"]
    (limited,) = (curve for curve in result["curves"] if curve["curve"] == "limit")
    columns = [
        "problem",
        "cost values",
        "optimal vertices",
        "jumps over 0.5 points",
        "largest jump, points",
        "learning queries, %",
        "simulated against exact, points: mean (largest)",
    ]
    return (
        "Exact by the stationary distribution (queue) or the forward recursion (horizon), and "
        f"simulated: {settings['queue_runs']} runs of {settings['queue_rounds']:,} rounds for each "
        f"cost value of the queue, {settings['horizon_runs']:,} of {settings['horizon_rounds']} "
        f"for each of the horizon. The queue has room for {settings['capacity']} updates.\n\n"
        + table(columns, rows, "lrrrrrr")
        + "\n**Differences.** The paper's figure has no numbers; it describes a piecewise constant "
        "curve with jumps, explained by the vertices of the linear program. The cost as a price "
        "shows this: the share of learning queries is constant on each vertex and jumps to that of "
        "the next. With a limit, as in (9), the optimum mixes two neighbouring vertices, and its "
        f"share moves by at most {100 * limited['largest_jump']:.1f} points between neighbouring "
        "limits.\n"
    )
