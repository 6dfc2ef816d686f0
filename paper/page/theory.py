"""The section of the page about the theorems and lemmas of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper.page.markdown import StoredResult, format_mean, table

STATEMENTS = {
    "threshold_in_backlog": "Theorem 2: learns at every backlog above a threshold",
    "threshold_rises_with_rounds_left": "D5: the threshold does not decrease with the rounds left",
    "value_falls_with_rounds_left": "Lemma 2: the value does not increase with the rounds left",
    "value_falls_with_oracle": "Lemma 2: the value does not increase with the oracle state",
    "value_rises_with_backlog": "Lemma 2: the value does not decrease with the backlog",
    "threshold_falls_with_oracle": "by no theorem: the threshold decreases with the oracle state",
}


def render_theory(result: StoredResult) -> str:
    """Render the measured theorems and lemmas."""
    parts = (
        _render_updates(result["theorem-1"]),
        _render_structure(result["theorem-2"]),
        _render_mixture(result["theorem-3"]),
        _render_stability(result["lemma-1"]),
    )
    return "\n".join(parts)


def _render_updates(found: Mapping[str, Any]) -> str:
    rows = [
        [
            "1/m" if row["steps"] == "decreasing" else "constant",
            f"{row['updates']:,}",
            format_mean(row["measured"]),
            f"{row['largest']:.3f}",
            f"{row['bound']:.3f}",
        ]
        for row in found["rows"]
    ]
    goals = [
        [
            f"{goal['goal']:g}",
            f"{goal['decreasing_bound']:,.4g}",
            _format_count(goal["decreasing_measured"]),
            f"{goal['constant_bound']:,}",
            _format_count(goal["constant_measured"]),
        ]
        for goal in found["goals"]
    ]
    broken = sum(row["measured"]["mean"] > row["bound"] for row in found["rows"])
    return (
        "**Theorem 1.** Squared gradient norm of the randomised estimate on the function task, "
        f"{found['runs']} runs, D = {found['gap']:g}, L s² = {found['smoothness_noise']:g}; the "
        "bound is that of the proof with the initial gap kept (deviation D10).\n\n"
        + table(["steps", "updates", "measured", "largest run", "bound"], rows, "lrrrr")
        + "\nUpdates that suffice with steps 1/m (formula F1) and with a constant step (F2), and "
        "the smallest measured number that did:\n\n"
        + table(["goal", "steps 1/m", "measured", "constant step", "measured"], goals, "rrrrr")
        + f"\nThe bound is exceeded in {broken} of {len(rows)} cases. It is far from tight: the "
        "function's gradient is bounded, which the bound does not use. By the bound, steps 1/m "
        "need exponentially many updates and a constant step does not.\n"
    )


def _format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _render_structure(found: Mapping[str, Any]) -> str:
    rows = [
        [text, f"{found['convex'][name]:,}", f"{found['not_convex'][name]:,}"]
        for name, text in STATEMENTS.items()
    ]
    return (
        f"**Theorem 2 and Lemma 2.** Number of models in which each statement holds, out of "
        f"{found['models']:,} random ones that satisfy the assumptions M1, M2, M3 and M5, and as "
        "many without convexity (M3):\n\n"
        + table(["statement", "with M3", "without M3"], rows, "lrr")
    )


def _render_mixture(found: Mapping[str, Any]) -> str:
    reference = found["reference"]
    return (
        f"**Theorem 3.** The optimum of (9) on {found['queues']:,} random queues randomises in at "
        f"most {found['most_states_mixed']} state. Mixed with the printed weight alpha, "
        f"{found['printed_over_limit']} of {found['mixing']} exceed the limit and the others leave "
        f"part of it unused (largest miss {100 * found['printed_largest_miss']:.1f}%); with the "
        "corrected probability all meet it to within "
        f"{found['corrected_largest_miss']:.0e}. On the reference queue (D17) alpha is "
        f"{reference['alpha']:.3f} and the probability {reference['p']:.3f} (D8); alpha misses the "
        f"limit by {100 * reference['printed_miss']:+.2f}%.\n"
    )


def _render_stability(found: Mapping[str, Any]) -> str:
    printed = found["printed"]
    loads = [
        [*_describe_growth(row, "load", "stable"), f"{row['drift']:.4f}"] for row in found["loads"]
    ]
    limits = [_describe_growth(row, "limit", "always_stable") for row in found["limits"]]
    half = found["rounds"] // 2
    ends = [f"backlog after {half:,} rounds", f"after {2 * half:,}", "growth per round"]
    return (
        f"**Lemma 1.** The printed condition reads {printed['left']:g} < {printed['right']:g} on "
        f"the paper's own queue and fails, although {printed['load']:g} updates arrive per round "
        f"and {printed['capacity']:g} can be made: the queue can be kept stable with "
        f"{printed['least_exposure']:.1%} learning queries or more (F6, D9). Simulated queues with "
        "loads on both sides of the stability condition F6, always learning, mean over "
        f"{found['runs']} runs:\n\n"
        + table(["load / capacity", "load", "stable by F6", *ends, "drift by F6"], loads, "rrlrrrr")
        + "\nLimits on both sides of the condition F7, under which every policy is stable: "
        "policies that learn as rarely as the limit allows and obfuscate in the best states first, "
        "with a load of half the capacity:\n\n"
        + table(["limit / largest by F7", "limit", "stable by F7", *ends], limits, "rrlrrr")
    )


def _describe_growth(row: Mapping[str, Any], varied: str, stable: str) -> list[str]:
    return [
        f"{row['share']:.0%}",
        f"{row[varied]:.4f}",
        "yes" if row[stable] else "no",
        f"{row['backlog_half']:.1f}",
        f"{row['backlog_end']:.1f}",
        format_mean(row["growth"], 4),
    ]


def render_partial(result: StoredResult) -> str:
    """Render what it costs to read the oracle state with errors, in a horizon and in a queue."""
    settings = result["settings"]
    horizon = [
        [
            f"{row['error']:.0%}",
            f"{row['cost']:.2f}",
            format_mean(row["simulated"], 2),
            f"{row['price']:+.1%}",
            f"{row['finish_prob']:.1%}",
            f"{row['exposure']:.1%}",
        ]
        for row in result["horizon"]
    ]
    queue = [
        [
            f"{row['error']:.0%}",
            f"{row['learning_cost']:.3f}",
            f"{row['privacy_cost']:.4f}",
            format_mean(row["simulated_privacy"], 4),
            f"{row['optimum']:.4f}",
            f"{row['price']:+.1%}",
        ]
        for row in result["queue"]
    ]
    return (
        "The policy is optimal for a known oracle state and acts on readings, of which the given "
        "share is wrong, each other state being equally likely. Costs are exact; simulations with "
        f"drawn readings beside them ({settings['runs']:,} horizons, {settings['queue_runs']} "
        "queues). The price is relative to the optimum of a known state. Main problem, reading "
        f"`{settings['reading']}`:\n\n"
        + table(
            ["wrong", "expected cost", "simulated", "price", "finished", "learning queries"],
            horizon,
            "rrrrrr",
        )
        + "\nQueue of the sound reading with arrival probability "
        f"{settings['arrival_prob']:g} and limit {settings['limit']:g}; the optimum is that with "
        "the same learning cost:\n\n"
        + table(
            ["wrong", "learning cost", "privacy cost", "simulated", "optimum", "price"],
            queue,
            "rrrrrr",
        )
    )
