"""The policies of the scheme `scheduled`: the section `[policy]` of a run file, and what it makes.

With acceptance by data, the problem is solved with the success probabilities measured for
the federation; with acceptance by model or by a log, with the problem's own.

A policy may be refreshed during a run, from the rounds seen so far and nothing else.  It starts
cautiously, with the policy that costs the least of what is limited.  Every refresh drops the rounds
that are out of date, fits a problem to the others (`fitting.window`) and solves it exactly or
continues a search (Algorithm 1) on a simulator of it.  The limit is steered by what the run has
spent, so that the run keeps it and not only the fitted problem.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.policy import (
    GreedyPolicy,
    HorizonTable,
    Observation,
    Policy,
    QueueTable,
    RandomPlacement,
)
from covertfl.decision.policy_file import read_policy, read_policy_states
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput, NoSolution
from covertfl.files.text import Section, shorten
from covertfl.fitting.window import count_outdated, fit_window
from covertfl.schemes.scheme import SeenRound
from covertfl.seeding import Stream, draw_seed, make_generator
from covertfl.solvers.spga.experience import Experience
from covertfl.tasks.task import Count

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


PolicyKind = Literal[
    "optimal", "spga", "minority", "greedy", "random", "always-learn", "always-obfuscate", "file"
]


class PolicySection(Section):
    """`[policy]`: when to learn.

    With `refresh` the policy is made from the rounds seen so far, again after so many rounds.
    """

    kind: PolicyKind = "optimal"
    path: str | None = None
    refresh: Count | None = None
    live: LiveMethod | None = None

    @property
    def live_method(self) -> LiveMethod:
        """How a policy is refreshed."""
        return self.live or "exact"


def check_policy(section: PolicySection, problem: Problem | None, name: str) -> None:
    """Raise InvalidInput if keys of `[policy]` disagree with each other, or with the problem."""
    if section.kind == "file" and section.path is None:
        raise InvalidInput(f"{name}: [policy] kind = file needs path, a policy file")
    if section.kind != "file" and section.path is not None:
        raise InvalidInput(f"{name}: [policy] path needs kind = file, got kind = {section.kind}")
    if section.kind != "spga" and section.refresh is not None:
        raise InvalidInput(f"{name}: [policy] refresh needs kind = spga, got kind = {section.kind}")
    if section.refresh is None and section.live is not None:
        raise InvalidInput(f"{name}: [policy] live needs refresh, the rounds between two refreshes")
    is_queue = problem is not None and not isinstance(problem, FiniteHorizon)
    if is_queue and section.kind in ("random", "minority"):
        raise InvalidInput(
            f"{name}: [policy] kind = {section.kind} needs a problem with [horizon], got [queue]"
        )


@dataclass(frozen=True)
class ConstantPolicy:
    """A policy that learns with the same probability always, whatever the backlog."""

    learn: float

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability in the shape the observation broadcasts to."""
        shape = np.broadcast(observation.oracle_state, observation.backlog).shape
        return np.full(shape, float(self.learn))


@dataclass(frozen=True, eq=False)
class RunPolicy:
    """A policy, and which of its learning queries update the model.

    Parameters
    ----------
    updates_unowed : whether a learning query updates the model even if no update is owed
    takes_every_reply : whether a learning query updates the model even if it is not accepted
    """

    policy: Policy
    updates_unowed: bool = False
    takes_every_reply: bool = False


def make_run_policy(section: PolicySection, problem: Problem, *, seed: int) -> RunPolicy:
    """Return the policy of a run, solved for if necessary; `seed` is that of the search (spga)."""
    if section.kind == "file":
        return RunPolicy(_read_fitting_policy(str(section.path), problem))
    if section.kind == "spga":
        is_live = section.refresh is not None
        return RunPolicy(make_cautious_policy(problem) if is_live else search_policy(problem, seed))
    if section.kind == "optimal":
        return RunPolicy(solve_exactly(problem))
    if section.kind in ("random", "minority"):
        return _make_for_horizon(section.kind, problem)
    if section.kind == "greedy":
        return RunPolicy(GreedyPolicy())
    learns = section.kind == "always-learn"
    return RunPolicy(ConstantPolicy(learns), updates_unowed=learns)


def expect_policy(section: PolicySection, problem: Problem, made: RunPolicy) -> Policy:
    """Return the policy that whoever knows the problem expects of a run with this policy.

    One that is refreshed is expected to be the optimum that it approaches.
    """
    if section.refresh is not None:
        with contextlib.suppress(NoSolution):
            return solve_exactly(problem)
    return made.policy


def _make_for_horizon(kind: str, problem: Problem) -> RunPolicy:
    if not isinstance(problem, FiniteHorizon):
        raise InvalidInput(f"[policy] kind = {kind} needs a problem with [horizon], got [queue]")
    if kind == "random":
        placed = RandomPlacement(min(problem.updates, problem.rounds))
        return RunPolicy(placed, updates_unowed=True, takes_every_reply=True)
    from covertfl.solvers.minority import solve_minority

    return RunPolicy(solve_minority(problem).policy)


def search_policy(problem: Problem, seed: int) -> Policy:
    """Search with the structured policy gradient (Algorithm 1 of the paper) on a simulator."""
    from covertfl.solvers.spga.score import tabulate_run
    from covertfl.solvers.spga.search import solve_spga
    from covertfl.solvers.spga.settings import default_settings, horizon_settings

    if isinstance(problem, FiniteHorizon):
        settings = horizon_settings(problem)
    else:
        settings = default_settings(problem)
    run = solve_spga(problem, settings, seed=draw_seed(seed, Stream.POLICY))[0]
    return tabulate_run(problem, run)


def check_policy_states(section: PolicySection, states: OracleStates | None) -> None:
    """Raise InvalidInput if a policy file is for other states than a run's.

    A policy without states, such as a solved one, is for those of the problem that is named.
    """
    meant = None if section.path is None else read_policy_states(section.path)
    if meant is None:
        return
    if states is None or (meant.column, meant.cuts) != (states.column, states.cuts):
        came = "a problem that does not say what its states are"
        if states is not None:
            came = f"a problem with states by {states.column} cut at {shorten(list(states.cuts))}"
        raise InvalidInput(
            f"{section.path}: the policy is for states by {meant.column} cut at "
            f"{shorten(list(meant.cuts))}, got {came}: name the problem file of the same "
            "fit in problem"
        )


def _read_fitting_policy(path: str, problem: Problem) -> Policy:
    """Return the policy of a file; raise InvalidInput if it does not fit the problem."""
    policy = read_policy(path)
    expected = HorizonTable if isinstance(problem, FiniteHorizon) else QueueTable
    if not isinstance(policy, expected):
        wanted, came = ("horizon", "queue")[:: 1 if expected is HorizonTable else -1]
        raise InvalidInput(f"{path}: a policy for a {wanted} is needed, got one for a {came}")
    num_states = policy.table.shape[1 if isinstance(policy, HorizonTable) else 0]
    if num_states != problem.oracle.num_states:
        raise InvalidInput(
            f"{path}: the policy must be for {problem.oracle.num_states} oracle states, "
            f"got {num_states}"
        )
    if not isinstance(problem, FiniteHorizon):
        arrivals, came = len(problem.arrival_support), policy.table.shape[1]
        if came != arrivals:
            raise InvalidInput(
                f"{path}: the policy must be for {arrivals} arrival states, none and "
                f"{arrivals - 1} sizes, got {came}"
            )
        return policy
    most = policy.table.shape[2] - 1
    if most < problem.updates:
        raise InvalidInput(
            f"{path}: the policy must cover backlogs up to {problem.updates}, got {most}"
        )
    return policy
