"""The section of the page that sets the tables of two readings beside each other."""

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
    "The same tables in the reading `paper-code`: the code's learning rate of 1e-4 instead of the "
    "text's 1e-3 (D24); rounds accepted with the printed chances (D19), which table-states has in "
    "every reading; and the code's own transition matrices (D20), for table-states the same as "
    "before. Cells are ours less the paper's: the mean over the rows that the "
    "paper has, and the extremes where there are several."
)
# A learner's accuracy this close to the paper's is taken for the same.
CLOSE = 0.02


def find_differences(result: Result, policy: str, column: str) -> list[float]:
    """Ours less the paper's, in all rows of a policy that the paper has."""
    return [
        row[column]["mean"] - row["paper"][column]
        for row in result["rows"]
        if row["policy"] == policy and row["paper"] and row["paper"][column] is not None
    ]


def say_differences(differences: Sequence[float]) -> str:
    """Their mean, and the extremes of several."""
    if not differences:
        return ""
    mean = f"{sum(differences) / len(differences):+.3f}"
    if len(differences) == 1:
        return mean
    return f"{mean} ({min(differences):+.3f} to {max(differences):+.3f})"


def list_policies(result: Result) -> list[str]:
    """Policies that the paper has numbers of."""
    return list(dict.fromkeys(row["policy"] for row in result["rows"] if row["paper"]))


def render_readings(sound: Sequence[Result], code: Sequence[Result]) -> str:
    """Differences from the paper in both readings; nothing where one is missing."""
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
                say_differences(find_differences(each, policy, column))
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
    """Which tables have the paper's learner with the code's settings, and which have not."""
    worst = {
        result["experiment"]: max(
            abs(difference)
            for policy in list_policies(result)
            for difference in find_differences(result, policy, "learner")
        )
        for result in results
    }
    same = [name for name, difference in worst.items() if difference <= CLOSE]
    other = [name for name, difference in worst.items() if difference > CLOSE]
    parts = []
    if same:
        parts.append(
            f"The learner of {' and '.join(same)} is then within "
            f"{max(worst[name] for name in same):.3f} of the paper's. In table-states only the "
            "rate is another, so the paper's was probably made with the code's. "
        )
    if other:
        parts.append(f"In {', '.join(other)} it is not, so something else must differ too. ")
    return "".join(parts)
