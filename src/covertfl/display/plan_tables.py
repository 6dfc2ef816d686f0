"""Plans and fitted oracles as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.display.plots import name_state
from covertfl.display.tables import make_fact_table, make_table, name_truth
from covertfl.fitting.oracle import FittedOracle
from covertfl.planning.exposure import ExposurePlan
from covertfl.planning.horizon import HorizonPlan
from covertfl.planning.queue import QueuePlan
from covertfl.planning.trajectories import HorizonPrices, QueuePrices


def render_plan(plan: HorizonPlan | QueuePlan) -> RenderableType:
    """Render what a problem allows, with advice, and what exchangeable trajectories cost."""
    parts = (
        _render_horizon_plan(plan) if isinstance(plan, HorizonPlan) else _render_queue_plan(plan)
    )
    prices = _render_exchangeable(plan.exchangeable)
    return Group(*parts, Text(plan.advice, style="bold"), prices)


def _render_horizon_plan(plan: HorizonPlan) -> list[RenderableType]:
    evaluation, bound = plan.evaluation, plan.best_eavesdropper
    needed = ", ".join(
        f"{prob:.0%}: {_name_rounds(rounds)}" for prob, rounds in plan.rounds_needed.items()
    )
    queries = plan.greedy_learning_queries
    greedy = "may never finish" if queries is None else f"{queries:.1f} learning queries expected"
    optimal = (
        f"{evaluation.exposure:.1%} learning queries, finishes {evaluation.finish_prob:.1%} "
        f"of runs, covertly {evaluation.covert_finish_prob:.1%}"
    )
    named = f"{bound.value:.1%} of runs [{bound.low:.1%}, {bound.high:.1%}]"
    rows = [
        ("rounds needed", f"{needed} (first oracle state stationary)"),
        ("greedy policy", greedy),
        ("optimal policy", optimal),
        ("best eavesdropper that knows it", f"names the true trajectory in {named}"),
    ]
    return [_render_completion(plan), make_fact_table("", rows), Text()]


def _render_completion(plan: HorizonPlan) -> Table:
    """Render the probability of finishing covertly, by first oracle state."""
    title = "Largest probability of finishing with learning queries a strict minority"
    interval = [] if plan.minority_interval is None else ["95% interval"]
    right = ("at the end", *interval, "after every round")
    table = make_table(title, "first oracle state", right=right)
    num_states = plan.problem.oracle.num_states
    for state in range(num_states):
        cells = [f"{plan.minority[state]:.3f}", f"{plan.prefix_minority[state]:.3f}"]
        if plan.minority_interval is not None:
            low, high = plan.minority_interval[state]
            cells.insert(1, f"{low:.3f} to {high:.3f}")
        table.add_row(name_state(state, num_states), *cells)
    return table


def _render_exchangeable(plan: HorizonPrices | QueuePrices) -> RenderableType:
    """Render what exchangeable trajectories cost, ending with one sentence."""
    numbers = [price.trajectories for price in plan.prices]
    title = "Exchangeable trajectories, by number, against an eavesdropper that knows the scheme"
    right = (f"{number} (no secrecy)" if number == 1 else str(number) for number in numbers)
    table = make_table(title, "", right=right)
    table.add_row("is right without data", *(f"{1.0 / number:.1%}" for number in numbers))
    if isinstance(plan, HorizonPrices):
        rows = _list_horizon_prices(plan)
    else:
        rows = _list_queue_prices(plan)
    for row in rows:
        table.add_row(*row)
    return Group(Text(), table, Text(), Text(plan.advice, style="bold"))


def _list_horizon_prices(plan: HorizonPrices) -> Iterator[list[str]]:
    prices = plan.prices
    finishes = f"finishes in {plan.problem.rounds} rounds"
    yield [finishes, *(f"{price.completion:.3f}" for price in prices)]
    yield ["rounds needed for 50%", *(_name_rounds(price.median_rounds) for price in prices)]
    for prob in plan.minority_rounds:
        needed = (_name_rounds(price.rounds_needed[prob]) for price in prices)
        yield [f"rounds needed for {prob:.0%}", *needed]
    for name, compare in (
        ("no secrecy", plan.against_no_secrecy),
        ("the minority policy", plan.against_minority),
    ):
        ratios = (compare(price)[0.95] for price in prices)
        cells = ("-" if ratio is None else f"{ratio:.2f} times" for ratio in ratios)
        yield [f"rounds for 95% against {name}", *cells]


def _list_queue_prices(plan: QueuePrices) -> Iterator[list[str]]:
    yield ["accepted rounds needed in a round", *(f"{price.load:.4g}" for price in plan.prices)]
    yield ["accepted rounds at most", *(f"{plan.service_capacity:.4g}" for _ in plan.prices)]
    yield ["can be kept stable", *(name_truth(price.stable) for price in plan.prices)]


def _name_rounds(rounds: int | None) -> str:
    return "out of reach" if rounds is None else str(rounds)


def _render_queue_plan(plan: QueuePlan) -> list[RenderableType]:
    limit_name = plan.problem.limit_name.replace("_", " ")
    rows = [
        ("updates that arrive", f"{plan.load:.4g} a round"),
        ("updates that can be done", f"{plan.service_capacity:.4g} a round at most"),
        ("can be kept stable", name_truth(plan.stable)),
    ]
    if plan.stable:
        rows += [
            ("least exposure", f"{plan.least_exposure:.2%} of queries"),
            ("privacy cost bound", f"{plan.privacy_cost_bound:.4g} a round"),
        ]
    if plan.least_limit is not None:
        rows.append((f"least {limit_name}", f"{plan.least_limit:.6g}"))
    if plan.always_stable is not None:
        rows.append(("every feasible policy stable", name_truth(plan.always_stable)))
    parts: list[RenderableType] = [make_fact_table("The queue", rows), Text()]
    if plan.frontier:
        parts += [_render_frontier(plan, limit_name), Text()]
    return parts


def _render_frontier(plan: QueuePlan, limit_name: str) -> Table:
    """Render the frontier, the problem's own limit in bold."""
    columns = (limit_name, "privacy cost", "learning cost", "learning queries")
    table = make_table("Frontier: optimal policies by limit", right=columns)
    for point in plan.frontier:
        table.add_row(
            f"{point.limit:.4g}",
            f"{point.privacy_cost:.4f}",
            f"{point.learning_cost:.4f}",
            f"{point.learn_fraction:.1%}",
            style="bold" if point.limit == plan.problem.limit else "",
        )
    return table


def render_exposure(plan: ExposurePlan) -> RenderableType:
    """Render the setting that leads to a wanted exposure, in one sentence."""
    return Text(
        f"{plan.setting} = {plan.value:.6g} leads to {plan.exposure:.2%} learning queries "
        f"(asked for {plan.target:.1%}) at a privacy cost of {plan.privacy_cost:.4g}.",
        style="bold",
    )


def render_updates_needed(
    epsilon: float, decreasing: float | None, constant: float | None
) -> RenderableType:
    """Render how many updates reach an accuracy, for both step sizes."""
    return Text(
        f"Updates for an expected squared gradient norm of {epsilon:g}: more than "
        f"{_format_count(decreasing)} with step 1/m, {_format_count(constant)} with the best "
        "constant step."
    )


def _format_count(number: float | None) -> str:
    if number is None:
        return "1e308"
    return f"{number:.0f}" if number < 1e9 else f"{number:.3g}"


def render_fit(fitted: FittedOracle) -> RenderableType:
    """Render a fitted oracle with its 95% intervals."""
    parts: list[RenderableType] = [_render_oracle(fitted)]
    if fitted.arrival is not None:
        found = fitted.arrival
        sizes = zip(found.sizes, found.size_probs, found.size_intervals, strict=True)
        arrivals = [
            f"{size} update{'s' * (size > 1)} with probability {_format_interval(prob, interval)}"
            for size, prob, interval in sizes
        ]
        parts.append(Text(f"Arrivals: {', '.join(arrivals)} a round."))
    if fitted.dominance_violation is not None:
        unordered = "The rows of the transition matrix are not ordered by first-order dominance"
        parts.append(Text(f"{unordered} (assumption M1): {fitted.dominance_violation}."))
    sentences = (fitted.skipped.sentence, fitted.markov.sentence)
    parts += [Text(sentence) for sentence in sentences if sentence is not None]
    return Group(*parts)


def _render_oracle(fitted: FittedOracle) -> Table:
    """Render success and transition probabilities, one row for each oracle state."""
    num = fitted.oracle.num_states
    title = f"Oracle fitted to {fitted.num_rounds} rounds, 95% intervals"
    right = ("rounds", "success", *(f"to {state}" for state in range(num)))
    table = make_table(title, "state", fitted.column, right=right)
    for state in range(num):
        probs = (fitted.oracle.success[state], *fitted.oracle.transition[state])
        intervals = (fitted.success_interval[state], *fitted.transition_interval[state])
        cells = [_format_interval(*cell, "\n") for cell in zip(probs, intervals, strict=True)]
        span = _describe_span(fitted, state)
        table.add_row(name_state(state, num), span, str(fitted.visits[state]), *cells)
    return table


def _describe_span(fitted: FittedOracle, state: int) -> str:
    """Return the values of the column that form a state."""
    edges = ["", *(f"{cut:g}" for cut in fitted.cuts), ""]
    low, high = edges[state], edges[state + 1]
    return f"from {low}" if not high else f"below {high}" if not low else f"{low} to <{high}"


def _format_interval(value: float, interval: Iterable[float], space: str = " ") -> str:
    low, high = interval
    return f"{value:.3f}{space}[{low:.3f}, {high:.3f}]"
