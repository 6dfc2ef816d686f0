"""The section on the learner on MNIST under settings that the paper leaves open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper.page.markdown import (
    StoredResult,
    describe_seeds,
    format_difference,
    format_mean,
    format_printed,
    format_share,
    table,
)
from paper.page.tables import CLOSE, OURS, add_remark


def render_learners(result: StoredResult) -> str:
    """Render the learner's accuracy on MNIST by variant of the settings and policy."""
    rows = [
        [
            row["variant"],
            row["policy"],
            format_mean(row["learner"]),
            format_printed(row["paper"]["learner"]),
            format_difference(row["learner"], row["paper"]["learner"]),
            "" if row["policy"] == "optimal" else format_mean(row["gain"], 4),
            format_mean(row["exposure"], 2),
            format_share(row["completion"]),
        ]
        for row in result["rows"]
    ]
    columns = ("variant", "policy", "learner", *OURS, "gain of optimal", "exposure", "completion")
    settings = result["settings"]
    return (
        f"{settings['clients']} clients, N = {settings['rounds']}, M = {settings['updates']}, "
        f"{describe_seeds(result)}, model {settings['model']}, reading `{settings['reading']}`. A "
        "variant changes what it names in the settings of table-mnist-20; the paper's greedy value "
        "is the mean over its table. *Gain of optimal* is the learner's accuracy under the optimal "
        "policy minus that under the row's, paired by seed.\n\n"
        + table(columns, rows, "ll" + "r" * 6)
        + add_remark("", result, lambda: _explain_learners(result["rows"]))
    )


def _explain_learners(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the variants explain: the learners' levels, and how policies differ."""
    variants: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        variants.setdefault(row["variant"], {})[row["policy"]] = row
    parts = [_describe_levels(variants)]
    for policy in ("random", "greedy"):
        first = next(iter(variants.values()))
        printed = first["optimal"]["paper"]["learner"] - first[policy]["paper"]["learner"]
        gains = {name: found[policy]["gain"] for name, found in variants.items()}
        inside = [
            f"`{name}`" for name, gain in gains.items() if _includes(gain["interval"], printed)
        ]
        closest = min(gains, key=lambda name: abs(gains[name]["mean"] - printed))
        parts.append(
            f"The paper's optimal policy has a learner better by {printed:.3f} than the {policy} "
            f"policy's; ours is closest to that with `{closest}`, "
            f"{format_mean(gains[closest], 3)}, and the paper's value lies in "
            + (f"the interval of {' and '.join(inside)}." if inside else "none of the intervals.")
        )
    return " ".join(parts)


def _describe_levels(variants: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return which variant has all of the paper's learners, or how close the closest comes."""
    largest = {
        name: max(abs(row["learner"]["mean"] - row["paper"]["learner"]) for row in found.values())
        for name, found in variants.items()
    }
    closest = min(largest, key=lambda name: largest[name])
    if largest[closest] <= CLOSE:
        return f"With `{closest}` all learners are within {largest[closest]:.3f} of the paper's."
    return (
        "Fewer examples in a round, or the smaller learning rate, lower all learners together. No "
        f"variant has the paper's learners under all policies; `{closest}` comes closest, within "
        f"{largest[closest]:.3f}."
    )


def _includes(interval: Sequence[float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]
