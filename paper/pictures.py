"""Pictures of the paper's figures, drawn from result files alone.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; lines also differ in dash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.display.plots import DASHES, PALETTE, new_figure, tidy
from paper.results import StoredResult

POLICY_NAMES = {
    "greedy": "greedy",
    "spga": "optimal, stationary (SPGA)",
    "optimal": "optimal, exact",
    "minority": "minority (F5)",
    "random": "random",
}


def describe_public(row: Mapping[str, Any]) -> str:
    """Return a public set's classes, size and share in short."""
    part = "natural" if row["class_share"] is None else f"{row['class_share']:.0%}"
    return f"{row['classes']}, {row['size']:g}, {part}"


if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERMILION, BLUE = PALETTE[:2]
PURPLE = PALETTE[3]
GREY, LIGHT_GREY = "#555555", "#bbbbbb"
TITLE = 10  # size of a panel's title
SMALL = 8
WIDE = 20.0  # ratio of the largest to the smallest cost from which the axis is logarithmic
EXACT = "exact (thin lines)"


def draw_accuracy(result: StoredResult) -> Figure:
    """Draw the accuracy of learner and eavesdropper by round, one panel per scenario and policy."""
    curves = result["curves"]
    scenarios = sorted({curve["scenario"] for curve in curves})
    policies = list(dict.fromkeys(curve["policy"] for curve in curves))
    figure = new_figure(11.0, 2.6 * len(scenarios) + 0.7)
    panels = figure.subplots(len(scenarios), len(policies), sharex=True, sharey=True, squeeze=False)
    for curve in curves:
        axes = panels[scenarios.index(curve["scenario"]), policies.index(curve["policy"])]
        rounds = np.arange(1, len(curve["learner"]["mean"]) + 1)
        if curve["decoy"] == "public":
            _draw_band(axes, rounds, curve["learner"], BLUE, "-", "learner")
            _draw_printed(axes, len(rounds) + 2, curve["paper"])
        colour, dash = (VERMILION, "--") if curve["decoy"] == "public" else (PURPLE, "-.")
        label = f"eavesdropper's estimate, equation (6), {curve['decoy']} decoy"
        _draw_band(axes, rounds, curve["eavesdropper"], colour, dash, label)
    for (line, column), axes in np.ndenumerate(panels):
        axes.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":", label="guessing")
        title = f"scenario {scenarios[line]}: {POLICY_NAMES[policies[column]]}"
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylim(0.3, 0.9)
        tidy(axes)
    for axes in panels[-1]:
        axes.set_xlabel("round")
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_band(
    axes: Any, places: Any, curve: Mapping[str, Any], colour: str, dash: str, label: str
) -> None:
    """Draw a mean with its band."""
    axes.plot(places, curve["mean"], dash, color=colour, label=label, linewidth=1.8)
    axes.fill_between(places, curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)


def _draw_printed(axes: Any, place: int, paper: Mapping[str, float] | None) -> None:
    """Draw the paper's final values, if it has any."""
    if paper is None:
        return
    cross: Any = {"markersize": 7, "markeredgewidth": 2}
    for name, colour in (("learner", BLUE), ("eavesdropper", VERMILION)):
        label = f"paper, final, {name}"
        axes.plot([place], [paper[name]], "x", color=colour, label=label, **cross)


def _draw_paths(axes: Any, paths: Mapping[str, Any]) -> None:
    """Draw thresholds by oracle state: the mean and the central 80% of runs."""
    last = len(paths["states"]) - 1
    for state, curve in enumerate(paths["states"]):
        colour, dash = PALETTE[state % len(PALETTE)], DASHES[state % len(DASHES)]
        quality = " (worst)" if state == 0 else " (best)" if state == last else ""
        label = f"oracle state {state}{quality}"
        _draw_band(axes, paths["iterations"], curve, colour, dash, label)
    axes.set_ylabel("threshold, no arrival (updates)")


def _draw_exact(
    axes: Any, optimum: Mapping[str, Any], start: float, stop: float, label: str | None
) -> None:
    """Draw the exact thresholds as thin lines, dashed so that equal ones stay visible."""
    for state, backlog in enumerate(optimum["thresholds"]):
        if backlog is not None:
            dashes = (6, 0) if state == 0 else (6, 6 * state)
            style: Any = {"color": PALETTE[state % len(PALETTE)], "linewidth": 1.0}
            name = label if state == 0 else None
            axes.plot([start, stop], [backlog, backlog], dashes=dashes, label=name, **style)


def draw_convergence(result: StoredResult) -> Figure:
    """Draw thresholds by iteration, printed and corrected, for each queue."""
    panels = result["panels"]
    problems = list(dict.fromkeys(panel["problem"] for panel in panels))
    variants = list(dict.fromkeys(panel["variant"] for panel in panels))
    figure = new_figure(9.5, 3.0 * len(problems) + 0.6)
    grid = figure.subplots(len(problems), len(variants), squeeze=False)
    for panel in panels:
        axes = grid[problems.index(panel["problem"]), variants.index(panel["variant"])]
        _draw_paths(axes, panel["paths"])
        _draw_exact(axes, panel["optimum"], 0, panel["paths"]["iterations"][-1], EXACT)
        costs = panel["costs"]
        title = (
            f"{panel['problem']}, Algorithm 1 {panel['variant']}\n"
            f"{costs['keep_limit']} of {costs['runs']} runs keep the limit"
            + ("" if costs["gap"] is None else f", gap {costs['gap']['mean']:.1%}")
        )
        axes.set_title(title, fontsize=TITLE, loc="left")
        axes.axhline(0.0, color=LIGHT_GREY, linewidth=0.8)
        axes.set_xlabel("iteration")
        tidy(axes)
    _add_legend(figure, grid[0, 0])
    return figure


def _add_legend(figure: Any, axes: Any) -> None:
    """Explain the lines of a panel and the bands below all panels."""
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    handles.append(Patch(color=GREY, alpha=0.15))
    labels.append("80% of runs")
    place = "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=len(labels), frameon=False, fontsize=9)


def draw_tracking(result: StoredResult) -> Figure:
    """Draw thresholds and costs through the change, with the exact ones before and after."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = new_figure(9.0, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_paths(upper, result["paths"])
    change, last = result["settings"]["change_at"], result["settings"]["iterations"]
    stages = [(0, change), (change, last)]
    for (start, stop), stage in zip(stages, result["stages"], strict=True):
        _draw_exact(upper, stage["optimum"], start, stop, EXACT if start == 0 else None)
        costs = (("limit", "limit", BLUE), ("privacy_cost", "privacy cost, exact", VERMILION))
        for name, label, colour in costs:
            places, values = [start, stop], [stage["optimum"][name]] * 2
            lower.plot(
                places, values, color=colour, linewidth=1.0, label=label if start == 0 else None
            )
    for name, colour, dash in (("learning", BLUE, "-"), ("privacy", VERMILION, "--")):
        curve = result["costs"][name]
        _draw_band(lower, curve["iterations"], curve, colour, dash, f"{name} cost, simulated")
    for axes in (upper, lower):
        axes.axvline(change, color=GREY, linestyle=":", linewidth=1.2)
        tidy(axes)
    upper.annotate(
        "the system changes",
        (change, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10),
        textcoords="offset points",
        fontsize=SMALL + 1,
        color=GREY,
    )
    upper.axhline(0.0, color=LIGHT_GREY, linewidth=0.8)
    low, high = upper.get_ylim()
    upper.set_ylim(low, high + 0.06 * (high - low))  # room for the words
    lower.set(yscale="log", xlabel="iteration", ylabel="cost per round (mean, 95%)")
    lower.yaxis.set(
        major_locator=LogLocator(subs=(1.0, 2.0, 5.0)),
        major_formatter=StrMethodFormatter("{x:g}"),
        minor_formatter=NullFormatter(),
    )
    lower.legend(frameon=False, fontsize=SMALL + 1, ncols=2)
    _add_legend(figure, upper)
    return figure


HORIZON_COST = "a, where y updates left cost a y²"
_COST_TITLES = {
    "price": ("the cost is a price: optima are vertices", "price of the learning cost", "log"),
    "limit": ("the cost has a limit: optima mix two vertices", "factor on the cost", "linear"),
    "horizon": ("finite horizon of the main experiment", HORIZON_COST, "log"),
}


def draw_cost(result: StoredResult) -> Figure:
    """Draw the proportion of learning queries against the learning cost, exact and simulated."""
    figure = new_figure(11.0, 4.0)
    panels = figure.subplots(1, len(result["curves"]), sharey=True, squeeze=False)[0]
    dots: Any = {"color": VERMILION, "markersize": 2.5, "alpha": 0.6}
    for axes, curve in zip(panels, result["curves"], strict=True):
        title, label, scale = _COST_TITLES[curve["curve"]]
        simulated, exact = (100.0 * np.array(curve[key]) for key in ("simulated", "exact"))
        line: Any = {"drawstyle": "steps-mid" if curve["curve"] != "limit" else "default"}
        axes.plot(curve["costs"], simulated, ".", label="simulated", **dots)
        axes.plot(curve["costs"], exact, color=BLUE, linewidth=1.4, label="exact", **line)
        axes.axhline(50.0, color=GREY, linestyle=":", linewidth=1.0, label="one half")
        if curve["costs"][-1] > WIDE * curve["costs"][0]:
            scale = "log"
        axes.set(xscale=scale, xlabel=label, ylim=(-2, 102))
        counted = f"\n({curve['vertices']} vertices)" if "vertices" in curve else "\n"
        axes.set_title(f"{title}{counted}", fontsize=TITLE - 1, loc="left")
        tidy(axes)
    panels[0].set_ylabel("learning queries (% of rounds)")
    handles, labels = panels[0].get_legend_handles_labels()
    style: Any = {"ncols": 3, "frameon": False, "markerscale": 3}
    figure.legend(handles, labels, loc="outside lower center", **style)
    return figure


def draw_theory(result: StoredResult) -> Figure:
    """Draw Theorem 1's bounds with measured values, and backlogs by load (formula F6)."""
    figure = new_figure(9.5, 4.0)
    left, right = figure.subplots(1, 2)
    _draw_norms(left, result["theorem-1"]["rows"])
    _draw_loads(right, result["lemma-1"])
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=SMALL)
        tidy(axes)
    return figure


def _draw_norms(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    looks = (("decreasing", "steps 1/m", BLUE, "-"), ("constant", "constant step", VERMILION, "--"))
    for kind, name, colour, dash in looks:
        some = [row for row in rows if row["steps"] == kind]
        updates, bounds = ([row[key] for row in some] for key in ("updates", "bound"))
        style: Any = {"fmt": f"o{dash}", "capsize": 3, "label": f"{name}, measured (95%)"}
        _draw_measured(axes, updates, [row["measured"] for row in some], color=colour, **style)
        axes.plot(updates, bounds, dash, color=colour, alpha=0.5, label=f"{name}, bound")
    axes.set(xscale="log", yscale="log", xlabel="updates", ylabel="mean squared gradient norm")
    axes.set_title("Theorem 1 on the function task", fontsize=TITLE, loc="left")


def _draw_loads(axes: Any, found: Mapping[str, Any]) -> None:
    half = found["rounds"] // 2
    for number, row in enumerate(found["loads"]):
        backlogs = [0, row["backlog_half"], row["backlog_end"]]
        dash, colour = DASHES[number % len(DASHES)], PALETTE[number]
        label = f"load {row['share']:.0%} of capacity"
        axes.plot([0, half, 2 * half], backlogs, dash, marker="o", color=colour, label=label)
    axes.set(xlabel="round", ylabel="mean backlog (updates)")
    axes.set_title("Stability (F6): always learning, by load", fontsize=TITLE, loc="left")


def draw_mnist(result: StoredResult) -> Figure:
    """Draw the eavesdropper's accuracy with both policies, ours and printed, by public set."""
    figure = new_figure(10.5, 4.6)
    axes = figure.subplots()
    looks = {
        "optimal": (BLUE, "black", "o", "x", -0.15),
        "greedy": (VERMILION, GREY, "s", "+", 0.15),
    }
    for policy, (colour, dark, ours, printed, aside) in looks.items():
        rows = [row for row in result["rows"] if row["policy"] == policy]
        places = np.arange(len(rows)) + aside
        style: Any = {"fmt": ours, "markersize": 5, "capsize": 2, "elinewidth": 1.0}
        label = f"{policy} policy, ours (95%)"
        means = [row["eavesdropper"] for row in rows]
        _draw_measured(axes, places, means, color=colour, label=label, **style)
        values = [row["paper"]["eavesdropper"] for row in rows]
        known = [number for number, value in enumerate(values) if value is not None]
        shown, label = [values[number] for number in known], f"{policy} policy, paper"
        axes.plot(places[known], shown, printed, color=dark, markersize=8, label=label)
    names = [describe_public(row) for row in rows]
    axes.set_xticks(np.arange(len(names)), names, rotation=90, fontsize=SMALL)
    axes.set_xlabel("public set: good classes, size relative to a client's, share of good classes")
    axes.set(ylabel="eavesdropper's accuracy", ylim=(0.0, 1.03))
    tidy(axes)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_measured(
    axes: Any, places: Any, entries: Sequence[Mapping[str, Any]], **style: Any
) -> None:
    """Draw means with their intervals as error bars."""
    means, bars = [entry["mean"] for entry in entries], []
    for entry, mean in zip(entries, means, strict=True):
        low, high = entry["interval"] or (mean, mean)
        bars.append((max(mean - low, 0.0), max(high - mean, 0.0)))
    axes.errorbar(places, means, yerr=np.array(bars).T, **style)


PICTURES: Mapping[str, Callable[[StoredResult], Figure]] = {
    "figure-accuracy": draw_accuracy,
    "figure-spga": draw_convergence,
    "figure-tracking": draw_tracking,
    "figure-cost": draw_cost,
    "theory": draw_theory,
    "table-mnist-20": draw_mnist,
    "table-mnist-50": draw_mnist,
}
