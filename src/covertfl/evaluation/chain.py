"""The Markov chain of a queue under a fixed policy, solved exactly in linear time.

Whether new updates arrive is an independent draw in every round, so the chain of (o, y, e) is
determined by that of (o, y): its stationary mass is that of (o, y) times the probability of e, and
its relative values follow from w(o, y) = E[value of (o, y, e)].  Ordered by backlog and then by
oracle state (position y * W + o), the transition matrix of (o, y) is banded: the backlog falls by
at most one and rises by at most the largest arrival.

The chain is solved by censoring its states one by one, from both ends towards a pivot (after
Grassmann, Taksar and Heyman): each elimination adds and multiplies nonnegative numbers only, stays
inside the band, and yields the stationary distribution with full relative accuracy however small a
mass is.  Carrying costs and durations along yields the relative values as well.  A state from which
none of the remaining states can be reached is the root of a closed class; a second root means that
the long-run average depends on the start.  The inner loops are in `_chain.c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.problem import Action, QueueProblem, round_learning_cost
from covertfl.evaluation import _chain

# States with less than this share of their class's mass are left out of the class.
NEGLIGIBLE = 1e-15
# A root visited less often than this, relative to the busiest state, is a bad origin for values.
RARE = 1e-4
PRIVACY, LEARNING = 0, 1


@dataclass(frozen=True, eq=False)
class ChainSolution:
    """Averages, stationary distribution and relative values of the chain under one policy.

    Parameters
    ----------
    averages : (2,) average privacy and learning cost of a round
    mass : (capacity + 1, W) stationary distribution of (backlog, oracle state)
    values : (2, capacity + 1, W) relative values w of each cost, 0 at the root
    roots : positions y * W + o of one state in each closed class
    """

    averages: FloatArray
    mass: FloatArray
    values: FloatArray
    roots: IntArray


def mean_costs(problem: QueueProblem, learn: FloatArray) -> FloatArray:
    """Return the expected privacy and learning cost of a round, (capacity + 1, W, 2)."""
    learning = learn * round_learning_cost(problem, Action.LEARN)
    learning += (1.0 - learn) * round_learning_cost(problem, Action.OBFUSCATE)
    privacy = learn * problem.privacy_cost[:, None, None]
    costs = [np.einsum("e,oey->yo", problem.arrival_probs, cost) for cost in (privacy, learning)]
    return np.stack(costs, axis=-1)


class Workspace:
    """Memory for the band, reused from one evaluation to the next.

    Allocating memory of this size takes as much time as the elimination itself.
    """

    def __init__(self) -> None:
        self._band = np.empty((0, 0))

    def band(self, rows: int, width: int) -> FloatArray:
        """Return an uninitialised array of this shape; the previous one must no longer be used."""
        if self._band.shape != (rows, width):
            self._band = np.empty((rows, width))
        return self._band


@dataclass(frozen=True, eq=False)
class _CensoredChain:
    """A chain after elimination, with all that the substitutions need."""

    band: FloatArray
    below: int
    costs: FloatArray
    totals: FloatArray
    leaving: FloatArray
    roots: IntArray
    pivot: int

    def mass(self, root: int) -> FloatArray:
        """Return the stationary distribution of the closed class of a root."""
        num, width = self.band.shape
        distribution = np.empty(num)
        _chain.find_mass(
            self.band, self.leaving, distribution, num, width, self.below, root, self.pivot
        )
        return distribution

    def values(self, averages: FloatArray) -> FloatArray:
        """Return the relative values of both costs, (2, number of states)."""
        num, width = self.band.shape
        values = np.empty((2, num))
        _chain.find_values(
            self.band,
            self.totals,
            self.leaving,
            np.ascontiguousarray(averages),
            values,
            num,
            width,
            self.below,
            len(values),
            self.pivot,
        )
        return values


def _censor(
    problem: QueueProblem, learn: FloatArray, *, workspace: Workspace, pivot: int = 0
) -> _CensoredChain:
    num_oracle, _, num_levels = problem.table_shape
    num, below = num_oracle * num_levels, 2 * num_oracle - 1
    above = min(problem.largest_arrival, num_levels - 1) * num_oracle + num_oracle - 1
    width = below + above + 1
    band = workspace.band(num, width)
    _chain.fill(
        problem.oracle.transition,
        problem.oracle.success,
        np.ascontiguousarray(learn, dtype=np.float64),
        # Larger arrivals fill the queue, and may overflow.
        np.minimum(problem.arrival_support, num_levels),
        problem.arrival_probs,
        band,
        num_oracle,
        num_levels,
        below,
        width,
        1.0,  # no probability of stopping
    )
    costs = mean_costs(problem, learn).reshape(num, 2)
    totals = np.column_stack([np.ones(num), costs])
    leaving, roots = np.empty(num), np.empty(num, dtype=np.int64)
    absorbed = np.zeros(num)
    num_roots = _chain.censor(
        band, absorbed, totals, leaving, roots, num, width, below, totals.shape[1], pivot
    )
    return _CensoredChain(band, below, costs, totals, leaving, roots[:num_roots], pivot)


def solve_chain(
    problem: QueueProblem, learn: FloatArray, *, pivot: int = 0, workspace: Workspace | None = None
) -> ChainSolution:
    """Compute averages, stationary distribution and relative values of a stationary policy.

    With several closed classes only `roots` is meaningful; the caller decides what to do.

    Parameters
    ----------
    problem : with a numeric capacity
    learn : (W, A, capacity + 1) probability of learning, 0 at backlog 0
    pivot : position y * W + o of a state that is often visited, if one is known.  The stationary
        distribution is accurate for any pivot; the relative values are not if the chain rarely
        visits it, so a bad pivot is replaced by the most visited state.
    workspace : memory to reuse when many policies are evaluated
    """
    num_oracle, _, num_levels = problem.table_shape
    workspace = workspace or Workspace()
    censored = _censor(problem, learn, workspace=workspace, pivot=pivot)
    if len(censored.roots) > 1:
        censored = _join_roots(problem, learn, censored, workspace)
    if len(censored.roots) > 1:
        nothing = np.zeros((num_levels, num_oracle))
        return ChainSolution(
            np.full(2, np.nan), nothing, np.zeros((2, *nothing.shape)), censored.roots
        )
    mass = censored.mass(censored.roots[0])
    busiest = int(np.argmax(mass))
    if mass[censored.roots[0]] < RARE * mass[busiest]:
        censored = _censor(problem, learn, workspace=workspace, pivot=busiest)
        mass = censored.mass(censored.roots[0])
    averages = mass @ censored.costs
    return ChainSolution(
        averages,
        mass.reshape(num_levels, num_oracle),
        censored.values(averages).reshape(2, num_levels, num_oracle),
        censored.roots,
    )


def _join_roots(
    problem: QueueProblem, learn: FloatArray, censored: _CensoredChain, workspace: Workspace
) -> _CensoredChain:
    """Eliminate again towards the busiest state of each class if several roots were found.

    Seen from outside, a class that is almost never left can hold more than one state that looks
    closed; seen from its busiest state it is one class, unless there really are several.
    """
    busiest = [int(np.argmax(censored.mass(int(root)))) for root in censored.roots]
    for pivot in busiest:
        inside = _censor(problem, learn, workspace=workspace, pivot=pivot)
        if len(inside.roots) == 1:
            return inside
    return censored


def find_class_distributions(problem: QueueProblem, learn: FloatArray) -> list[FloatArray]:
    """Return the stationary distribution (capacity + 1, W) of each closed class of a policy."""
    num_oracle, _, num_levels = problem.table_shape
    censored = _censor(problem, learn, workspace=Workspace())
    return [censored.mass(int(root)).reshape(num_levels, num_oracle) for root in censored.roots]


def find_closed_classes(problem: QueueProblem, learn: FloatArray) -> list[BoolArray]:
    """Find the closed classes of a policy, (capacity + 1, W) booleans for each.

    States with less than `NEGLIGIBLE` of their class's mass are left out: a chain that is only
    numerically split visits every state at some rate.
    """
    return [distribution > NEGLIGIBLE for distribution in find_class_distributions(problem, learn)]
