"""Pictures of the paper's figures, drawn from result files alone.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; lines differ in dash too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.plots import DASHES, PALETTE, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = Mapping[str, Any]
VERMILION, BLUE, GREEN = PALETTE[:3]
GREY = "#555555"
TITLE = 10  # size of a panel's title
SMALL = 8
POLICY_NAMES = {
    "greedy": "greedy",
    "spga": "optimal, stationary (SPGA)",
    "optimal": "optimal, exact",
    "minority": "minority (F5)",
    "random": "random",
}


def draw_accuracy(result: Result) -> Figure:
    """Accuracy of learner and eavesdropper by round, a panel for each scenario and policy."""
    curves = result["curves"]
    scenarios = sorted({curve["scenario"] for curve in curves})
    policies = list(dict.fromkeys(curve["policy"] for curve in curves))
    figure = new_figure(11.0, 2.6 * len(scenarios) + 0.5)
    panels = figure.subplots(len(scenarios), len(policies), sharex=True, sharey=True, squeeze=False)
    for curve in curves:
        line, column = scenarios.index(curve["scenario"]), policies.index(curve["policy"])
        axes = panels[line, column]
        for name, colour, dash in (("learner", BLUE, "-"), ("eavesdropper", VERMILION, "--")):
            values = curve[name]
            rounds = np.arange(1, len(values["mean"]) + 1)
            label = "learner" if name == "learner" else "eavesdropper's estimate (6)"
            axes.plot(rounds, values["mean"], dash, color=colour, label=label, linewidth=1.8)
            low, high = (np.clip(values[end], 0.0, 1.0) for end in ("low", "high"))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":", label="guessing")
        axes.set_title(
            f"scenario {curve['scenario']}: {POLICY_NAMES[curve['policy']]}",
            fontsize=9,
            loc="left",
        )
        axes.set_ylim(0.3, 0.9)
        tidy(axes)
    for axes in panels[-1]:
        axes.set_xlabel("round")
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _name_state(state: int, states: int) -> str:
    quality = " (worst)" if state == 0 else " (best)" if state == states - 1 else ""
    return f"oracle state {state}{quality}"


def _draw_paths(axes: Any, paths: Mapping[str, Any]) -> None:
    """Thresholds by oracle state: mean and eight runs in ten."""
    iterations = paths["iterations"]
    for state, curve in enumerate(paths["states"]):
        colour, dash = PALETTE[state % len(PALETTE)], DASHES[state % len(DASHES)]
        axes.plot(
            iterations,
            curve["mean"],
            dash,
            color=colour,
            linewidth=1.8,
            label=_name_state(state, len(paths["states"])),
        )
        axes.fill_between(
            iterations, curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0
        )


def _draw_exact(
    axes: Any, optimum: Mapping[str, Any], start: float, stop: float, label: str | None
) -> None:
    """Exact backlogs of certain learning as thin lines; equal ones are drawn a little apart."""
    drawn: list[float] = []
    apart = 0.012 * (axes.get_ylim()[1] - axes.get_ylim()[0])
    for state, backlog in enumerate(optimum["thresholds"]):
        if backlog is not None:
            height = backlog + apart * drawn.count(backlog)
            drawn.append(backlog)
            axes.plot(
                [start, stop],
                [height, height],
                color=PALETTE[state % len(PALETTE)],
                linewidth=1.0,
                label=label if state == 0 else None,
            )


def draw_convergence(result: Result) -> Figure:
    """Thresholds against iterations, printed and corrected, on each queue."""
    panels = result["panels"]
    problems = list(dict.fromkeys(panel["problem"] for panel in panels))
    variants = list(dict.fromkeys(panel["variant"] for panel in panels))
    figure = new_figure(9.5, 3.0 * len(problems) + 0.6)
    grid = figure.subplots(len(problems), len(variants), squeeze=False)
    for panel in panels:
        axes = grid[problems.index(panel["problem"]), variants.index(panel["variant"])]
        _draw_paths(axes, panel["paths"])
        last = panel["paths"]["iterations"][-1]
        _draw_exact(axes, panel["optimum"], 0, last, "exact (thin lines)")
        costs = panel["costs"]
        axes.set_title(
            f"{panel['problem']}, Algorithm 1 {panel['variant']}\n"
            f"{costs['keep_limit']} of {costs['runs']} runs keep the limit",
            fontsize=TITLE,
            loc="left",
        )
        axes.axhline(0.0, color="#bbbbbb", linewidth=0.8)
        axes.set_xlabel("iteration")
        axes.set_ylabel("threshold, no arrival (updates)")
        tidy(axes)
    _add_legend(figure, grid[0, 0], "80% of runs")
    return figure


def _add_legend(figure: Any, axes: Any, band: str) -> None:
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    handles.append(Patch(color=GREY, alpha=0.15))
    labels.append(band)
    place = "outside lower center"
    figure.legend(handles, labels, loc=place, ncols=len(labels), frameon=False, fontsize=9)


def draw_tracking(result: Result) -> Figure:
    """Thresholds through the change, with the exact ones before and after."""
    figure = new_figure(9.0, 4.4)
    axes = figure.subplots()
    _draw_paths(axes, result["paths"])
    change, last = result["settings"]["change_at"], result["settings"]["iterations"]
    before, after = (stage["optimum"] for stage in result["stages"])
    _draw_exact(axes, before, 0, change, "exact (thin lines)")
    _draw_exact(axes, after, change, last, None)
    axes.axvline(change, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate(
        "the system changes",
        (change, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10),
        textcoords="offset points",
        fontsize=SMALL + 1,
        color=GREY,
    )
    axes.axhline(0.0, color="#bbbbbb", linewidth=0.8)
    axes.set_xlabel("iteration")
    axes.set_ylabel("threshold, no arrival (updates)")
    tidy(axes)
    _add_legend(figure, axes, "80% of runs")
    return figure


_COST_TITLES = {
    "price": ("the cost is a price: optima are vertices", "price of the learning cost", "log"),
    "limit": ("the cost has a limit: optima mix two vertices", "factor on the cost", "linear"),
    "horizon": (
        "finite horizon of the main experiment",
        "a, where y updates left cost a y²",
        "log",
    ),
}


def draw_cost(result: Result) -> Figure:
    """Proportion of learning queries against the learning cost, exact and simulated."""
    figure = new_figure(11.0, 4.0)
    panels = figure.subplots(1, len(result["curves"]), sharey=True, squeeze=False)[0]
    for axes, curve in zip(panels, result["curves"], strict=True):
        title, label, scale = _COST_TITLES[curve["curve"]]
        axes.plot(
            curve["costs"],
            100.0 * np.array(curve["simulated"]),
            ".",
            color=VERMILION,
            markersize=2.5,
            alpha=0.6,
            label="simulated",
        )
        axes.plot(
            curve["costs"],
            100.0 * np.array(curve["exact"]),
            drawstyle="steps-mid" if curve["curve"] != "limit" else "default",
            color=BLUE,
            linewidth=1.4,
            label="exact",
        )
        axes.axhline(50.0, color=GREY, linestyle=":", linewidth=1.0, label="one half")
        axes.set_xscale(scale)
        axes.set_xlabel(label)
        counted = f"\n({curve['vertices']} vertices)" if "vertices" in curve else "\n"
        axes.set_title(f"{title}{counted}", fontsize=TITLE - 1, loc="left")
        axes.set_ylim(-2, 102)
        tidy(axes)
    panels[0].set_ylabel("learning queries (% of rounds)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, markerscale=3
    )
    return figure


def draw_theory(result: Result) -> Figure:
    """Theorem 1's bounds beside what was measured, and backlogs on each side of F6's line."""
    figure = new_figure(9.5, 4.0)
    left, right = figure.subplots(1, 2)
    for kind, colour, dash in (("decreasing", BLUE, "-"), ("constant", VERMILION, "--")):
        rows = [row for row in result["theorem-1"]["rows"] if row["steps"] == kind]
        updates = [row["updates"] for row in rows]
        name = "steps 1/m" if kind == "decreasing" else "constant step"
        means = np.array([row["measured"]["mean"] for row in rows])
        left.plot(updates, means, dash, marker="o", color=colour, label=f"{name}, measured")
        bounds = [row["bound"] for row in rows]
        left.plot(updates, bounds, dash, color=colour, alpha=0.5, label=f"{name}, bound")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("updates")
    left.set_ylabel("mean squared gradient norm")
    left.set_title("Theorem 1 on the function task", fontsize=TITLE, loc="left")
    left.legend(frameon=False, fontsize=SMALL)
    loads = result["lemma-1"]["loads"]
    half = result["lemma-1"]["rounds"] // 2
    for number, row in enumerate(loads):
        right.plot(
            [0, half, 2 * half],
            [0, row["backlog_half"], row["backlog_end"]],
            DASHES[number % len(DASHES)],
            marker="o",
            color=PALETTE[number],
            label=f"load {row['share']:.0%} of capacity",
        )
    right.set_xlabel("round")
    right.set_ylabel("mean backlog (updates)")
    right.set_title("F6: always learning, by load", fontsize=TITLE, loc="left")
    right.legend(frameon=False, fontsize=SMALL)
    for axes in (left, right):
        tidy(axes)
    return figure


def draw_mnist(result: Result) -> Figure:
    """Eavesdropper's accuracy with the optimal policy, ours and printed, for each public set."""
    rows = [row for row in result["rows"] if row["policy"] == "optimal"]
    greedy = [row for row in result["rows"] if row["policy"] == "greedy"]
    figure = new_figure(10.5, 4.4)
    axes = figure.subplots()
    places = np.arange(len(rows))
    means = np.array([row["eavesdropper"]["mean"] for row in rows])
    axes.errorbar(
        places,
        means,
        yerr=_error_bars(rows),
        fmt="o",
        color=BLUE,
        capsize=3,
        label="optimal policy, ours (95%)",
    )
    printed = [row["paper"]["eavesdropper"] for row in rows]
    known = [place for place, value in zip(places, printed, strict=True) if value is not None]
    axes.plot(
        known,
        [printed[place] for place in known],
        "x",
        color=VERMILION,
        markersize=8,
        label="optimal policy, paper",
    )
    level = float(np.mean([row["eavesdropper"]["mean"] for row in greedy]))
    axes.axhline(level, color=GREEN, linestyle="--", label="greedy policy, ours")
    axes.set_xticks(places, [describe_public(row) for row in rows], rotation=90, fontsize=SMALL)
    axes.set_xlabel("public set: good classes, size in clients' sizes, share of good classes")
    axes.set_ylabel("eavesdropper's accuracy")
    axes.set_ylim(0.0, 1.03)
    tidy(axes)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def describe_public(row: Mapping[str, Any]) -> str:
    """A public set in a few signs."""
    part = "natural" if row["class_share"] is None else f"{row['class_share']:.0%}"
    return f"{row['classes']}, {row['size']:g}, {part}"


def _error_bars(rows: Sequence[Mapping[str, Any]]) -> Any:
    bars = []
    for row in rows:
        mean, interval = row["eavesdropper"]["mean"], row["eavesdropper"]["interval"]
        low, high = interval or (mean, mean)
        bars.append((mean - low, high - mean))
    return np.array(bars).T


PICTURES: Mapping[str, Callable[[Result], Any]] = {
    "figure-accuracy": draw_accuracy,
    "figure-spga": draw_convergence,
    "figure-tracking": draw_tracking,
    "figure-cost": draw_cost,
    "theory": draw_theory,
    "table-mnist-20": draw_mnist,
    "table-mnist-50": draw_mnist,
}
