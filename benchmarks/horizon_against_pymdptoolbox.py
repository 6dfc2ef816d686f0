"""The finite horizon, equation (7): backward induction and the whole plan against pymdptoolbox."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from measurement import Timing, format_ratio, load_peer, time_repeats
from reference_problem import make_horizon
from scipy import sparse
from section import Check, Section

from covertfl import FiniteHorizon
from covertfl.arrays import FloatArray
from covertfl.planning.horizon import HorizonPlan, plan_horizon
from covertfl.solvers.backward_induction import solve_horizon

SIZES, QUICK_SIZES = ((45, 16), (10_000, 1_000)), ((45, 16),)
PLANNED_SIZES = ((45, 16), (200, 40))
SEED = 1
AGREEMENT = 1e-9
# States above which the dense matrices of pymdptoolbox are not tried.
MOST_DENSE_STATES = 500


def build_transitions(problem: FiniteHorizon) -> list[Any]:
    """Build the transition matrices of both actions, states ordered [oracle][backlog]."""
    levels = problem.updates + 1
    backlog = np.arange(levels)
    stay = sparse.identity(levels, format="csr")
    fall = sparse.csr_matrix(
        (np.ones(levels), (backlog, np.maximum(backlog - 1, 0))), shape=(levels, levels)
    )
    probs = problem.oracle.transition
    learn = [
        [prob * ((1.0 - g) * stay + g * fall) for prob in row]
        for g, row in zip(problem.oracle.success, probs, strict=True)
    ]
    return [sparse.kron(probs, stay, format="csr"), sparse.bmat(learn, format="csr")]


def make_peer(problem: FiniteHorizon, *, dense: bool) -> Any:
    """Build the same problem for pymdptoolbox.

    It needs every action in every state.  Learning at backlog 0 has a cost and no effect, so it is
    never chosen.
    """
    transitions: Any = build_transitions(problem)
    if dense:
        transitions = np.array([matrix.toarray() for matrix in transitions])
    levels, num_oracle = problem.updates + 1, problem.oracle.num_states
    rewards = np.zeros((num_oracle * levels, 2))
    rewards[:, 1] = -np.repeat(problem.privacy_cost, levels)
    terminal = -np.tile(problem.terminal_cost(), num_oracle)
    toolbox = load_peer("mdptoolbox.mdp", "pymdptoolbox")
    # It warns about a discount of 1, which is harmless in a finite horizon.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return toolbox.FiniteHorizon(transitions, rewards, 1.0, problem.rounds, h=terminal)


def time_peer(
    problem: FiniteHorizon, *, dense: bool, repeats: int
) -> tuple[FloatArray, FloatArray, Timing]:
    """Return values [n][oracle][backlog], actions [n - 1][oracle][backlog] and the times."""
    seconds = []
    for _ in range(repeats):
        peer = make_peer(problem, dense=dense)
        started = time.perf_counter()
        peer.run()
        seconds.append(time.perf_counter() - started)
    shape = (-1, problem.oracle.num_states, problem.updates + 1)
    values, actions = -peer.V.T[::-1], peer.policy.T[::-1]
    return values.reshape(shape), actions.reshape(shape), Timing(tuple(seconds))


class Row(NamedTuple):
    """Timings of one size: of covertfl, of pymdptoolbox, and by how much their values differ."""

    rounds: int
    updates: int
    ours: Timing
    peer: Timing
    difference: float

    @property
    def label(self) -> str:
        """Return the size in words."""
        return f"N = {self.rounds:,}, M = {self.updates:,}"

    @property
    def ratio(self) -> float:
        """Return the time of pymdptoolbox divided by covertfl's."""
        return self.peer.best / self.ours.best


class Solved(NamedTuple):
    """A size that both solved.

    Parameters
    ----------
    row : with the time of covertfl for the same output, the values of all rounds
    ours : its time for the policy alone
    matrices : dense or sparse, what pymdptoolbox was given
    share_that_differs : of the actions
    """

    row: Row
    ours: Timing
    matrices: str
    share_that_differs: float


def measure_size(rounds: int, updates: int, *, repeats: int) -> Solved:
    """Solve one size with both; the peer uses dense or sparse matrices, whichever is faster."""
    problem = make_horizon(rounds, updates)
    _, ours = time_repeats(lambda: solve_horizon(problem), repeats=repeats)
    solution, with_values = time_repeats(
        lambda: solve_horizon(problem, keep_values=True), repeats=repeats
    )
    assert solution.values is not None
    kinds = [False]
    if problem.oracle.num_states * (updates + 1) <= MOST_DENSE_STATES:
        kinds.append(True)
    timed = {dense: time_peer(problem, dense=dense, repeats=repeats) for dense in kinds}
    dense, (values, actions, peer) = min(timed.items(), key=lambda item: item[1][2].best)
    difference = float(np.max(np.abs(values - solution.values)) / np.max(solution.values))
    return Solved(
        Row(rounds, updates, with_values, peer, difference),
        ours,
        "dense" if dense else "sparse",
        float(np.mean(actions != solution.learn)),
    )


def measure(*, quick: bool) -> Section:
    """Measure the solvers."""
    load_peer("mdptoolbox.mdp", "pymdptoolbox")
    found = [
        measure_size(rounds, updates, repeats=50 if updates < 100 else 3)
        for rounds, updates in (QUICK_SIZES if quick else SIZES)
    ]
    rows = [each.row for each in found]
    return Section(
        "Finite horizon: backward induction against pymdptoolbox",
        ("size", "covertfl", "keeping all values", "pymdptoolbox", "its matrices",
         "values differ by", "actions differ in", "ratio"),
        tuple(
            (row.label, str(each.ours), str(row.ours), str(row.peer), each.matrices,
             f"{row.difference:.0e}", f"{each.share_that_differs:.0%}", format_ratio(row.ratio))
            for row, each in zip(rows, found, strict=True)
        ),
        (
            check_agreement("all values agree", rows),
            Check(
                "at the size of the main experiment the policies are identical",
                found[0].share_that_differs == 0.0,
            ),
            *(Check(f"{row.label}: faster than pymdptoolbox ({format_ratio(row.ratio)})",
                    row.ratio > 1.0) for row in rows),
        ),
        {row.label: row.ratio for row in rows},
        is_guarded=True,
    )  # fmt: skip


def check_agreement(what: str, rows: Sequence[Row]) -> Check:
    """Return whether all values agree."""
    worst = max(row.difference for row in rows)
    return Check(f"{what} to {AGREEMENT:g} (largest difference {worst:.0e})", worst <= AGREEMENT)


def measure_plan(rounds: int, updates: int) -> Row:
    """Plan one size, and let pymdptoolbox solve it."""
    problem = make_horizon(rounds, updates)

    def plan() -> HorizonPlan:
        return plan_horizon(problem, generator=np.random.default_rng(SEED))

    planned, ours = time_repeats(plan, repeats=3)
    values, _, peer = time_peer(problem, dense=True, repeats=30)
    found = planned.solution.final_value
    difference = float(np.max(np.abs(values[-1] - found)) / np.max(found))
    return Row(rounds, updates, ours, peer, difference)


def measure_plans(*, quick: bool) -> Section:
    """Measure whole plans, in units of what pymdptoolbox needs for the solution alone."""
    load_peer("mdptoolbox.mdp", "pymdptoolbox")
    rows = [measure_plan(*size) for size in (QUICK_SIZES if quick else PLANNED_SIZES)]
    return Section(
        "Planner: the plan of a finite horizon",
        ("size", "covertfl's plan", "pymdptoolbox's solution", "values differ by", "ratio"),
        tuple(
            (row.label, str(row.ours), str(row.peer), f"{row.difference:.0e}",
             format_ratio(row.ratio))
            for row in rows
        ),
        (check_agreement("the costs agree", rows),),
        {row.label: row.ratio for row in rows},
        is_guarded=True,
    )  # fmt: skip
