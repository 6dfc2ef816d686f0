"""The section of the page that compares the tables of two readings of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covertfl.reproduction.figures import POLICY_NAMES
from covertfl.reproduction.markdown import table

Result = Mapping[str, Any]
COLUMNS = (
    "experiment",
    "policy",
    "rows",
    "learner, sound",
    "learner, paper-code",
    "eavesdropper, sound",
    "eavesdropper, paper-code",
)
TITLE = "With the published code's settings"
INTRODUCTION = (
    "The same tables in the reading `paper-code`: with the code's learning rate of 1e-4 instead of "
    "the text's 1e-3 (D24), rounds accepted with the printed probabilities (D19; table-states has "
    "these in every reading), and the code's transition matrices (D20; unchanged for "
    "table-states). A cell is ours minus the paper's: the mean over the rows that the paper has, "
    "and the range if there are several."
)
# A learner's accuracy this close to the paper's counts as the same.
CLOSE = 0.02


def find_differences(result: Result, policy: str, column: str) -> list[float]:
    """Return ours minus the paper's, in all rows of a policy that the paper has."""
    return [
        row[column]["mean"] - row["paper"][column]
        for row in result["rows"]
        if row["policy"] == policy and row["paper"] and row["paper"][column] is not None
    ]


def format_differences(differences: Sequence[float]) -> str:
    """Format the mean of differences, and the range of several."""
    if not differences:
        return ""
    mean = f"{sum(differences) / len(differences):+.3f}"
    if len(differences) == 1:
        return mean
    return f"{mean} ({min(differences):+.3f} to {max(differences):+.3f})"


def list_policies(result: Result) -> list[str]:
    """Return the policies for which the paper has numbers."""
    return list(dict.fromkeys(row["policy"] for row in result["rows"] if row["paper"]))


def render_readings(sound: Sequence[Result], code: Sequence[Result]) -> str:
    """Render the differences from the paper in both readings; empty if one is missing."""
    known = {result["experiment"]: result for result in sound}
    pairs = [
        (known[result["experiment"]], result) for result in code if result["experiment"] in known
    ]
    if not pairs:
        return ""
    rows = []
    for result, other in pairs:
        for policy in list_policies(result):
            cells = [
                format_differences(find_differences(each, policy, column))
                for column in ("learner", "eavesdropper")
                for each in (result, other)
            ]
            count = len(find_differences(result, policy, "learner"))
            rows.append([result["experiment"], POLICY_NAMES[policy], str(count), *cells])
    commands = ", ".join(f"`{other['made']['command']}`" for _, other in pairs)
    return (
        f"## {TITLE}\n\n{INTRODUCTION}\n\n{table(COLUMNS, rows, 'llrrrrr')}\n"
        f"{_conclude([other for _, other in pairs])}Made by {commands}; the files are in "
        "`results/paper-code/`.\n"
    )


def _conclude(results: Sequence[Result]) -> str:
    """Return which tables have the paper's learner with the code's settings, and which do not."""
    largest = {
        result["experiment"]: max(
            abs(difference)
            for policy in list_policies(result)
            for difference in find_differences(result, policy, "learner")
        )
        for result in results
    }
    same = [name for name, difference in largest.items() if difference <= CLOSE]
    other = [name for name, difference in largest.items() if difference > CLOSE]
    parts = []
    if same:
        parts.append(
            f"With these the learner of {' and '.join(same)} is within "
            f"{max(largest[name] for name in same):.3f} of the paper's. In table-states only the "
            "learning rate differs, so the paper's table was probably made with the code's rate. "
        )
    if other:
        parts.append(
            f"The learner of {', '.join(other)} is not, so something else must differ too. "
        )
    return "".join(parts)
