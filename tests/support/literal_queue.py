"""A second version of the queue, written word for word from its definition with plain loops.

It uses nothing of the package but the numbers of a `QueueProblem`: every state (o, e, y) is listed,
every outcome of a round is followed, and averages come from one dense linear system.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

from covertfl.decision.problem import QueueProblem

FloatArray = npt.NDArray[np.float64]
State = tuple[int, int, int]
OBFUSCATE, LEARN = 0, 1


def list_arrivals(problem: QueueProblem) -> list[tuple[int, float]]:
    """Size and probability of every arrival, none first."""
    sizes = problem.arrival_sizes
    if sizes is None:
        assert problem.arrival_prob is not None and problem.arrival_size is not None
        sizes = {problem.arrival_size: problem.arrival_prob}
    return [(0, max(1.0 - sum(sizes.values()), 0.0)), *sorted(sizes.items())]


def list_states(problem: QueueProblem) -> list[State]:
    """All states (o, e, y)."""
    assert problem.capacity is not None
    return [
        (o, e, y)
        for o in range(len(problem.oracle.success))
        for e in range(len(list_arrivals(problem)))
        for y in range(problem.capacity + 1)
    ]


def held_cost(problem: QueueProblem, o: int, y: int) -> float:
    """l(y), times the factor of the oracle state."""
    cost = problem.learning_cost
    by_state = cost.by_state[o] if cost.by_state else 1.0
    if cost.shape == "table":
        return by_state * cost.values[y]
    factor = {
        "constant": 1.0 if y > 0 else 0.0,
        "linear": y,
        "quadratic": y**2,
        "triangular": y * (y + 1) / 2,
    }[cost.shape]
    return by_state * cost.scale * factor


def follow_round(
    problem: QueueProblem, state: State, action: int
) -> tuple[dict[State, float], float, float, float]:
    """Return the distribution of the next state, and expected costs and updates lost."""
    (o, e, y), arrivals = state, list_arrivals(problem)
    capacity, overflow_cost = problem.capacity, problem.overflow_cost
    assert capacity is not None and overflow_cost is not None
    privacy = float(problem.privacy_cost[o]) if action == LEARN else 0.0
    learning = 0.0
    if problem.learning_cost.charged == "always" or action == OBFUSCATE:
        learning += held_cost(problem, o, y)
    if action == OBFUSCATE and y == capacity:
        learning += problem.full_cost
    success = float(problem.oracle.success[o]) if action == LEARN and y > 0 else 0.0
    followers: dict[State, float] = {}
    lost_in_all = 0.0
    for s, prob in ((1, success), (0, 1.0 - success)):
        if prob == 0.0:
            continue
        wanted = y + arrivals[e][0] - s
        lost = max(wanted - capacity, 0)
        lost_in_all += prob * lost
        learning += prob * overflow_cost * lost
        for next_o, p in enumerate(problem.oracle.transition[o]):
            for next_e, (_, q) in enumerate(arrivals):
                follower = (next_o, next_e, min(wanted, capacity))
                followers[follower] = followers.get(follower, 0.0) + prob * float(p) * q
    return followers, privacy, learning, lost_in_all


@dataclass(frozen=True, eq=False)
class LiteralQueue:
    """Every transition and cost of a queue problem as dense arrays, n = number of states.

    moves : (2, n, n) transition probabilities by action; privacy, learning, lost : (2, n)
    """

    problem: QueueProblem
    states: list[State]
    moves: FloatArray
    privacy: FloatArray
    learning: FloatArray
    lost: FloatArray

    @classmethod
    def of(cls, problem: QueueProblem) -> LiteralQueue:
        """Follow every action in every state."""
        states = list_states(problem)
        place = {state: number for number, state in enumerate(states)}
        moves = np.zeros((2, len(states), len(states)))
        costs = np.zeros((3, 2, len(states)))
        for action in (OBFUSCATE, LEARN):
            for number, state in enumerate(states):
                followers, *round_costs = follow_round(problem, state, action)
                for follower, prob in followers.items():
                    moves[action, number, place[follower]] = prob
                costs[:, action, number] = round_costs
        return cls(problem, states, moves, *costs)

    def flatten(self, table: npt.ArrayLike) -> FloatArray:
        """A table [oracle][arrival][backlog] in the order of the states."""
        values = np.asarray(table, dtype=np.float64)
        return np.array([values[state] for state in self.states])

    def mix(self, learn: FloatArray, by_action: FloatArray) -> FloatArray:
        """Weigh what belongs to each action with the probability of the action."""
        weight = learn.reshape(-1, *(1,) * (by_action.ndim - 2))
        return np.asarray((1.0 - weight) * by_action[OBFUSCATE] + weight * by_action[LEARN])

    def evaluate(self, table: npt.ArrayLike) -> LiteralEvaluation:
        """Long-run averages of a policy with one closed class."""
        learn = self.flatten(table)
        distribution = solve_stationary_law(self.mix(learn, self.moves))
        backlog = np.array([y for _, _, y in self.states])
        return LiteralEvaluation(
            privacy_cost=float(distribution @ self.mix(learn, self.privacy)),
            learning_cost=float(distribution @ self.mix(learn, self.learning)),
            learn_fraction=float(distribution @ learn),
            full_prob=float(distribution @ (backlog == self.problem.capacity)),
            lost_per_round=float(distribution @ self.mix(learn, self.lost)),
            mean_backlog=float(distribution @ backlog),
            distribution=distribution,
        )

    def bound_below(self, table: npt.ArrayLike, weights: tuple[float, float]) -> float:
        """A proven lower bound on the average weighted cost of every policy.

        For any numbers h, no policy's average is below the least of cost(s, u) + E h(s') - h(s)
        over states and actions.  Here h are the relative values of the given policy, so that the
        bound equals its average if it is optimal everywhere; if it is not in states that it never
        visits, a few steps of policy improvement make the bound tight.
        """
        learn = self.flatten(table)
        costs = weights[0] * self.privacy + weights[1] * self.learning
        # An arrival state that never occurs is no state of the chain.
        arrivals = list_arrivals(self.problem)
        occurs = np.array([arrivals[e][1] > 0.0 for _, e, _ in self.states])
        owed = np.array([y > 0 for _, _, y in self.states])
        best = -np.inf
        for _ in range(10):
            chain = self.mix(learn, self.moves)
            if count_closed_classes(chain) > 1:
                break
            h = solve_relative_values(chain, self.mix(learn, costs))
            ahead = costs + self.moves @ h - h
            bound = float(min(ahead[OBFUSCATE][occurs].min(), ahead[LEARN][occurs & owed].min()))
            if bound <= best:
                break
            best = bound
            better = np.where(owed & (ahead[LEARN] < ahead[OBFUSCATE] - 1e-12), 1.0, 0.0)
            learn = np.where(np.abs(ahead[LEARN] - ahead[OBFUSCATE]) <= 1e-12, learn, better)
        return best


@dataclass(frozen=True, eq=False)
class EveryPolicy:
    """Averages of all deterministic policies that have one closed class.

    learn : (policies, n); privacy, learning : (policies,)
    """

    learn: FloatArray
    privacy: FloatArray
    learning: FloatArray

    @classmethod
    def of(cls, literal: LiteralQueue) -> EveryPolicy:
        """Try every choice in every state that owes something."""
        size = len(literal.states)
        free = [number for number, (_, _, y) in enumerate(literal.states) if y > 0]
        learn = np.zeros((2 ** len(free), size))
        learn[:, free] = (np.arange(len(learn))[:, None] >> np.arange(len(free))) & 1
        chains = np.where(learn[:, :, None] == 1.0, literal.moves[LEARN], literal.moves[OBFUSCATE])
        reach = (chains > 0.0) | np.eye(size, dtype=np.bool_)
        for _ in range(int(np.ceil(np.log2(size)))):
            reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0.0
        # One closed class: some state can be reached from everywhere.
        whole = reach.all(axis=1).any(axis=1)
        learn, chains = learn[whole], chains[whole]
        systems = np.swapaxes(np.eye(size) - chains, 1, 2).copy()
        systems[:, -1, :] = 1.0
        distributions = np.linalg.solve(systems, np.eye(size)[-1][:, None])[:, :, 0]
        averages = [
            np.sum(distributions * np.where(learn == 1.0, costs[LEARN], costs[OBFUSCATE]), axis=1)
            for costs in (literal.privacy, literal.learning)
        ]
        return cls(learn, *averages)


@dataclass(frozen=True, eq=False)
class LiteralEvaluation:
    """Long-run averages of a round."""

    privacy_cost: float
    learning_cost: float
    learn_fraction: float
    full_prob: float
    lost_per_round: float
    mean_backlog: float
    distribution: FloatArray


def count_closed_classes(chain: FloatArray) -> int:
    """Number of strongly connected sets of states that no move leaves."""
    num_sets, label = connected_components(chain > 0.0, directed=True, connection="strong")
    leaves = (chain > 0.0) & (label[:, None] != label)
    return int(num_sets) - len(set(label[leaves.any(axis=1)]))


def _leave_rates(chain: FloatArray) -> npt.NDArray[np.longdouble]:
    """I - P with the diagonal taken from the probabilities of leaving, which are accurate."""
    rates = -chain.astype(np.longdouble)
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def _solve_refined(
    matrix: npt.NDArray[np.longdouble], right: npt.NDArray[np.longdouble]
) -> FloatArray:
    """Solve a dense system; residuals in extended precision win back what a slow chain costs."""
    inverse = np.linalg.inv(matrix.astype(np.float64))
    solution = np.zeros(len(right), dtype=np.longdouble)
    for _ in range(6):
        solution += inverse @ (right - matrix @ solution).astype(np.float64)
    return solution.astype(np.float64)


def solve_stationary_law(chain: FloatArray) -> FloatArray:
    """The distribution pi with pi P = pi and sum 1: one balance is replaced by the sum."""
    system = _leave_rates(chain).T.copy()
    system[-1] = 1.0
    right = np.zeros(len(chain), dtype=np.longdouble)
    right[-1] = 1.0
    return _solve_refined(system, right)


def solve_relative_values(chain: FloatArray, costs: FloatArray) -> FloatArray:
    """h with h - P h + average = costs and mean 0 over the states."""
    size = len(chain)
    system = np.zeros((size + 1, size + 1), dtype=np.longdouble)
    system[:size, :size] = _leave_rates(chain)
    system[:size, size] = 1.0
    system[size, :size] = 1.0
    right = np.append(costs.astype(np.longdouble), np.longdouble(0.0))
    return _solve_refined(system, right)[:size]
