"""Solutions, plans and fits as tables for people."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.fitting.oracle import FittedOracle
from covertfl.planning.exposure import ExposurePlan
from covertfl.planning.horizon import HorizonPlan
from covertfl.planning.queue import QueuePlan
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.spga.score import LIMIT_SLACK, HorizonScore, QueueScore
from covertfl.solvers.structure import (
    StructureReport,
    examine_horizon_solution,
    examine_queue_solution,
    find_queue_thresholds,
)

MANY_STATES = 6  # from which on columns name an oracle state by its number only


OPTIMAL_QUEUE = "Optimal policy of the queue"


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _state_name(state: int, num_states: int) -> str:
    return f"{state}" + (" (worst)" if state == 0 else " (best)" if state == num_states - 1 else "")


def _yes_no(value: bool | None) -> str:
    return "cannot be computed" if value is None else "yes" if value else "no"


def render_structure(report: StructureReport) -> RenderableType:
    """Assumptions by name, monotonicity, and the first counterexample."""
    table = Table(title="What is proven", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("holds")
    table.add_column("why", overflow="fold")
    for item in report.assumptions:
        table.add_row(item.name, _yes_no(item.holds), item.reason)
    table.add_row("monotone in the backlog", _yes_no(report.monotone_in_backlog), "")
    table.add_row("monotone in the oracle state", _yes_no(report.monotone_in_oracle), "")
    if report.monotone_in_rounds is not None:
        table.add_row("monotone in rounds left", _yes_no(report.monotone_in_rounds), "")
    lines: list[RenderableType] = [table]
    if report.counterexample is not None:
        lines.append(Text(f"Counterexample: {report.counterexample['text']}."))
    for note in report.notes:
        lines.append(Text(f"Note: {note}."))
    if not report.theory_applies:
        lines.append(Text("The threshold theory does not apply to this problem."))
    return Group(*lines)


# --- solve ------------------------------------------------------------------------------------


def render_queue_solution(solution: QueueSolution, seconds: float) -> RenderableType:
    """A queue's solution."""
    evaluation, problem = solution.evaluation, solution.problem
    rows = [
        ("privacy cost", f"{evaluation.privacy_cost:.6g} a round"),
        ("learning cost", f"{evaluation.learning_cost:.6g} a round"),
        ("limit", f"{problem.limit_name} = {problem.limit:g}, price {solution.multiplier:.6g}"),
        ("learning queries", f"{evaluation.learn_fraction:.2%} of rounds"),
        ("mean backlog", f"{evaluation.mean_backlog:.4g} updates of {problem.capacity}"),
        (
            "full queue",
            f"{evaluation.full_prob:.3g} of rounds, {evaluation.lost_per_round:.3g} updates lost",
        ),
        (
            "certificate",
            f"no policy within the limit costs less than {solution.lower_bound:.9g}; "
            f"this one costs {solution.cost:.9g}",
        ),
        ("solved", f"{solution.method}, {seconds:.3g} s"),
    ]
    if solution.mixing is not None:
        mixing = solution.mixing
        where = f"oracle state {mixing.oracle}, arrival {mixing.arrival}, backlog {mixing.backlog}"
        rows.append(("randomises", f"{where}: learns with chance {mixing.learn_prob:.6g}"))
    return Group(
        _facts("Policy found by search" if solution.method == "spga" else OPTIMAL_QUEUE, rows),
        Text(),
        _render_queue_thresholds(solution),
        Text(),
        render_structure(examine_queue_solution(solution)),
    )


def _render_queue_thresholds(solution: QueueSolution) -> RenderableType:
    thresholds = find_queue_thresholds(solution)
    if thresholds is None:
        return Text("The policy has no thresholds: it is not monotone in the backlog.")
    table = Table(title="Learns from this backlog on", title_justify="left", box=None)
    table.add_column("oracle state")
    table.add_column("no arrival", justify="right")
    table.add_column("arrival", justify="right")
    for state, columns in enumerate(thresholds):
        cells = [_threshold_cell(column, solution.problem.num_levels) for column in columns]
        table.add_row(_state_name(state, len(thresholds)), *cells)
    return table


def _threshold_cell(column: list[int] | None, num_levels: int) -> str:
    if column is None:
        return "never"
    first, certain = column
    if certain >= num_levels:
        return f"{first} (sometimes)"
    return str(first) if first == certain else f"{first} (sometimes), {certain} (always)"


def render_horizon_solution(solution: HorizonSolution, seconds: float) -> RenderableType:
    """A horizon's solution."""
    problem = solution.problem
    costs = ", ".join(f"{cost:.6g}" for cost in solution.expected_cost)
    facts = _facts(
        f"Optimal policy, {problem.updates} updates in {problem.rounds} rounds",
        [
            ("expected cost", f"{costs} by first oracle state"),
            ("solved", f"exact, {seconds:.3g} s"),
        ],
    )
    return Group(
        facts,
        Text(),
        _render_horizon_thresholds(solution),
        Text(),
        render_structure(examine_horizon_solution(solution)),
    )


def _render_horizon_thresholds(solution: HorizonSolution) -> RenderableType:
    if solution.thresholds is None:
        return Text("The policy has no thresholds: it is not monotone in the backlog.")
    problem = solution.problem
    num = problem.oracle.num_states
    narrow = num >= MANY_STATES
    title = "Learns from this backlog on" + (", by oracle state (-: never)" if narrow else "")
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("rounds left", justify="right")
    for state in range(num):
        name = str(state) if narrow else f"oracle state {_state_name(state, num)}"
        table.add_column(name, justify="right")
    never = "-" if narrow else "never"
    step = max(1, problem.rounds // 10)
    shown = sorted({1, problem.rounds, *range(step, problem.rounds, step)}, reverse=True)
    for rounds_left in shown:
        row = solution.thresholds[rounds_left - 1]
        cells = (never if chi > problem.updates else str(chi) for chi in row)
        table.add_row(str(rounds_left), *cells)
    return table


def _gap(value: float, words: str) -> str:
    return "not known: the optimum costs nothing" if np.isnan(value) else f"{value:.3%}{words}"


def render_queue_score(score: QueueScore, seconds: float) -> RenderableType:
    """A search's chosen run, and how far it ended from the exact optimum."""
    kept = int(np.sum(score.constrained_costs <= score.problem.limit * (1.0 + LIMIT_SLACK)))
    rows = [
        (
            "exact optimum",
            f"{score.optimum.cost:.6g} at the limit {score.problem.limit:g}",
        ),
        (
            "gap",
            _gap(
                float(score.gaps[score.chosen]), " above the optimum at the same constrained cost"
            ),
        ),
    ]
    constrained, limit = float(score.constrained_costs[score.chosen]), score.problem.limit
    if constrained > limit * (1.0 + LIMIT_SLACK):
        rows.append(
            (
                "limit",
                f"missed: {constrained:.4g} for a limit of {limit:g}; try more runs or rounds",
            )
        )
    if len(score.runs) > 1:
        rows.append(
            (
                "all runs",
                f"mean gap {np.nanmean(score.gaps):.3%}, largest {np.nanmax(score.gaps):.3%}; "
                f"{kept} of {len(score.runs)} keep to the limit within {LIMIT_SLACK:.0%}",
            )
        )
    return Group(
        render_queue_solution(score.solution, seconds),
        Text(),
        _facts("Judged by the exact solver, which the search did not see", rows),
    )


def render_horizon_score(score: HorizonScore, seconds: float) -> RenderableType:
    """The stationary thresholds that a search found."""
    problem = score.optimum.problem
    table = Table(title="Learns from this backlog on", title_justify="left", box=None)
    for state in range(problem.oracle.num_states):
        table.add_column(
            f"oracle state {_state_name(state, problem.oracle.num_states)}", justify="right"
        )
    chosen = score.thresholds[score.chosen]
    table.add_row(*("never" if chi > problem.updates else str(chi) for chi in chosen))
    rows = [
        ("expected cost", f"{score.costs[score.chosen]:.6g}, first state stationary"),
        (
            "exact optimum",
            f"{score.optimal_cost:.6g}, with thresholds that depend on the rounds left",
        ),
        ("gap", _gap(float(score.gaps[score.chosen]), "")),
        ("searched", f"spga, {len(score.runs)} run{'s'[: len(score.runs) > 1]}, {seconds:.3g} s"),
    ]
    title = f"Best stationary policy, {problem.updates} updates in {problem.rounds} rounds"
    return Group(_facts(title, rows), Text(), table)


# --- plan -------------------------------------------------------------------------------------


def render_horizon_plan(plan: HorizonPlan) -> RenderableType:
    """A horizon's plan and one sentence of advice."""
    problem, evaluation, bound = plan.problem, plan.evaluation, plan.best_eavesdropper
    table = Table(
        title="Chance to finish, true queries a strict minority (F5)", title_justify="left"
    )
    table.add_column("first oracle state")
    table.add_column("at the end", justify="right")
    if plan.minority_interval is not None:
        table.add_column("95% interval (F11)", justify="right")
    table.add_column("after every round", justify="right")
    for state in range(problem.oracle.num_states):
        cells = [f"{plan.minority[state]:.3f}", f"{plan.prefix_minority[state]:.3f}"]
        if plan.minority_interval is not None:
            low, high = plan.minority_interval[state]
            cells.insert(1, f"{low:.3f} to {high:.3f}")
        table.add_row(_state_name(state, problem.oracle.num_states), *cells)
    needed = ", ".join(
        f"{prob:.0%}: {'out of reach' if n is None else n}"
        for prob, n in plan.rounds_needed.items()
    )
    queries = plan.greedy_learning_queries
    greedy = "may never finish" if queries is None else f"{queries:.1f} learning queries expected"
    rows = [
        ("rounds needed", f"{needed} (strict minority, first state stationary)"),
        ("greedy policy", f"{greedy} (F10)"),
        (
            "optimal policy",
            f"{evaluation.exposure:.1%} learning queries, finishes {evaluation.finish_prob:.1%} "
            f"of runs, covertly {evaluation.covert_finish_prob:.1%}",
        ),
        (
            "eavesdropper that knows it",
            f"names the true trajectory in {bound.value:.1%} of runs "
            f"[{bound.low:.1%}, {bound.high:.1%}] (F4)",
        ),
    ]
    return Group(table, _facts("", rows), Text(), Text(plan.advice, style="bold"))


def render_queue_plan(plan: QueuePlan) -> RenderableType:
    """A queue's plan and one sentence of advice."""
    rows = [
        ("updates that arrive", f"{plan.load:.4g} a round"),
        ("updates that can be done", f"{plan.service_capacity:.4g} a round at most"),
        ("can be kept stable", f"{_yes_no(plan.stable)} (F6)"),
    ]
    if plan.stable:
        rows += [
            ("least exposure", f"{plan.least_exposure:.2%} of queries (F6)"),
            ("privacy cost bound", f"{plan.privacy_cost_bound:.4g} a round (F8)"),
        ]
    if plan.least_limit is not None:
        name = plan.problem.limit_name.replace("_", " ")
        rows.append((f"least {name}", f"{plan.least_limit:.6g}"))
    if plan.always_stable is not None:
        rows.append(("every feasible policy stable", f"{_yes_no(plan.always_stable)} (F7)"))
    table = Table(title="Frontier (F9)", title_justify="left")
    table.add_column(plan.problem.limit_name.replace("_", " "), justify="right")
    table.add_column("privacy cost", justify="right")
    table.add_column("learning cost", justify="right")
    table.add_column("learning queries", justify="right")
    for point in plan.frontier:
        mark = "bold" if point.limit == plan.problem.limit else ""
        table.add_row(
            f"{point.limit:.4g}",
            f"{point.privacy_cost:.4f}",
            f"{point.learning_cost:.4f}",
            f"{point.learn_fraction:.1%}",
            style=mark,
        )
    parts: list[RenderableType] = [_facts("The queue", rows), Text()]
    if plan.frontier:
        parts += [table, Text()]
    return Group(*parts, Text(plan.advice, style="bold"))


def render_exposure(plan: ExposurePlan) -> RenderableType:
    """The answer to the inverse question, in one sentence."""
    return Text(
        f"{plan.setting} = {plan.value:.6g} gives {plan.exposure:.2%} learning queries "
        f"(asked for {plan.target:.1%}) at a privacy cost of {plan.privacy_cost:.4g}.",
        style="bold",
    )


def render_updates_needed(
    epsilon: float, decreasing: float | None, constant: float | None
) -> RenderableType:
    """How many updates reach an accuracy, for both step sizes (F1, F2)."""
    return Text(
        f"Updates for an expected squared gradient of {epsilon:g}: more than {_count(decreasing)} "
        f"with step 1/m (F1), {_count(constant)} with the best constant step (F2)."
    )


def _count(number: float | None) -> str:
    if number is None:
        return "1e308"
    return f"{number:.0f}" if number < 1e9 else f"{number:.3g}"


# --- fit --------------------------------------------------------------------------------------


def render_fit(fitted: FittedOracle) -> RenderableType:
    """A fitted oracle with its 95% intervals."""
    num = fitted.oracle.num_states
    table = Table(
        title=f"Oracle fitted to {fitted.num_rounds} rounds, 95% intervals", title_justify="left"
    )
    table.add_column("state")
    table.add_column(fitted.column)
    table.add_column("rounds", justify="right")
    table.add_column("success", justify="right")
    for state in range(num):
        table.add_column(f"to {state}", justify="right")
    edges = ["", *(f"{cut:g}" for cut in fitted.cuts), ""]
    for state in range(num):
        low, high = edges[state], edges[state + 1]
        span = f"from {low}" if not high else f"below {high}" if not low else f"{low} to <{high}"
        table.add_row(
            _state_name(state, num),
            span,
            str(fitted.visits[state]),
            _stacked(fitted.oracle.success[state], fitted.success_interval[state]),
            *(
                _stacked(
                    fitted.oracle.transition[state, following],
                    fitted.transition_interval[state, following],
                )
                for following in range(num)
            ),
        )
    parts: list[RenderableType] = [table]
    if fitted.arrival is not None:
        arrival = fitted.arrival
        varying = " (sizes vary; this is their mean)" if arrival.sizes_vary else ""
        parts.append(
            Text(
                f"Arrivals: {arrival.arrival_size} updates{varying} with chance "
                f"{_with_interval(arrival.arrival_prob, arrival.interval)} a round."
            )
        )
    if fitted.dominance_violation is not None:
        parts.append(Text(f"M1 does not hold: {fitted.dominance_violation}."))
    return Group(*parts)


def _with_interval(value: float, interval: Iterable[float]) -> str:
    low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _stacked(value: float, interval: Iterable[float]) -> str:
    return _with_interval(value, interval).replace(" [", "\n[", 1)


def print_result(result: RenderableType) -> None:
    """Print on standard output, as wide as the terminal; elsewhere sentences are not broken."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(result, soft_wrap=not console.is_terminal)
