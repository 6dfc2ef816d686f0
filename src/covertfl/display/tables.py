"""Solutions as tables, and printing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.display.plots import name_state
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.spga.score import LIMIT_SLACK, HorizonScore, QueueScore
from covertfl.solvers.structure import (
    StructureReport,
    examine_horizon_solution,
    examine_queue_solution,
    find_queue_thresholds,
)

MANY_STATES = 6  # from here on, columns name an oracle state by its number only
THRESHOLDS = "Learns from this backlog on"


def print_tables(result: RenderableType) -> None:
    """Print to standard output, as wide as the terminal; elsewhere sentences are not wrapped."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(result, soft_wrap=not console.is_terminal)


def make_table(title: str, *columns: str, right: Iterable[str] = (), **style: Any) -> Table:
    """Return an empty table; the columns in `right` follow the others and are aligned right."""
    table = Table(title=title, title_justify="left", **style)
    for column in columns:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def make_fact_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values, without a header."""
    table = make_table(title, show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def name_truth(value: bool | None) -> str:
    """Return yes or no, or that the value cannot be computed."""
    return "cannot be computed" if value is None else "yes" if value else "no"


def render_structure(report: StructureReport) -> RenderableType:
    """Render the paper's assumptions, monotonicity, and the first counterexample."""
    columns = ("assumption or property", "holds")
    table = make_table("What is proven", *columns, box=None, pad_edge=False)
    table.add_column("why", overflow="fold")
    for item in report.assumptions:
        table.add_row(f"assumption {item.name}", name_truth(item.holds), item.reason)
    table.add_row("monotone in the backlog", name_truth(report.monotone_in_backlog), "")
    table.add_row("monotone in the oracle state", name_truth(report.monotone_in_oracle), "")
    if report.monotone_in_rounds is not None:
        table.add_row("monotone in rounds left", name_truth(report.monotone_in_rounds), "")
    lines: list[RenderableType] = [table]
    if report.counterexample is not None:
        lines.append(Text(f"Counterexample: {report.counterexample['text']}."))
    lines += [Text(f"Note: {note}.") for note in report.notes]
    if not report.theory_applies:
        lines.append(Text("The threshold theory does not apply to this problem."))
    return Group(*lines)


def render_queue_solution(solution: QueueSolution, seconds: float) -> RenderableType:
    """Render a queue's solution: costs, certificate, thresholds and structure."""
    is_searched = solution.method == "spga"
    title = "Policy found by search" if is_searched else "Optimal policy of the queue"
    return Group(
        make_fact_table(title, _list_queue_facts(solution, seconds)),
        Text(),
        _render_queue_thresholds(solution),
        Text(),
        render_structure(examine_queue_solution(solution)),
    )


def _list_queue_facts(solution: QueueSolution, seconds: float) -> list[tuple[str, str]]:
    evaluation, problem = solution.evaluation, solution.problem
    limit = f"{problem.limit_name} = {problem.limit:g}, multiplier {solution.multiplier:.6g}"
    lost = f"{evaluation.lost_per_round:.3g}"
    bound = f"no policy within the limit costs less than {solution.lower_bound:.9g}"
    rows = [
        ("privacy cost", f"{evaluation.privacy_cost:.6g} a round"),
        ("learning cost", f"{evaluation.learning_cost:.6g} a round"),
        ("limit", limit),
        ("learning queries", f"{evaluation.learn_fraction:.2%} of rounds"),
        ("mean backlog", f"{evaluation.mean_backlog:.4g} updates, capacity {problem.capacity}"),
        ("full queue", f"{evaluation.full_prob:.3g} of rounds, {lost} updates lost a round"),
        ("certificate", f"{bound}; this one costs {solution.cost:.9g}"),
        ("solved", f"{solution.method}, {seconds:.3g} s"),
    ]
    if solution.mixing is not None:
        mixing = solution.mixing
        where = f"oracle state {mixing.oracle}, arrival {mixing.arrival}, backlog {mixing.backlog}"
        rows.append(("randomises", f"{where}: learns with probability {mixing.learn_prob:.6g}"))
    return rows


def _render_queue_thresholds(solution: QueueSolution) -> RenderableType:
    thresholds = find_queue_thresholds(solution)
    if thresholds is None:
        return Text("The policy has no thresholds: it is not monotone in the backlog.")
    states = [name_state(state, len(thresholds)) for state in range(len(thresholds))]
    arrivals = _name_arrivals(solution.problem.arrival_support[1:].tolist())
    levels = solution.problem.num_levels
    cells = [[_format_threshold(column, levels) for column in columns] for columns in thresholds]
    corner, rows, columns = "oracle state", states, arrivals
    if len(arrivals) > MANY_STATES:
        corner, rows, columns = "updates that arrive", arrivals, states
        cells = [list(column) for column in zip(*cells, strict=True)]
    table = make_table(THRESHOLDS, corner, right=columns, box=None)
    for name, row in zip(rows, cells, strict=True):
        table.add_row(name, *row)
    return table


def _name_arrivals(sizes: list[int]) -> list[str]:
    """Return the name of each arrival index, with its size if there are several."""
    if len(sizes) == 1:
        return ["no arrival", "arrival"]
    return ["no arrival", *(f"arrival {number}: {size}" for number, size in enumerate(sizes, 1))]


def _format_threshold(column: list[int] | None, num_levels: int) -> str:
    if column is None:
        return "never"
    first, certain = column
    if certain >= num_levels:
        return f"{first} (sometimes)"
    return str(first) if first == certain else f"{first} (sometimes), {certain} (always)"


def render_queue_score(score: QueueScore, seconds: float) -> RenderableType:
    """Render the chosen run of a search and its distance from the exact optimum."""
    limit = score.problem.limit
    optimum = f"{score.optimum.cost:.6g} at the limit {limit:g}"
    gap = _format_gap(score.gaps[score.chosen], " above the optimum at the same constrained cost")
    rows = [("exact optimum", optimum), ("gap", gap)]
    highest = limit * (1.0 + LIMIT_SLACK)
    constrained = float(score.constrained_costs[score.chosen])
    if constrained > highest:
        missed = f"missed: {constrained:.4g} for a limit of {limit:g}; try more runs or iterations"
        rows.append(("limit", missed))
    if len(score.runs) > 1:
        num_within = int(np.sum(score.constrained_costs <= highest))
        gaps = f"mean gap {np.nanmean(score.gaps):.3%}, largest {np.nanmax(score.gaps):.3%}"
        within = f"{num_within} of {len(score.runs)} within the limit"
        rows.append(("all runs", f"{gaps}; {within} (tolerance {LIMIT_SLACK:.0%})"))
    return Group(
        render_queue_solution(score.solution, seconds),
        Text(),
        make_fact_table("Compared with the exact solution, which the search does not use", rows),
    )


def _format_gap(gap: float, suffix: str = "") -> str:
    return "not known: the optimum costs nothing" if np.isnan(gap) else f"{gap:.3%}{suffix}"


def render_horizon_solution(solution: HorizonSolution, seconds: float) -> RenderableType:
    """Render a horizon's solution: costs, thresholds and structure."""
    problem = solution.problem
    costs = ", ".join(f"{cost:.6g}" for cost in solution.expected_cost)
    title = f"Optimal policy, {problem.updates} updates in {problem.rounds} rounds"
    expected, solved = f"{costs} by first oracle state", f"exact, {seconds:.3g} s"
    return Group(
        make_fact_table(title, [("expected cost", expected), ("solved", solved)]),
        Text(),
        _render_horizon_thresholds(solution),
        Text(),
        render_structure(examine_horizon_solution(solution)),
    )


def _render_horizon_thresholds(solution: HorizonSolution) -> RenderableType:
    """Render thresholds for about ten numbers of rounds left."""
    if solution.thresholds is None:
        return Text("The policy has no thresholds: it is not monotone in the backlog.")
    problem = solution.problem
    num = problem.oracle.num_states
    is_narrow = num >= MANY_STATES
    title = THRESHOLDS + (", by oracle state (-: never)" if is_narrow else "")
    names = [
        str(state) if is_narrow else f"oracle state {name_state(state, num)}"
        for state in range(num)
    ]
    table = make_table(title, right=("rounds left", *names), box=None)
    never = "-" if is_narrow else "never"
    step = max(1, problem.rounds // 10)
    shown = sorted({1, problem.rounds, *range(step, problem.rounds, step)}, reverse=True)
    for rounds_left in shown:
        row = solution.thresholds[rounds_left - 1]
        cells = (never if chi > problem.updates else str(chi) for chi in row)
        table.add_row(str(rounds_left), *cells)
    return table


def render_horizon_score(score: HorizonScore, seconds: float) -> RenderableType:
    """Render the stationary thresholds of a search and their distance from the exact optimum."""
    problem = score.optimum.problem
    num = problem.oracle.num_states
    names = (f"oracle state {name_state(state, num)}" for state in range(num))
    table = make_table(THRESHOLDS, right=names, box=None)
    chosen = score.thresholds[score.chosen]
    table.add_row(*("never" if chi > problem.updates else str(chi) for chi in chosen))
    runs = f"{len(score.runs)} run{'s'[: len(score.runs) > 1]}"
    optimum = f"{score.optimal_cost:.6g}, with thresholds that depend on the rounds left"
    rows = [
        ("expected cost", f"{score.costs[score.chosen]:.6g}, first oracle state stationary"),
        ("exact optimum", optimum),
        ("gap", _format_gap(score.gaps[score.chosen])),
        ("searched", f"spga, {runs}, {seconds:.3g} s"),
    ]
    title = f"Best stationary policy, {problem.updates} updates in {problem.rounds} rounds"
    return Group(make_fact_table(title, rows), Text(), table)
