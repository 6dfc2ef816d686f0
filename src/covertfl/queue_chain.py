"""The Markov chain of a queue under a fixed policy, solved exactly in linear time.

Whether new updates arrive is an independent draw in every round, so the chain of (o, y, e) is
determined by that of (o, y): its stationary mass is that of (o, y) times the chance of e, and its
relative values follow from w(o, y) = E[value of (o, y, e)].  Ordered by backlog and then by oracle
state (position y * W + o), the transition matrix of (o, y) is banded: the backlog falls by at most
one and rises by at most `arrival_size`.

The chain is solved by censoring its states one by one, from both ends towards a pivot (after
Grassmann, Taksar and Heyman): each elimination adds and multiplies nonnegative numbers only, stays
inside the band, and gives the stationary law with full relative accuracy however small a mass is.
Carrying costs and durations along gives the relative values as well.  A state that cannot leave for
one of those that remain is the root of a closed class; a second root means that the long-run
average depends on the start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from covertfl.oracle import BoolArray, FloatArray, IntArray
from covertfl.problem import Action, QueueProblem, round_learning_cost

# A class of states that is left less than once in this many rounds counts as closed.
NEVER = 1e200
NEGLIGIBLE = 1e-15
# A root visited less often than this share of the busiest state is a bad origin for values.
RARE = 1e-4
PRIVACY, LEARNING = 0, 1


@dataclass(frozen=True, eq=False)
class ChainSolution:
    """Averages, stationary law and relative values of the chain under one policy.

    Parameters
    ----------
    averages : (2,) average privacy and learning cost of a round
    mass : (capacity + 1, W) stationary law of (backlog, oracle state)
    values : (2, capacity + 1, W) relative values w of either cost, 0 at the root
    roots : positions y * W + o of one state in each closed class
    """

    averages: FloatArray
    mass: FloatArray
    values: FloatArray
    roots: IntArray


@numba.njit(cache=True)
def _fill_band(transition, success, arrival_prob, arrival_size, learn, keep, below, band):  # type: ignore[no-untyped-def]
    """Write the transitions of (y, o) into band rows: column j of row i sits at j - i + below."""
    num_oracle, _, num_levels = learn.shape
    for y in range(num_levels):
        for o in range(num_oracle):
            row = y * num_oracle + o
            for e in range(2):
                weight = keep * (arrival_prob if e == 1 else 1.0 - arrival_prob)
                if weight == 0.0:
                    continue
                served = learn[o, e, y] * success[o]
                z = y + e * arrival_size
                stay = min(z, num_levels - 1)
                down = min(z - 1, num_levels - 1)
                for following in range(num_oracle):
                    chance = weight * transition[o, following]
                    if served < 1.0:
                        band[row, stay * num_oracle + following - row + below] += (
                            1.0 - served
                        ) * chance
                    if served > 0.0:
                        band[row, down * num_oracle + following - row + below] += served * chance


@numba.njit(cache=True)
def _censor_state(band, below, absorbed, totals, leaving, n, first, last):  # type: ignore[no-untyped-def]
    """Remove state n from the chain on the states first..last; False if it never leaves for them.

    `totals` holds duration and costs until the chain next visits a remaining state, `absorbed` the
    chance of ending in a closed class (or of stopping, with a discount) before that.
    """
    above = band.shape[1] - 1 - below
    left, right = max(first, n - below), min(last, n + above)
    out = absorbed[n]
    for j in range(left, right + 1):
        out += band[n, j - n + below]
    top, bottom = max(first, n - above), min(last, n + below)
    if out <= totals[n, 0] / NEVER:
        leaving[n] = 0.0
        for i in range(top, bottom + 1):
            absorbed[i] += band[i, n - i + below]
            band[i, n - i + below] = 0.0
        return False
    leaving[n] = out
    for i in range(top, bottom + 1):
        factor = band[i, n - i + below] / out
        if factor == 0.0:
            continue
        for j in range(left, right + 1):
            band[i, j - i + below] += factor * band[n, j - n + below]
        for k in range(totals.shape[1]):
            totals[i, k] += factor * totals[n, k]
        absorbed[i] += factor * absorbed[n]
    return True


@numba.njit(cache=True)
def _eliminate(band, below, absorbed, totals, leaving, roots, pivot):  # type: ignore[no-untyped-def]
    """Censor the states from both ends towards the pivot; returns the number of closed classes."""
    num_roots = 0
    for n in range(len(band) - 1, pivot, -1):
        if not _censor_state(band, below, absorbed, totals, leaving, n, 0, n - 1):
            roots[num_roots] = n
            num_roots += 1
    for n in range(pivot + 1):
        if not _censor_state(band, below, absorbed, totals, leaving, n, n + 1, pivot):
            roots[num_roots] = n
            num_roots += 1
    return num_roots


@numba.njit(cache=True)
def _stationary_mass(band, below, leaving, root, pivot):  # type: ignore[no-untyped-def]
    """Stationary law of the closed class of a root, by substitution away from the pivot."""
    num, width = band.shape
    above = width - 1 - below
    mass = np.zeros(num)
    mass[root] = 1.0
    total = 1.0
    for step in range(num):
        n = pivot - step if step <= pivot else step
        if n == root:
            continue
        flow = 0.0
        if n <= pivot:
            for i in range(n + 1, min(pivot, n + below) + 1):
                flow += mass[i] * band[i, n - i + below]
        else:
            for i in range(max(0, n - above), n):
                flow += mass[i] * band[i, n - i + below]
        if flow > 0.0:
            mass[n] = flow / leaving[n]
            total += mass[n]
            if total > 1e250:  # the root is hardly ever visited: keep the numbers in range
                mass /= total
                total = 1.0
    return mass / mass.sum()


@numba.njit(cache=True)
def _relative_values(band, below, totals, leaving, averages, pivot):  # type: ignore[no-untyped-def]
    """Relative values of each cost by substitution away from the pivot, 0 at a root."""
    num, width = band.shape
    above = width - 1 - below
    num_costs = len(averages)
    values = np.zeros((num_costs, num))
    for step in range(num):
        n = pivot - step if step <= pivot else step
        if leaving[n] == 0.0:
            continue
        first, last = (n + 1, min(pivot, n + above)) if n <= pivot else (max(0, n - below), n - 1)
        for k in range(num_costs):
            value = totals[n, 1 + k] - averages[k] * totals[n, 0]
            for j in range(first, last + 1):
                value += band[n, j - n + below] * values[k, j]
            values[k, n] = value / leaving[n]
    return values


def mean_costs(problem: QueueProblem, learn: FloatArray) -> FloatArray:
    """Expected privacy and learning cost of a round in (backlog, oracle state).

    Parameters
    ----------
    learn : (W, 2, capacity + 1) chance of learning

    Returns
    -------
    (capacity + 1, W, 2)
    """
    arrival_law = np.array([1.0 - problem.arrival_prob, problem.arrival_prob])
    learning = learn * round_learning_cost(problem, Action.LEARN) + (
        1.0 - learn
    ) * round_learning_cost(problem, Action.OBFUSCATE)
    privacy = learn * problem.privacy_cost[:, None, None]
    return np.stack(
        [np.einsum("e,oey->yo", arrival_law, cost) for cost in (privacy, learning)], axis=-1
    )


def _make_band(problem: QueueProblem, learn: FloatArray, keep: float) -> tuple[FloatArray, int]:
    num_oracle, _, num_levels = problem.table_shape
    below = 2 * num_oracle - 1
    above = min(problem.arrival_size, num_levels - 1) * num_oracle + num_oracle - 1
    band = np.zeros((num_levels * num_oracle, below + above + 1))
    _fill_band(
        problem.oracle.transition,
        problem.oracle.success,
        problem.arrival_prob,
        problem.arrival_size,
        learn,
        keep,
        below,
        band,
    )
    return band, below


@dataclass(frozen=True, eq=False)
class _CensoredChain:
    """What is left of a chain after elimination: all that the substitutions need."""

    band: FloatArray
    below: int
    costs: FloatArray
    totals: FloatArray
    leaving: FloatArray
    roots: IntArray
    pivot: int

    def mass(self, root: int) -> FloatArray:
        """Stationary law of the closed class of a root."""
        law = _stationary_mass(self.band, self.below, self.leaving, root, self.pivot)
        return np.asarray(law)

    def values(self, averages: FloatArray) -> FloatArray:
        """Relative values of both costs, (2, number of states)."""
        values = _relative_values(
            self.band, self.below, self.totals, self.leaving, averages, self.pivot
        )
        return np.asarray(values)


def _censor(
    problem: QueueProblem, learn: FloatArray, *, discount: float = 1.0, pivot: int = 0
) -> _CensoredChain:
    band, below = _make_band(problem, learn, discount)
    num = len(band)
    costs = mean_costs(problem, learn).reshape(num, 2)
    totals = np.column_stack([np.ones(num), costs])
    leaving, roots = np.empty(num), np.empty(num, dtype=np.int64)
    stopping = np.full(num, 1.0 - discount)
    num_roots = _eliminate(band, below, stopping, totals, leaving, roots, pivot)
    return _CensoredChain(band, below, costs, totals, leaving, roots[:num_roots], pivot)


def solve_chain(problem: QueueProblem, learn: FloatArray, *, pivot: int = 0) -> ChainSolution:
    """Averages, stationary law and relative values of a stationary policy.

    With several closed classes only `roots` is meaningful; the caller decides what to do.

    Parameters
    ----------
    problem : capacity in numbers
    learn : (W, 2, capacity + 1) chance of learning, 0 at backlog 0
    pivot : position y * W + o of a state that is often visited, where it is known.  The stationary
        law is accurate for any pivot; the relative values are not if the chain hardly ever
        comes by, so a bad pivot is replaced by the most visited state.
    """
    num_oracle, _, num_levels = problem.table_shape
    censored = _censor(problem, learn, pivot=pivot)
    if len(censored.roots) > 1:
        nothing = np.zeros((num_levels, num_oracle))
        return ChainSolution(
            np.full(2, np.nan), nothing, np.zeros((2, *nothing.shape)), censored.roots
        )
    mass = censored.mass(censored.roots[0])
    busiest = int(np.argmax(mass))
    if mass[censored.roots[0]] < RARE * mass[busiest]:
        censored = _censor(problem, learn, pivot=busiest)
        mass = censored.mass(censored.roots[0])
    averages = mass @ censored.costs
    return ChainSolution(
        averages,
        mass.reshape(num_levels, num_oracle),
        censored.values(averages).reshape(2, num_levels, num_oracle),
        censored.roots,
    )


def find_closed_classes(problem: QueueProblem, learn: FloatArray) -> list[BoolArray]:
    """The closed classes of a policy: sets of states that the chain never leaves.

    States with less than `NEGLIGIBLE` of their class's mass are left out: a chain that is only
    numerically split touches every state at some rate.

    Returns
    -------
    for each class (capacity + 1, W) booleans
    """
    num_oracle, _, num_levels = problem.table_shape
    censored = _censor(problem, learn)
    return [
        censored.mass(int(root)).reshape(num_levels, num_oracle) > NEGLIGIBLE
        for root in censored.roots
    ]


def solve_discounted_chain(problem: QueueProblem, learn: FloatArray, discount: float) -> FloatArray:
    """Discounted cost of a stationary policy from every state, equation (11).

    Costs of the first round are not discounted.

    Parameters
    ----------
    problem : capacity in numbers
    learn : (W, 2, capacity + 1) chance of learning, 0 at backlog 0
    discount : beta in (0, 1)

    Returns
    -------
    (2, capacity + 1, W) privacy and learning cost, before the arrival is known
    """
    num_oracle, _, num_levels = problem.table_shape
    values = _censor(problem, learn, discount=discount).values(np.zeros(2))
    return values.reshape(2, num_levels, num_oracle)
