"""The unconstrained problem at one multiplier, by policy iteration (equation (10)).

A round costs w_p * privacy + w_l * learning; equation (10) has w_p = 1 and w_l = lambda, and the
weights (0, 1) minimise the learning cost alone.  Each step evaluates the current policy exactly
with `evaluation.chain` and takes the better action in every state.  Where both are equally good, up
to the rounding of the evaluation, the action is kept while iterating; at the end such ties go to
obfuscating.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.problem import Action, QueueProblem, next_backlog, round_learning_cost
from covertfl.errors import SolverFailed, SplitChain
from covertfl.evaluation.chain import ChainSolution, Workspace, find_closed_classes, solve_chain

MAX_ITERATIONS = 300
# Two actions whose costs differ by less than this, relative to the numbers they were computed from,
# are equally good: the evaluation is accurate to about a hundredth of it.
TIE_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class ActionGap:
    """Cost of learning minus cost of obfuscating in every state, (W, A, capacity + 1).

    It is negative where learning is better; below `rounding` its sign is not significant.
    """

    gap: FloatArray
    rounding: FloatArray

    @property
    def is_tie(self) -> BoolArray:
        """States in which both actions are equally good."""
        return np.asarray(np.abs(self.gap) <= self.rounding)


@dataclass(frozen=True, eq=False)
class AverageCostSolution:
    """An optimal deterministic policy, (W, A, capacity + 1), at one pair of weights w_p and w_l.

    `chain` and `gap` belong to it; `iterations` counts the policies evaluated.
    """

    weights: tuple[float, float]
    learn: BoolArray
    chain: ChainSolution
    gap: ActionGap
    iterations: int

    @property
    def gain(self) -> float:
        """Average weighted cost of a round, J*(lambda)."""
        return float(np.dot(self.weights, self.chain.averages))


class TooMuchWork(SolverFailed):
    """More policies would have to be evaluated than are allowed."""


class QueueOperator:
    """The evaluation and the one-step look-ahead of a queue problem.

    It caches what does not depend on the policy, and counts the policies evaluated; beyond
    `most_policies` it raises `TooMuchWork`.
    """

    def __init__(self, problem: QueueProblem) -> None:
        self.problem = problem
        self.workspace = Workspace()
        self.policies = 0
        self.most_policies: float = np.inf

    def evaluate(self, learn: BoolArray | FloatArray, *, pivot: int = 0) -> ChainSolution:
        """Return averages, stationary distribution and relative values of a policy.

        It is (W, A, capacity + 1); for the pivot see `solve_chain`.
        """
        if self.policies >= self.most_policies:
            raise TooMuchWork(f"more than {self.policies} policies would have to be evaluated")
        self.policies += 1
        table = learn.astype(np.float64)
        return solve_chain(self.problem, table, pivot=pivot, workspace=self.workspace)

    @cached_property
    def _learning_cost_of_learning(self) -> FloatArray:
        learning, obfuscating = (
            round_learning_cost(self.problem, action) for action in (Action.LEARN, Action.OBFUSCATE)
        )
        return learning - obfuscating

    @cached_property
    def _next_backlogs(self) -> list[IntArray]:
        return [next_backlog(self.problem, served=served) for served in (True, False)]

    def compare_actions(
        self, values: FloatArray, averages: FloatArray, weights: tuple[float, float]
    ) -> ActionGap:
        """Return the cost of learning now minus that of obfuscating now, with `values` ahead.

        Parameters
        ----------
        values : (2, capacity + 1, W) relative values of privacy and learning cost
        averages : (2,) averages that the values are relative to
        weights : w_p, w_l
        """
        problem = self.problem
        ahead = problem.oracle.transition @ np.tensordot(weights, values, axes=1).T
        served, not_served = (ahead.take(backlog, axis=1) for backlog in self._next_backlogs)
        privacy = weights[0] * problem.privacy_cost[:, None, None]
        learning = weights[1] * self._learning_cost_of_learning
        g = problem.oracle.success[:, None, None]
        gap = privacy + learning + g * (served - not_served)
        # The values are sums of (cost - average), each rounded on the scale of the average.
        floor = 0.01 * np.dot(weights, averages)
        rounding = TIE_TOLERANCE * (
            floor + privacy + np.abs(learning) + g * (np.abs(served) + np.abs(not_served))
        )
        gap[:, :, 0] = np.inf  # learning is not admissible with nothing owed
        return ActionGap(gap, rounding)


def always_learn(problem: QueueProblem) -> BoolArray:
    """Return the policy that learns whenever an update is owed, which has the least backlog."""
    learn = np.ones(problem.table_shape, dtype=np.bool_)
    learn[:, :, 0] = False
    return learn


def never_learn(problem: QueueProblem) -> BoolArray:
    """Return the policy that never learns, which has the least privacy cost."""
    return np.zeros(problem.table_shape, dtype=np.bool_)


def solve_average_cost(
    operator: QueueOperator, weights: tuple[float, float], start: BoolArray
) -> AverageCostSolution:
    """Minimise the average weighted cost by policy iteration, equation (10).

    The weights w_p and w_l are at least 0, and `start` is the first policy.  Raises `SplitChain` if
    the optimal long-run average depends on the first state, or nearly so.
    """
    learn, chain = _evaluate(operator, start, weights, pivot=0)
    seen = {_fingerprint(learn)}
    while len(seen) <= MAX_ITERATIONS:
        gap = operator.compare_actions(chain.values, chain.averages, weights)
        better = _improve(learn, gap)
        # Each policy improves on the previous one, so if one recurs, the policies since then differ
        # by rounding only.
        if _fingerprint(better) in seen:
            break
        learn, chain = _evaluate(operator, better, weights, pivot=int(np.argmax(chain.mass)))
        if _fingerprint(learn) in seen:
            raise SplitChain(
                "better actions in some states cannot be joined to the rest of the queue: "
                "the best long-run average depends on the start"
            )
        seen.add(_fingerprint(learn))
    else:
        raise SplitChain(
            f"policy iteration did not converge in {MAX_ITERATIONS} steps: the queue can be run in "
            "ways that rarely meet and cost nearly the same, and the difference is below rounding"
        )
    return _prefer_obfuscating(operator, AverageCostSolution(weights, learn, chain, gap, len(seen)))


def _fingerprint(learn: BoolArray) -> bytes:
    return hashlib.blake2b(np.packbits(learn).tobytes(), digest_size=16).digest()


def _improve(learn: BoolArray, gap: ActionGap) -> BoolArray:
    better = np.where(gap.is_tie, learn, gap.gap < 0.0)
    better[:, :, 0] = False
    return np.asarray(better, dtype=np.bool_)


def _prefer_obfuscating(
    operator: QueueOperator, solution: AverageCostSolution
) -> AverageCostSolution:
    """Obfuscate where both actions are equally good, as long as the chain has one closed class."""
    learn = solution.learn & ~solution.gap.is_tie
    if np.array_equal(learn, solution.learn):
        return solution
    chain = operator.evaluate(learn)
    if len(chain.roots) > 1:
        return solution
    gap = operator.compare_actions(chain.values, chain.averages, solution.weights)
    candidate = AverageCostSolution(solution.weights, learn, chain, gap, solution.iterations + 1)
    slack = TIE_TOLERANCE * max(abs(solution.gain), 1.0)
    return candidate if candidate.gain <= solution.gain + slack else solution


def _evaluate(
    operator: QueueOperator, learn: BoolArray, weights: tuple[float, float], *, pivot: int
) -> tuple[BoolArray, ChainSolution]:
    """Evaluate a policy; if it splits the chain, lead it into its cheapest closed class first."""
    problem = operator.problem
    chain = operator.evaluate(learn, pivot=pivot)
    if len(chain.roots) == 1:
        return learn, chain
    classes = find_closed_classes(problem, learn.astype(np.float64))
    led = [lead_into(problem, learn, members) for members in classes]
    joined = [(policy, operator.evaluate(policy)) for policy in led]
    whole = [(policy, chain) for policy, chain in joined if len(chain.roots) == 1]
    if not whole:
        raise SplitChain(
            f"the best policy splits the queue into {len(chain.roots)} closed classes that cannot "
            "be joined, so no long-run average holds from every start"
        )
    return min(whole, key=lambda pair: float(np.dot(weights, pair[1].averages)))


def lead_into(problem: QueueProblem, learn: BoolArray, members: BoolArray) -> BoolArray:
    """Return the policy that keeps `learn` on a closed class and steers other states towards it.

    The states of the class are given as `members`, (capacity + 1, W) booleans.
    """
    above = np.arange(problem.num_levels) >= np.argmax(members.any(axis=1))
    steered = np.where(members.T[:, None, :], learn, above)
    steered[:, :, 0] = False
    return np.asarray(steered, dtype=np.bool_)
