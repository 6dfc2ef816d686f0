"""The page about all results, and their tables on the console.

A result is shown as tables, with the paper's values beside ours, and as facts that the text of the
page mentions; the text itself is in `page.md.j2`.  Everything is made from result files alone, so
the same files yield the same page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as ConsoleTable
from rich.text import Text

from covertfl.display.plots import save_figure
from covertfl.display.tables import make_table
from covertfl.errors import Missing
from covertfl.files.disk import write_atomically
from paper.pictures import PICTURES, POLICY_NAMES, describe_public
from paper.results import StoredResult, make_folder

TEMPLATE = "page.md.j2"
IMAGES, PREFIX = "images", "reproduction-"
# Operations per image in training the paper's network: six for each weight that it passes.
IMAGE_FLOP = 6 * (24 * 24 * 32 * 25 + 20 * 20 * 32 * 800 + 6 * 6 * 64 * 800 + 576 * 256 + 2560)
PEAKS = {"H200": 989.5e12, "H100": 989.5e12}  # dense products of 16-bit floats
CLOSE = 0.02  # a learner's accuracy this close to the paper's counts as the same
LOOKED_AT = ("learner", "eavesdropper")
# Results by reading, for the readings other than the sound one.
OtherResults = Mapping[str, Sequence[StoredResult]]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of formatted cells, bold where they have two stars on both sides.

    Parameters
    ----------
    sides : l or r for each column
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sides: str

    def __str__(self) -> str:
        """Return the table in Markdown."""
        rule = ["---:" if side == "r" else "---" for side in self.sides]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Shown:
    """The tables of a result by name, and what the text mentions of it."""

    tables: Mapping[str, Table]
    facts: Mapping[str, Any] = field(default_factory=dict)


# --- formats of numbers --------------------------------------------------------------------------


def format_mean(entry: Row, digits: int = 3) -> str:
    """Format a mean with its interval."""
    mean, interval = entry["mean"], entry["interval"]
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def format_share(entry: Row) -> str:
    """Format a share of runs in percent."""
    low, high = entry["interval"]
    return f"{100 * entry['mean']:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"


def format_difference(entry: Row, paper: float | None) -> str:
    """Format ours minus the paper's, bold where the paper's lies outside our interval."""
    if paper is None:
        return ""
    difference = f"{entry['mean'] - paper:+.3f}"
    interval = entry["interval"]
    inside = interval is not None and interval[0] - 0.005 <= paper <= interval[1] + 0.005
    return difference if inside else f"**{difference}**"


def format_percent(entry: Row) -> str:
    """Format a mean as a percentage with one decimal, and its interval if it has one."""
    values = [entry["mean"], *(entry["interval"] or ())]
    mean, *ends = (f"{100.0 * value:.1f}" for value in values)
    return f"{mean}% [{', '.join(ends)}]" if ends else f"{mean}%"


def format_printed(value: float | None) -> str:
    """Format a value that the paper prints, empty if it has none."""
    return "" if value is None else f"{value:.3f}"


def format_differences(differences: Sequence[float]) -> str:
    """Format the mean of differences, and the range of several."""
    if not differences:
        return ""
    mean = f"{sum(differences) / len(differences):+.3f}"
    if len(differences) == 1:
        return mean
    return f"{mean} ({min(differences):+.3f} to {max(differences):+.3f})"


def describe_seeds(result: StoredResult) -> str:
    """Return how many seeds a result has, and which."""
    seeds = (result.get("rows") or result["curves"])[0]["seeds"]
    first = result["made"].get("first_seed", 0)
    return f"{seeds} seeds ({first} to {first + seeds - 1})" if seeds > 1 else f"seed {first}"


# --- tables of accuracies ------------------------------------------------------------------------

OURS = ("paper", "ours - paper")
COMPARED = (
    *("eavesdropper", *OURS, "peak", "named", "exact", "learner", *OURS),
    *("exposure", "completion"),
)


def compare_rows(result: StoredResult, titles: Mapping[str, Callable[[Row], str]]) -> Table:
    """Return the table of a result's rows; `titles` make the first columns, by their names."""
    rows = [[*(make(row) for make in titles.values()), *compare_row(row)] for row in result["rows"]]
    return Table([*titles, *COMPARED], rows, "l" * len(titles) + "r" * len(COMPARED))


def compare_row(row: Row) -> list[str]:
    """Return the cells of a row of accuracies."""
    paper = row["paper"] or {"eavesdropper": None, "learner": None}
    return [
        format_mean(row["eavesdropper"]),
        format_printed(paper["eavesdropper"]),
        format_difference(row["eavesdropper"], paper["eavesdropper"]),
        format_mean(row["worst"]),
        format_share(row["named"]),
        f"{100.0 * row['expected']['named']:.1f}%",
        format_mean(row["learner"]),
        format_printed(paper["learner"]),
        format_difference(row["learner"], paper["learner"]),
        format_mean(row["exposure"], 2),
        format_share(row["completion"]),
    ]


def list_differences(rows: Mapping[str, Row]) -> str:
    """Return ours minus the paper's, by the name of a row, where the paper has a value."""
    parts = []
    for name, row in rows.items():
        cells = [
            f"{column} {row[column]['mean'] - row['paper'][column]:+.3f}"
            for column in ("eavesdropper", "learner")
            if row["paper"][column] is not None
        ]
        parts.append(f"{name}: {', '.join(cells)}")
    return "; ".join(parts) + "."


def find_differences(result: StoredResult, policy: str, column: str) -> list[float]:
    """Return ours minus the paper's, in all rows of a policy that the paper has."""
    return [
        row[column]["mean"] - row["paper"][column]
        for row in result["rows"]
        if row["policy"] == policy and row["paper"] and row["paper"][column] is not None
    ]


def show_main(result: StoredResult) -> Shown:
    """Show Table 1 of the paper, the main experiment."""
    titles: dict[str, Callable[[Row], str]] = {
        "scenario": lambda row: str(row["scenario"]),
        "policy": lambda row: POLICY_NAMES[row["policy"]],
        "decoy": lambda row: str(row["decoy"]),
    }
    columns = {
        "completion": "makes all updates",
        "exposure": "exposure",
        "minority": "learning queries a strict minority",
        "named": "true trajectory named",
    }
    probs = {row["policy"]: row["expected"] for row in result["rows"]}
    exact = [
        [POLICY_NAMES[policy], *(f"{found[column]:.3f}" for column in columns)]
        for policy, found in probs.items()
    ]
    printed = [row for row in result["rows"] if row["paper"]]
    named = {f"scenario {row['scenario']}, {row['policy']}": row for row in printed}
    tables = {
        "rows": compare_rows(result, titles),
        "exact": Table(["policy", *columns.values()], exact, "lrrrr"),
    }
    return Shown(tables, {"seeds": describe_seeds(result), "differences": list_differences(named)})


def show_accuracy(result: StoredResult) -> Shown:
    """Show Figure 3 of the paper, accuracies by round."""
    return Shown({}, {"seeds": describe_seeds(result)})


def show_mnist(result: StoredResult) -> Shown:
    """Show one of the two MNIST tables, Tables 3 and 4 of the paper."""
    titles: dict[str, Callable[[Row], str]] = {
        "public set": describe_public,
        "policy": lambda row: str(row["policy"]),
    }
    facts = {"seeds": describe_seeds(result), "differences": _describe_mnist(result)}
    if not result["made"]["quick"]:
        facts |= _explain_mnist(result)
    return Shown({"rows": compare_rows(result, titles)}, facts)


def _describe_mnist(result: StoredResult) -> str:
    """Return by how much a table differs from the paper's, by policy."""
    parts = []
    for policy in ("greedy", "optimal"):
        found = find_differences(result, policy, "eavesdropper")
        learner = find_differences(result, policy, "learner")
        parts.append(
            f"{policy}: eavesdropper {sum(found) / len(found):+.3f} on average "
            f"({min(found):+.3f} to {max(found):+.3f}), learner {sum(learner) / len(learner):+.3f}"
        )
    return "; ".join(parts) + "."


def _explain_mnist(result: StoredResult) -> dict[str, Any]:
    """Return what the rows share with the paper's, and where they differ."""
    from scipy.stats import spearmanr  # takes long to load

    rows = [row for row in result["rows"] if row["policy"] == "optimal"]
    printed = [row for row in rows if row["paper"]["eavesdropper"] is not None]

    def miss(row: Row) -> float:
        return float(row["eavesdropper"]["mean"] - row["paper"]["eavesdropper"])

    def list_means(chosen: Sequence[Row]) -> str:
        return ", ".join(f"{row['eavesdropper']['mean']:.3f}" for row in chosen)

    farthest = max(printed, key=lambda row: abs(miss(row)))
    rare = [row for row in rows if (row["classes"], row["class_share"]) == (2, 0.99)]
    even = [row for row in rows if row["class_share"] is None and row["size"] == 1.0]
    ranks = spearmanr(
        [row["eavesdropper"]["mean"] for row in printed],
        [row["paper"]["eavesdropper"] for row in printed],
    )
    return {
        "ranks": float(ranks.statistic),
        "miss": miss(farthest),
        "farthest": describe_public(farthest),
        "rare": list_means(rare),
        "printed_rare": ", ".join(
            format_printed(row["paper"]["eavesdropper"]) or "none" for row in rare
        ),
        "even": list_means(even),
    }


def show_pair(result: StoredResult) -> Shown:
    """Show a table of two policies, as Table 2 of the paper."""
    by_policy = {row["policy"]: row for row in result["rows"]}
    facts: dict[str, Any] = {"seeds": describe_seeds(result)}
    facts["differences"] = list_differences(by_policy)
    if "greedy" in by_policy:
        facts["named"] = by_policy["greedy"]["expected"]["named"]
    return Shown({"rows": compare_rows(result, {"policy": lambda row: str(row["policy"])})}, facts)


def show_learners(result: StoredResult) -> Shown:
    """Show the learner's accuracy on MNIST by variant of the settings and policy."""
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
    table = Table(columns, rows, "ll" + "r" * 6)
    return Shown({"rows": table}, {"seeds": describe_seeds(result), **_explain_learners(result)})


def _explain_learners(result: StoredResult) -> dict[str, Any]:
    """Return what the variants explain: the learners' levels, and how policies differ."""
    variants: dict[str, dict[str, Row]] = {}
    for row in result["rows"]:
        variants.setdefault(row["variant"], {})[row["policy"]] = row
    largest = {
        name: max(abs(row["learner"]["mean"] - row["paper"]["learner"]) for row in found.values())
        for name, found in variants.items()
    }
    closest = min(largest, key=lambda name: largest[name])
    gains = [_compare_gains(variants, policy) for policy in ("random", "greedy")]
    level, is_close = largest[closest], largest[closest] <= CLOSE
    return {"closest": closest, "largest": level, "is_close": is_close, "gains": gains}


def _compare_gains(variants: Mapping[str, Mapping[str, Row]], policy: str) -> dict[str, Any]:
    """Return by how much the optimal policy's learner is better, the paper's and ours."""
    first = next(iter(variants.values()))
    printed = first["optimal"]["paper"]["learner"] - first[policy]["paper"]["learner"]
    gains = {name: found[policy]["gain"] for name, found in variants.items()}
    closest = min(gains, key=lambda name: abs(gains[name]["mean"] - printed))
    inside = [
        f"`{name}`"
        for name, gain in gains.items()
        if gain["interval"] is not None and gain["interval"][0] <= printed <= gain["interval"][1]
    ]
    ours = format_mean(gains[closest], 3)
    found = {"policy": policy, "printed": printed, "closest": closest, "ours": ours}
    return {**found, "inside": " and ".join(inside)}


# --- the policy gradient and the learning cost ---------------------------------------------------

COSTS = ("exact", "privacy cost", "exact", "gap", "learning cost", "limit", "runs that keep it")


def show_spga(result: StoredResult) -> Shown:
    """Show Figure 4 of the paper, the convergence of Algorithm 1."""
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
    has_star = any(" *" in row[3] for row in rows)
    panels = list(map(_describe_panel, result["panels"]))
    table = Table(columns, rows, "llllrrrrrrr")
    return Shown({"rows": table}, {"has_star": has_star, "panels": panels})


def _describe_panel(panel: Row) -> dict[str, Any]:
    """Return whether thresholds decrease as the oracle improves, and whether the limit is kept."""
    means = [entry["mean"] for entry in panel["final"]]
    costs, ratio = panel["costs"], None
    if costs["learning_cost"] is not None:
        ratio = costs["learning_cost"]["mean"] / panel["optimum"]["limit"] - 1.0
    return {
        "problem": panel["problem"],
        "variant": panel["variant"],
        "falls": all(after <= before for before, after in itertools.pairwise(means)),
        "keep_limit": costs["keep_limit"],
        "runs": costs["runs"],
        "ratio": ratio,
        "gap": None if costs["gap"] is None else costs["gap"]["mean"],
    }


def _format_thresholds(entries: Sequence[Mapping[str, float]]) -> str:
    return ", ".join(f"{entry['mean']:.1f} ± {entry['deviation']:.1f}" for entry in entries)


def _compare_costs(found: Row) -> list[str]:
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


def show_tracking(result: StoredResult) -> Shown:
    """Show the tracking figure of Appendix A."""
    rows = [
        [when, _format_thresholds(stage["thresholds"]), *_compare_costs(stage)]
        for when, stage in zip(("before", "after"), result["stages"], strict=True)
    ]
    columns = ["the change", "last thresholds by state", *COSTS]
    return Shown({"rows": Table(columns, rows, "lllrrrrrr")})


def show_cost(result: StoredResult) -> Shown:
    """Show Figure 5 of the paper, learning cost against learning queries."""
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
    columns = [
        "problem",
        "cost values",
        "optimal vertices",
        "jumps over 0.5 points",
        "largest jump, points",
        "learning queries, %",
        "simulated against exact, points: mean (largest)",
    ]
    (limited,) = (curve for curve in result["curves"] if curve["curve"] == "limit")
    facts = {"largest_jump": 100 * limited["largest_jump"]}
    return Shown({"rows": Table(columns, rows, "lrrrrrr")}, facts)


# --- theorems, lemmas and assumptions ------------------------------------------------------------

STATEMENTS = {
    "threshold_in_backlog": "Theorem 2: learns at every backlog above a threshold",
    "threshold_rises_with_rounds_left": "D5: the threshold does not decrease with the rounds left",
    "value_falls_with_rounds_left": "Lemma 2: the value does not increase with the rounds left",
    "value_falls_with_oracle": "Lemma 2: the value does not increase with the oracle state",
    "value_rises_with_backlog": "Lemma 2: the value does not decrease with the backlog",
    "threshold_falls_with_oracle": "by no theorem: the threshold decreases with the oracle state",
}


def show_theory(result: StoredResult) -> Shown:
    """Show the measured theorems and lemmas."""
    updates, models, queues = result["theorem-1"], result["theorem-2"], result["lemma-1"]
    norms = [
        [
            "1/m" if row["steps"] == "decreasing" else "constant",
            f"{row['updates']:,}",
            format_mean(row["measured"]),
            f"{row['largest']:.3f}",
            f"{row['bound']:.3f}",
        ]
        for row in updates["rows"]
    ]
    goals = [
        [
            f"{goal['goal']:g}",
            f"{goal['decreasing_bound']:,.4g}",
            _format_count(goal["decreasing_measured"]),
            f"{goal['constant_bound']:,}",
            _format_count(goal["constant_measured"]),
        ]
        for goal in updates["goals"]
    ]
    held = [
        [text, f"{models['convex'][name]:,}", f"{models['not_convex'][name]:,}"]
        for name, text in STATEMENTS.items()
    ]
    loads = [
        [*_describe_growth(row, "load", "stable"), f"{row['drift']:.4f}"] for row in queues["loads"]
    ]
    limits = [_describe_growth(row, "limit", "always_stable") for row in queues["limits"]]
    half = queues["rounds"] // 2
    ends = [f"backlog after {half:,} rounds", f"after {2 * half:,}", "growth per round"]
    load_columns = ["load / capacity", "load", "stable by F6", *ends, "drift by F6"]
    limit_columns = ["limit / largest by F7", "limit", "stable by F7", *ends]
    tables = {
        "norms": Table(["steps", "updates", "measured", "largest run", "bound"], norms, "lrrrr"),
        "goals": Table(
            ["goal", "steps 1/m", "measured", "constant step", "measured"], goals, "rrrrr"
        ),
        "statements": Table(["statement", "with M3", "without M3"], held, "lrr"),
        "loads": Table(load_columns, loads, "rrlrrrr"),
        "limits": Table(limit_columns, limits, "rrlrrr"),
    }
    broken = sum(row["measured"]["mean"] > row["bound"] for row in updates["rows"])
    return Shown(tables, {"broken": broken})


def _format_count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _describe_growth(row: Row, varied: str, stable: str) -> list[str]:
    return [
        f"{row['share']:.0%}",
        f"{row[varied]:.4f}",
        "yes" if row[stable] else "no",
        f"{row['backlog_half']:.1f}",
        f"{row['backlog_end']:.1f}",
        format_mean(row["growth"], 4),
    ]


def show_partial(result: StoredResult) -> Shown:
    """Show what it costs to read the oracle state with errors, in a horizon and in a queue."""
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
    first = ["wrong", "expected cost", "simulated", "price", "finished", "learning queries"]
    second = ["wrong", "learning cost", "privacy cost", "simulated", "optimum", "price"]
    tables = {"horizon": Table(first, horizon, "rrrrrr"), "queue": Table(second, queue, "rrrrrr")}
    return Shown(tables)


SHOWN: Mapping[str, Callable[[StoredResult], Shown]] = {
    "table-main": show_main,
    "figure-accuracy": show_accuracy,
    "figure-spga": show_spga,
    "figure-tracking": show_tracking,
    "figure-cost": show_cost,
    "theory": show_theory,
    "partial-oracle": show_partial,
    "table-mnist-20": show_mnist,
    "table-mnist-50": show_mnist,
    "table-fedsgd": show_pair,
    "table-states": show_pair,
    "random-policy": show_pair,
    "mnist-learners": show_learners,
}


# --- all readings of the paper -------------------------------------------------------------------


def render_readings(sound: Sequence[StoredResult], others: OtherResults) -> str:
    """Render the tables' differences from the paper in all readings; empty if there is one only."""
    tables = {
        reading: {result["experiment"]: result for result in found if "rows" in result}
        for reading, found in others.items()
    }
    tables = {reading: found for reading, found in tables.items() if found}
    compared = [
        (result, {reading: found.get(result["experiment"]) for reading, found in tables.items()})
        for result in sound
        if any(result["experiment"] in found for found in tables.values())
    ]
    if not compared:
        return ""
    columns = ["experiment", "policy", "rows"]
    columns += [f"{who}, {each}" for who in LOOKED_AT for each in ("sound", *tables)]
    rows = []
    for result, beside in compared:
        for policy in list_policies(result):
            cells = [
                "" if each is None else format_differences(find_differences(each, policy, who))
                for who in LOOKED_AT
                for each in (result, *beside.values())
            ]
            count = len(find_differences(result, policy, LOOKED_AT[0]))
            rows.append([result["experiment"], POLICY_NAMES[policy], str(count), *cells])
    made = [other for _, beside in compared for other in beside.values() if other is not None]
    code = [other for other in made if other["made"]["reading"] == "paper-code"]
    largest = {other["experiment"]: _find_largest(other) for other in code}
    same = [name for name, difference in largest.items() if difference <= CLOSE]
    text = load_template().readings(
        table=Table(columns, rows, "llr" + "r" * (len(columns) - 3)),
        same={"names": same, "largest": max((largest[name] for name in same), default=0.0)},
        other=[name for name in largest if name not in same],
        commands=[f"`{other['made']['command']}`" for other in made],
        folders=[f"`results/{reading}/`" for reading in tables],
    )
    return tidy(text)


def list_policies(result: StoredResult) -> list[str]:
    """Return the policies for which the paper has numbers."""
    return list(dict.fromkeys(row["policy"] for row in result["rows"] if row["paper"]))


def _find_largest(result: StoredResult) -> float:
    """Return the largest difference of a learner from the paper's."""
    differences = (find_differences(result, policy, "learner") for policy in list_policies(result))
    return max(abs(difference) for found in differences for difference in found)


# --- the page ------------------------------------------------------------------------------------


@lru_cache(None)
def load_template() -> Any:
    """Load the template; its macros render the parts of the page."""
    try:
        import jinja2
    except ImportError as error:
        raise Missing("the page needs jinja2: pip install 'covertfl[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "f": format,
        "flow": lambda text: " ".join(text.split()),
        "mean": format_mean,
    }
    return environment.get_template(TEMPLATE).module


def tidy(text: str) -> str:
    """Return Markdown with one blank line between blocks."""
    return re.sub(r"\n\s*\n", "\n\n", text.strip()) + "\n"


def render_section(
    result: StoredResult, *, pictures: str = f"{IMAGES}/{PREFIX}", heading: str | None = None
) -> str:
    """Render one experiment; a picture's path is `pictures` followed by the experiment's name."""
    name = result["experiment"]
    shown, template = SHOWN[name](result), load_template()
    macro = "table_mnist" if name.startswith("table-mnist-") else name.replace("-", "_")
    facts = {**shown.facts, **measure_throughput(result)}
    content = getattr(template, macro)(result, shown.tables, facts)
    picture = f"{pictures}{name}.png" if name in PICTURES else None
    return tidy(template.section(result, facts, heading or f"## {name}", content, picture))


def measure_throughput(result: StoredResult) -> dict[str, float]:
    """Return the images trained on per second, and the share of a known card's peak speed."""
    made, examples = result["made"], result.get("examples")
    if not examples:
        return {}
    rate = examples / made["seconds"] if made["seconds"] else 0.0
    peaks = [peak for card, peak in PEAKS.items() if card in made["machine"]]
    if result["settings"]["model"] != "paper-cnn" or not peaks:
        return {"rate": rate}
    speed = rate * IMAGE_FLOP
    return {"rate": rate, "speed": speed / 1e12, "peak_share": speed / peaks[0]}


def render_page(results: Sequence[StoredResult], others: OtherResults) -> str:
    """Render the page as Markdown; `others` are results in further readings, by reading."""
    parts = [tidy(load_template().head(list_made(results)))]
    for result in results:
        parts.append(render_section(result))
        for reading, found in others.items():
            prefix = f"{IMAGES}/{PREFIX}{reading}-"
            heading = f"### {result['experiment']} in the reading {reading}"
            parts += [
                render_section(other, pictures=prefix, heading=heading)
                for other in list_shown(found, [result])
            ]
    readings = render_readings(results, others)
    return "\n".join([*parts, readings] if readings else parts)


def list_made(results: Sequence[StoredResult]) -> Table:
    """Return the table of when, where and how fast each result was made."""
    rows = [
        [
            f"[{result['experiment']}](#{result['experiment']})",
            result["paper_place"],
            result["made"]["date"],
            result["made"]["machine"],
            f"{result['made']['seconds']:,.0f} s",
            f"{result['made']['wall_seconds']:,.0f} s",
            "short form" if result["made"]["quick"] else "in full",
        ]
        for result in results
    ]
    columns = ["experiment", "in the paper", "made", "machine", "computing", "total", "form"]
    return Table(columns, rows, "llllrrl")


def list_shown(
    found: Sequence[StoredResult], results: Sequence[StoredResult]
) -> list[StoredResult]:
    """Return the figures among results of another reading that follow a section of the page.

    Tables are compared in the last section instead.
    """
    names = {result["experiment"] for result in results}
    return [other for other in found if other["experiment"] in names and "rows" not in other]


def draw_pictures(results: Sequence[StoredResult], folder: Path, prefix: str = "") -> None:
    """Draw the results that have a picture."""
    for result in results:
        draw = PICTURES.get(result["experiment"])
        if draw is not None:
            save_figure(draw(result), folder / f"{prefix}{result['experiment']}.png")


def write_page(results: Sequence[StoredResult], page: Path, others: OtherResults) -> None:
    """Write the page, and its pictures to `images` beside it; `others` as in `render_page`."""
    folder = page.parent / IMAGES
    make_folder(folder)
    draw_pictures(results, folder, PREFIX)
    for reading, found in others.items():
        draw_pictures(list_shown(found, results), folder, f"{PREFIX}{reading}-")
    write_atomically(page, render_page(results, others))


# --- the console ---------------------------------------------------------------------------------

MOST_COLUMNS = 9  # a table with more is wide
LEFT_OUT = ("ours - paper", "peak", "exact")  # of wide tables


def render_result(result: StoredResult, folder: str) -> RenderableType:
    """Render the tables of a result, and where all of it is: its file in `folder`."""
    name, made = result["experiment"], result["made"]
    form = ", short form" if made["quick"] else ""
    title = Text(f"{name}: {result['title']} ({result['paper_place']}{form})", style="bold")
    where = Text(
        f"{made['seconds']:,.0f} s of computing; in full in {folder}/{name}.json; with "
        f"explanations: python -m paper page --out {folder}\n"
    )
    tables = map(_make_console_table, SHOWN[name](result).tables.values())
    spaced = [each for table in tables for each in (table, Text())]
    return Group(title, *spaced, where)


def _make_console_table(table: Table) -> ConsoleTable:
    """Return a table of the console; a wide one has fewer columns and no intervals."""
    is_wide = len(table.columns) > MOST_COLUMNS
    kept = [at for at, name in enumerate(table.columns) if not (is_wide and name in LEFT_OUT)]
    shown = make_table("", box=None, pad_edge=False)
    for at in kept:
        side = "right" if table.sides[at] == "r" else "left"
        shown.add_column(table.columns[at], justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        shown.add_row(*(_make_cell(row[at], is_wide) for at in kept))
    return shown


def _make_cell(cell: str, is_wide: bool) -> Text:
    """Return a cell in the console's bold instead of stars, in a wide table without interval."""
    text = re.sub(r" \[[^]]*\]$", "", cell) if is_wide else cell
    return Text(text.strip("*`"), "bold") if text.startswith("**") else Text(text.strip("`"))
