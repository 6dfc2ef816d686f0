"""A policy that is refreshed during a run, from the rounds seen so far and nothing else.

It starts cautiously, with the policy that costs the least of what is limited.  Every refresh drops
the rounds that are out of date, fits a problem to the others (`fitting.window`) and solves it
exactly or continues a search (Algorithm 1) on a simulator of it.  The limit is steered by what the
run has spent, so that the run keeps it and not only the fitted problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.policy import GreedyPolicy, Policy, QueueTable
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.errors import NoSolution
from covertfl.fitting.window import count_outdated, fit_window
from covertfl.schemes.scheme import SeenRound
from covertfl.seeding import Stream, make_generator
from covertfl.solvers.spga.experience import Experience

LiveMethod = Literal["exact", "search"]
# Most rounds that a problem is fitted to.
WINDOW = 20_000
# Rounds that must have been seen before a problem is fitted to them.
FEWEST_SEEN = 20
# Rounds over which the steered limit makes up for what was spent above or below the limit: with a
# capacity, and without one, because an unbounded queue is slower to follow.
MAKE_UP_ROUNDS, SLOW_MAKE_UP_ROUNDS = 500, 2000
# Range of the steered limit, as multiples of the limit.
STEERED = (0.5, 2.0)
# Iterations of a search between two rounds.
LIVE_ITERATIONS = 100


@dataclass(frozen=True)
class LiveState:
    """What the refreshed policy in force was made from, besides the rounds seen.

    Parameters
    ----------
    refreshed : rounds done at the last refresh, 0 before the first
    outdated : number of first rounds of the run that are out of date
    limit : the steered limit of the last refresh, 0 in a finite horizon
    parameters : theta_1, theta_2 and h of the search, by oracle state and arrival, in one row;
        empty before the first search
    multiplier : multiplier of the search
    """

    refreshed: int = 0
    outdated: int = 0
    limit: float = 0.0
    parameters: tuple[float, ...] = ()
    multiplier: float = 0.0

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> LiveState:
        """Return the state that `dataclasses.asdict` was made from, also after JSON."""
        return cls(**{**facts, "parameters": tuple(facts["parameters"])})


def make_cautious_policy(problem: Problem) -> Policy:
    """Return a policy that keeps the limit and needs no probability of the problem.

    If learning is limited it learns as long as an update is owed: in every round no other policy
    has a smaller backlog.  If privacy is limited it learns with the probability at which even the
    most costly queries keep the limit.
    """
    if isinstance(problem, FiniteHorizon) or problem.objective == "privacy":
        return GreedyPolicy()
    table = np.zeros((problem.oracle.num_states, len(problem.arrival_support), 2))
    table[:, :, 1] = min(problem.limit / max(float(problem.privacy_cost.max()), 1e-300), 1.0)
    return QueueTable(table)


def steer_limit(problem: QueueProblem, rounds: int, spent: float) -> float:
    """Return the limit that makes up over the next rounds for what was spent above or below it.

    Over MAKE_UP_ROUNDS rounds at this cost, or SLOW_MAKE_UP_ROUNDS, the average of all rounds
    returns to the problem's limit (integral control).  It stays within STEERED times that limit.
    """
    limit = problem.limit
    make_up = SLOW_MAKE_UP_ROUNDS if problem.capacity is None else MAKE_UP_ROUNDS
    wanted = limit + (limit * rounds - spent) / make_up
    least, most = (limit * factor for factor in STEERED)
    return float(min(max(wanted, least), most))


def is_due(live: LiveState, every: int, rounds: int) -> bool:
    """Return whether the policy is to be refreshed after this many rounds."""
    return rounds % every == 0 and rounds >= FEWEST_SEEN and rounds > live.refreshed


def refresh_live(
    problem: Problem,
    method: LiveMethod,
    live: LiveState,
    seen: Sequence[SeenRound],
    *,
    rounds: int,
    spent: float,
    seed: int,
) -> LiveState:
    """Return what the next policy is made from, after `rounds` rounds.

    Parameters
    ----------
    problem : its costs and limits are used, none of its probabilities
    seen : the latest rounds, in order: oracle state, arriving updates, would-be acceptance
    spent : sum so far of the cost that is limited
    seed : of the search
    """
    live = replace(live, refreshed=rounds)
    window, num_states = _select(live, seen, rounds), problem.oracle.num_states
    outdated = count_outdated(window, num_states)
    if outdated:
        live = replace(live, outdated=rounds - len(window) + outdated)
    if not isinstance(problem, FiniteHorizon):
        live = replace(live, limit=steer_limit(problem, rounds, spent))
    if method == "exact":
        return live
    fitted = fit_live(problem, live, seen, rounds=rounds)
    if fitted is None:
        return live
    return _search(fitted, live, make_generator(seed, Stream.POLICY, rounds))


def make_live_policy(
    problem: Problem, method: LiveMethod, live: LiveState, seen: Sequence[SeenRound], *, rounds: int
) -> Policy:
    """Return the policy in force after `rounds` rounds, the cautious one if nothing else is found.

    Parameters as in `refresh_live`; `seen` must begin early enough for the last refresh.
    """
    fitted = fit_live(problem, live, seen, rounds=rounds) if live.refreshed else None
    if fitted is None:
        return make_cautious_policy(problem)
    if method == "search":
        return _tabulate(fitted, live)
    try:
        return solve_exactly(fitted)
    except NoSolution:
        return make_cautious_policy(problem)


def _select(live: LiveState, seen: Sequence[SeenRound], rounds: int) -> Experience:
    """Return the rounds of the window at the last refresh."""
    before = rounds - len(seen)  # rounds that are no longer kept
    first = max(live.outdated, live.refreshed - WINDOW, before)
    states, arrivals, successes = zip(*seen[first - before : live.refreshed - before], strict=True)
    return Experience(np.array(states), np.array(arrivals), np.array(successes, dtype=bool))


def fit_live(
    problem: Problem, live: LiveState, seen: Sequence[SeenRound], *, rounds: int
) -> Problem | None:
    """Return the problem that the policy in force was made for, None if it is the cautious one.

    Parameters as in `make_live_policy`, after at least one refresh.
    """
    fitted = fit_window(problem, _select(live, seen, rounds))
    if fitted is None or isinstance(fitted, FiniteHorizon):
        return fitted
    return fitted.with_limit(live.limit)


def _search(problem: Problem, live: LiveState, generator: np.random.Generator) -> LiveState:
    """Continue the search for some iterations on a simulator of the problem."""
    from covertfl.solvers.spga.rules import extract_rules
    from covertfl.solvers.spga.search import SpgaSearch, simulate_source
    from covertfl.solvers.spga.settings import live_settings

    multiplier = live.multiplier if live.parameters else None
    settings = live_settings(problem, multiplier, iterations=LIVE_ITERATIONS)
    rules, parameters = extract_rules(problem), _shape(problem, live)
    search = SpgaSearch(rules, settings, generator=generator, parameters=parameters)
    search.iterate(simulate_source(problem, settings, generator=generator), LIVE_ITERATIONS)
    found = search.result()
    kept = tuple(found.parameters.ravel().tolist())
    return replace(live, parameters=kept, multiplier=found.multiplier)


def _shape(problem: Problem, live: LiveState) -> FloatArray | None:
    """Return the parameters by oracle state and arrival, None before the first search."""
    if not live.parameters:
        return None
    return np.array(live.parameters).reshape(3, problem.oracle.num_states, -1)


def _tabulate(problem: Problem, live: LiveState) -> Policy:
    from covertfl.solvers.spga.score import tabulate_parameters
    from covertfl.solvers.spga.settings import live_settings

    parameters = _shape(problem, live)
    assert parameters is not None  # a window that was fitted has been searched on
    temperature = live_settings(problem, None, iterations=LIVE_ITERATIONS).last_temperature
    return tabulate_parameters(problem, parameters, temperature)


def solve_exactly(problem: Problem) -> Policy:
    """Return the exact optimum of a problem; raise NoSolution if there is none."""
    if isinstance(problem, FiniteHorizon):
        from covertfl.solvers.backward_induction import solve_horizon

        return solve_horizon(problem).policy
    from covertfl.solvers.constrained import solve_queue

    return solve_queue(problem).policy
