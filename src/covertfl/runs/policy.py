"""The policy of a run: from its settings to the chance of learning, round by round.

With acceptance by data the problem is solved with the success chances that were measured for the
federation at hand; with acceptance by model, with the problem's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import (
    GreedyPolicy,
    HorizonTable,
    Observation,
    Policy,
    QueueTable,
    RandomPlacement,
)
from covertfl.decision.policy_file import read_policy
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.errors import InvalidInput
from covertfl.runs.run_file import PolicySection
from covertfl.seeding import Stream, draw_seed, make_generator
from covertfl.solvers.spga.experience import Experience

# Iterations of the search when it is repeated beside the training: it runs between two rounds.
LIVE_ITERATIONS = 200


@dataclass(frozen=True)
class ConstantPolicy:
    """Learn always, or never, whatever is owed."""

    learn: bool

    def learn_prob(self, observation: Observation) -> FloatArray:
        """1 or 0 everywhere."""
        shape = np.broadcast_shapes(
            np.shape(observation.oracle_state), np.shape(observation.backlog)
        )
        return np.full(shape, 1.0 if self.learn else 0.0)


@dataclass(frozen=True, eq=False)
class RunPolicy:
    """A policy and how its learning queries count.

    Parameters
    ----------
    policy : gives the chance of learning
    updates_unowed : an accepted learning query moves the model even if no update is owed
    takes_every_reply : a learning query counts whatever the acceptance says
    """

    policy: Policy
    updates_unowed: bool = False
    takes_every_reply: bool = False


def with_success(problem: Problem, success: FloatArray) -> Problem:
    """The problem with other success chances."""
    return replace(problem, oracle=Oracle(problem.oracle.transition, success))


def make_run_policy(section: PolicySection, problem: Problem, *, seed: int) -> RunPolicy:
    """Solve for the policy of a run.

    Parameters
    ----------
    problem : with the success chances that hold for the run
    seed : of the search, for spga
    """
    if section.kind == "file":
        return RunPolicy(_read_fitting_policy(str(section.path), problem))
    if section.kind == "spga":
        return RunPolicy(_search(problem, seed))
    return _MAKERS[section.kind](problem)


def _place_at_random(problem: Problem) -> RunPolicy:
    horizon = _require_horizon(problem, "random")
    placed = RandomPlacement(min(horizon.updates, horizon.rounds))
    return RunPolicy(placed, updates_unowed=True, takes_every_reply=True)


def _keep_minority(problem: Problem) -> RunPolicy:
    from covertfl.solvers.minority import solve_minority

    return RunPolicy(solve_minority(_require_horizon(problem, "minority")).policy)


_MAKERS: dict[str, Callable[[Problem], RunPolicy]] = {
    "optimal": lambda problem: RunPolicy(_solve(problem)),
    "minority": _keep_minority,
    "greedy": lambda _: RunPolicy(GreedyPolicy()),
    "random": _place_at_random,
    "always-learn": lambda _: RunPolicy(ConstantPolicy(True), updates_unowed=True),
    "always-obfuscate": lambda _: RunPolicy(ConstantPolicy(False)),
}


def _require_horizon(problem: Problem, kind: str) -> FiniteHorizon:
    if isinstance(problem, FiniteHorizon):
        return problem
    raise InvalidInput(f"[policy] kind = {kind} needs a problem with [horizon], got [queue]")


def _solve(problem: Problem) -> Policy:
    if isinstance(problem, FiniteHorizon):
        from covertfl.solvers.backward_induction import solve_horizon

        return solve_horizon(problem).policy
    from covertfl.solvers.constrained import solve_queue

    return solve_queue(problem).policy


def _search(problem: Problem, seed: int) -> Policy:
    """The structured policy gradient on a simulator of the problem."""
    from covertfl.solvers.spga.score import tabulate_run
    from covertfl.solvers.spga.search import solve_spga
    from covertfl.solvers.spga.settings import default_settings, horizon_settings

    if isinstance(problem, FiniteHorizon):
        settings = horizon_settings(problem)
    else:
        settings = default_settings(problem)
    run = solve_spga(problem, settings, seed=draw_seed(seed, Stream.POLICY))[0]
    return tabulate_run(problem, run)


def refresh_policy(problem: Problem, seen: Sequence[tuple[int, int, bool]], *, seed: int) -> Policy:
    """The structured policy gradient on the rounds seen so far, and nothing else.

    It starts anew from them each time, so that a resumed run finds the same policy.

    Parameters
    ----------
    seen : oracle state, updates that arrived and would-be success of each round
    """
    from covertfl.solvers.spga.score import tabulate_run
    from covertfl.solvers.spga.search import search_recorded

    states, arrivals, successes = zip(*seen, strict=True)
    recorded = Experience(np.array(states), np.array(arrivals), np.array(successes, dtype=bool))
    generator = make_generator(seed, Stream.POLICY, len(seen))
    run = search_recorded(problem, recorded, iterations=LIVE_ITERATIONS, generator=generator)
    return tabulate_run(problem, run)


def _read_fitting_policy(path: str, problem: Problem) -> Policy:
    """A policy file, if it is for a problem like this one."""
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
    if isinstance(problem, FiniteHorizon):
        _require_size(path, policy.table.shape, problem)
    return policy


def _require_size(path: str, shape: tuple[int, ...], problem: FiniteHorizon) -> None:
    if shape[2] < problem.updates + 1:
        raise InvalidInput(
            f"{path}: the policy must reach a backlog of {problem.updates}, got {shape[2] - 1}"
        )
