"""Fitted oracles as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.display.names import name_state
from covertfl.fitting.oracle import FittedOracle


def render_fit(fitted: FittedOracle) -> RenderableType:
    """Render a fitted oracle with its 95% intervals."""
    parts: list[RenderableType] = [_render_oracle(fitted)]
    if fitted.arrival is not None:
        arrival = fitted.arrival
        varying = " (sizes vary; this is their mean)" if arrival.sizes_vary else ""
        prob = _format_interval(arrival.arrival_prob, arrival.interval)
        parts.append(
            Text(
                f"Arrivals: {arrival.arrival_size} updates{varying} with probability {prob} a "
                "round."
            )
        )
    if fitted.dominance_violation is not None:
        parts.append(
            Text(
                "The rows of the transition matrix are not ordered by first-order dominance "
                f"(assumption M1): {fitted.dominance_violation}."
            )
        )
    return Group(*parts)


def _render_oracle(fitted: FittedOracle) -> Table:
    """Render success and transition probabilities, one row for each oracle state."""
    num = fitted.oracle.num_states
    title = f"Oracle fitted to {fitted.num_rounds} rounds, 95% intervals"
    table = Table(title=title, title_justify="left")
    table.add_column("state")
    table.add_column(fitted.column)
    for column in ("rounds", "success", *(f"to {state}" for state in range(num))):
        table.add_column(column, justify="right")
    for state in range(num):
        transitions = zip(
            fitted.oracle.transition[state], fitted.transition_interval[state], strict=True
        )
        table.add_row(
            name_state(state, num),
            _describe_span(fitted, state),
            str(fitted.visits[state]),
            _stack_interval(fitted.oracle.success[state], fitted.success_interval[state]),
            *(_stack_interval(prob, interval) for prob, interval in transitions),
        )
    return table


def _describe_span(fitted: FittedOracle, state: int) -> str:
    """Return the values of the column that form a state."""
    edges = ["", *(f"{cut:g}" for cut in fitted.cuts), ""]
    low, high = edges[state], edges[state + 1]
    return f"from {low}" if not high else f"below {high}" if not low else f"{low} to <{high}"


def _format_interval(value: float, interval: Iterable[float]) -> str:
    low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _stack_interval(value: float, interval: Iterable[float]) -> str:
    return _format_interval(value, interval).replace(" [", "\n[", 1)
