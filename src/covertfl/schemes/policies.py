"""The policies of the scheme `scheduled`: the section `[policy]` of a run file, and what it makes.

With acceptance by data, the problem is solved with the success probabilities measured for
the federation; with acceptance by model or by a log, with the problem's own.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

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
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput, NoSolution
from covertfl.files.text import Section, shorten
from covertfl.schemes.live import LiveMethod, make_cautious_policy, solve_exactly
from covertfl.seeding import Stream, draw_seed
from covertfl.tasks.task import Count

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
        return RunPolicy(make_cautious_policy(problem) if is_live else _search(problem, seed))
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


def _search(problem: Problem, seed: int) -> Policy:
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
