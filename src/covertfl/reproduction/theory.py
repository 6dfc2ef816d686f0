"""The sections of the page about searches, costs and theorems."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from covertfl.reproduction.markdown import say, table

Result = Mapping[str, Any]
STAR = (
    "\n(*) With this cost the exact policy has not the form (13): some state learns at a small "
    "backlog, waits at larger ones and learns again (D6). Given is the backlog from which it "
    "always learns.\n"
)


def render_spga(result: Result) -> str:
    """Figure 3."""
    rows = []
    for panel in result["panels"]:
        optimum, costs = panel["optimum"], panel["costs"]
        rows.append(
            [
                f"`{panel['problem']}`",
                panel["variant"],
                ", ".join(
                    f"{entry['mean']:.1f} ± {entry['deviation']:.1f}" for entry in panel["final"]
                ),
                _say_exact(optimum),
                _say_cost(costs["privacy_cost"]),
                f"{optimum['privacy_cost']:.4f}",
                _say_cost(costs["learning_cost"]),
                f"{optimum['limit']:g}",
                f"{costs['keep_limit']} of {costs['runs']}",
                str(costs["gave_up"]),
            ]
        )
    columns = [
        "queue",
        "Algorithm 1",
        "last thresholds by state (mean ± deviation)",
        "exact",
        "privacy cost",
        "exact",
        "learning cost",
        "limit",
        "runs that keep it",
        "gave up",
    ]
    return (
        f"{result['settings']['runs']} runs each. Thresholds are those with no arrival, theta_1 "
        "and theta_2 weighted by h; costs are exact averages of the policies found, without the "
        "runs that gave the queue up (learning cost over ten times the limit). A limit is kept "
        "where it is exceeded by at most 5%.\n\n"
        + table(columns, rows, "llllrrrrrr")
        + (STAR if any(" *" in row[3] for row in rows) else "")
        + "\n**Differences.** The paper prints no numbers: its thresholds come close to the exact "
        "ones, fall as the oracle improves, and the best state's is negative. It plots theta_2; "
        "here theta_1 and theta_2 are weighted, because that is where the policy turns. "
        + " ".join(map(_describe_panel, result["panels"]))
        + " As printed (D12 to D17) steps and perturbations do not fit the problem, and probably "
        "are not those that made the figure. Thresholds below 1 all mean always learning and stop "
        "anywhere below it.\n"
    )


def _describe_panel(panel: Mapping[str, Any]) -> str:
    """Whether thresholds fall as the oracle improves, and what became of the limit."""
    means = [entry["mean"] for entry in panel["final"]]
    falls = all(after <= before for before, after in itertools.pairwise(means))
    costs, optimum = panel["costs"], panel["optimum"]
    kept = f"{costs['keep_limit']} of {costs['runs']} runs keep the limit"
    if costs["privacy_cost"] is not None:
        excess = costs["privacy_cost"]["mean"] / optimum["privacy_cost"] - 1.0
        kept += f", and the privacy cost is {100 * excess:+.1f}% off the optimum's"
    order = "fall" if falls else "do not fall"
    return (
        f"On `{panel['problem']}`, {panel['variant']}, the mean thresholds {order} with the "
        f"oracle; {kept}."
    )


def _say_thresholds(entries: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{entry['mean']:.1f} ± {entry['deviation']:.1f}" for entry in entries)


def _say_exact(optimum: Mapping[str, Any]) -> str:
    """Exact thresholds; a star where the policy has not the form (13)."""
    star = "" if optimum["has_threshold_form"] else " *"
    found = optimum["thresholds"]
    return ", ".join("never" if backlog is None else str(backlog) for backlog in found) + star


def _say_cost(entry: Mapping[str, Any] | None) -> str:
    """A mean over runs with its interval, nothing where all gave up."""
    return "" if entry is None else say(entry, 4)


def render_tracking(result: Result) -> str:
    """The tracking figure."""
    rows = []
    for when, stage in zip(("before", "after"), result["stages"], strict=True):
        optimum, costs = stage["optimum"], stage["costs"]
        rows.append(
            [
                when,
                _say_thresholds(stage["thresholds"]),
                _say_exact(optimum),
                _say_cost(costs["privacy_cost"]),
                f"{optimum['privacy_cost']:.4f}",
                _say_cost(costs["learning_cost"]),
                f"{optimum['limit']:g}",
                f"{costs['keep_limit']} of {costs['runs']}",
            ]
        )
    columns = [
        "the change",
        "last thresholds by state",
        "exact",
        "privacy cost",
        "exact",
        "learning cost",
        "limit",
        "runs that keep it",
    ]
    return (
        f"{result['settings']['runs']} runs with a constant step; at iteration "
        f"{result['settings']['change_at']:,} the arrivals change from 10 updates with chance 0.03 "
        "to 4 with chance 0.1 (D21). Costs are exact averages of the policies at the change and at "
        "the end.\n\n"
        + table(columns, rows, "lllrrrrr")
        + STAR
        + "\n**Differences.** "
        + _describe_tracking(result["stages"])
    )


def _describe_tracking(stages: Sequence[Mapping[str, Any]]) -> str:
    """What moves with the change, and what does not."""
    worst = [stage["thresholds"][0]["mean"] for stage in stages]
    exact = [stage["optimum"]["thresholds"][0] for stage in stages]
    late = [stage["late_learning"] for stage in stages]
    moved = " and ".join(
        f"{say(stage['late_privacy'], 4)} {when} (exact {stage['optimum']['privacy_cost']:.4f})"
        for when, stage in zip(("before", "after"), stages, strict=True)
    )
    return (
        "The paper prints no numbers and says that the change shows most in the worst state's "
        f"threshold. Ours does not show it there: that threshold goes from {worst[0]:.1f} to "
        f"{worst[1]:.1f}, the exact one from {exact[0]} to {exact[1]}. Such backlogs are hardly "
        "ever reached, so next to nothing pulls it to its place, and the same holds for "
        "thresholds below 1. What follows the change are the costs: in the last 500 iterations "
        f"the simulated privacy cost is {moved}, the learning cost {say(late[0], 4)} and "
        f"{say(late[1], 4)} with the limit {stages[0]['optimum']['limit']:g} and "
        f"{stages[1]['optimum']['limit']:g}; the lower panel of the picture has them by "
        "iteration.\n"
    )


def render_cost(result: Result) -> str:
    """Figure 4."""
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
    columns = [
        "problem",
        "cost values",
        "optimal vertices",
        "jumps over 0.5 points",
        "largest jump, points",
        "learning queries, %",
        "distance of simulated and exact, points: mean (largest)",
    ]
    return (
        "Exact by the stationary law (queue) or the forward recursion (horizon), and simulated: "
        f"{settings['queue_runs']} runs of {settings['queue_rounds']:,} rounds for each value of "
        f"the queue, {settings['horizon_runs']:,} of {settings['horizon_rounds']} for each of the "
        f"horizon. The queue has room for {settings['capacity']} updates.\n\n"
        + table(columns, rows, "lrrrrrr")
        + "\n**Differences.** The paper's figure has no numbers; it describes a curve in pieces "
        "with jumps and explains them by vertices of the linear programme. That is what the price "
        "gives: the share of learning queries is constant on each vertex and jumps to the next. "
        "With a limit, as in (9), the optimum mixes two neighbouring vertices and there are no "
        "jumps.\n"
    )


STATEMENTS = {
    "threshold_in_backlog": "Theorem 2: learns from a threshold of the backlog on",
    "threshold_rises_with_rounds_left": "D5: the threshold does not fall with the rounds left",
    "value_falls_with_rounds_left": "Lemma 2: the value does not rise with the rounds left",
    "value_falls_with_oracle": "Lemma 2: the value does not rise with the oracle state",
    "value_rises_with_backlog": "Lemma 2: the value does not fall with the backlog",
    "threshold_falls_with_oracle": "promised by no theorem: the threshold falls with the oracle",
}


def render_theory(result: Result) -> str:
    """Theorems and lemmas."""
    return "\n".join(
        [
            _render_updates(result["theorem-1"]),
            _render_structure(result["theorem-2"]),
            _render_mixture(result["theorem-3"]),
            _render_stability(result["lemma-1"]),
        ]
    )


def _render_updates(found: Mapping[str, Any]) -> str:
    rows = [
        [
            "1/m" if row["steps"] == "decreasing" else "constant",
            f"{row['updates']:,}",
            say(row["measured"]),
            f"{row['largest']:.3f}",
            f"{row['bound']:.3f}",
        ]
        for row in found["rows"]
    ]
    goals = [
        [
            f"{goal['goal']:g}",
            f"{goal['decreasing_bound']:,.4g}",
            "" if goal["decreasing_measured"] is None else f"{goal['decreasing_measured']:,}",
            f"{goal['constant_bound']:,}",
            "" if goal["constant_measured"] is None else f"{goal['constant_measured']:,}",
        ]
        for goal in found["goals"]
    ]
    broken = sum(row["measured"]["mean"] > row["bound"] for row in found["rows"])
    return (
        "**Theorem 1.** Squared gradient norm of the randomised estimate on the function task, "
        f"{found['runs']} runs, D = {found['gap']:g}, L s² = {found['smoothness_noise']:g}; the "
        "bound is the one of the proof with the initial gap kept (D10).\n\n"
        + table(["steps", "updates", "measured", "largest run", "bound"], rows, "lrrrr")
        + "\nUpdates that suffice by F1 and F2, and the first measured number that did:\n\n"
        + table(["goal", "F1, steps 1/m", "measured", "F2, constant", "measured"], goals, "rrrrr")
        + f"\nThe bound is exceeded in {broken} of {len(rows)} cases. It is far from tight: the "
        "function's gradient is bounded, and the bound does not use that. Steps 1/m need "
        "exponentially many updates in the bound, a constant step does not.\n"
    )


def _render_structure(found: Mapping[str, Any]) -> str:
    rows = [
        [text, f"{found['convex'][name]:,}", f"{found['not_convex'][name]:,}"]
        for name, text in STATEMENTS.items()
    ]
    return (
        f"**Theorem 2 and Lemma 2.** {found['models']:,} random models that keep M1, M2, M3 and "
        "M5, and as many without convexity (M3), in how many each statement holds:\n\n"
        + table(["statement", "with M3", "without M3"], rows, "lrr")
    )


def _render_mixture(found: Mapping[str, Any]) -> str:
    reference = found["reference"]
    return (
        f"**Theorem 3.** The optimum of (9) on {found['queues']:,} random queues randomises in at "
        f"most {found['most_states_mixed']} state. Mixed with the printed weight alpha, "
        f"{found['printed_over_limit']} of {found['mixing']} exceed the limit and the others leave "
        f"part of it unused (largest miss {100 * found['printed_largest_miss']:.1f}%); with the "
        f"corrected chance all meet it to {found['corrected_largest_miss']:.0e}. On the reference "
        f"queue (D17) alpha is {reference['alpha']:.3f} and the chance {reference['p']:.3f} (D8); "
        f"alpha misses the limit by {100 * reference['printed_miss']:+.2f}%.\n"
    )


def _render_stability(found: Mapping[str, Any]) -> str:
    printed = found["printed"]
    loads = [
        [
            f"{row['share']:.0%}",
            f"{row['load']:.4f}",
            "yes" if row["stable"] else "no",
            f"{row['backlog_half']:.1f}",
            f"{row['backlog_end']:.1f}",
            say(row["growth"], 4),
            f"{row['drift']:.4f}",
        ]
        for row in found["loads"]
    ]
    limits = [
        [
            f"{row['share']:.0%}",
            f"{row['limit']:.4f}",
            "yes" if row["always_stable"] else "no",
            f"{row['backlog_half']:.1f}",
            f"{row['backlog_end']:.1f}",
            say(row["growth"], 4),
        ]
        for row in found["limits"]
    ]
    half = found["rounds"] // 2
    ends = [f"backlog after {half:,} rounds", f"after {2 * half:,}", "growth a round"]
    return (
        f"**Lemma 1.** The printed condition on the paper's own queue reads {printed['left']:g} < "
        f"{printed['right']:g} and fails, although {printed['load']:g} updates arrive in a round "
        f"and {printed['capacity']:g} can be done: it can be kept stable with "
        f"{printed['least_exposure']:.1%} learning queries or more (F6, D9). Simulated queues on "
        f"each side of F6's line, always learning, mean over {found['runs']} runs:\n\n"
        + table(["load / capacity", "load", "stable by F6", *ends, "drift by F6"], loads, "rrlrrrr")
        + "\nF7's line: the laziest policies within a limit, which obfuscate in the best states "
        "first, at half of the capacity as load:\n\n"
        + table(["limit / line", "limit", "stable by F7", *ends], limits, "rrlrrr")
    )
