"""Evaluation of stationary policies of a queue, exactly and by simulation.

The exact evaluation solves the chain; the simulation samples rounds one by one from the dynamics
(8) and shares no code with it, so that each checks the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import describe_shape, read_count, require_type
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import (
    Observation,
    Policy,
    QueueTable,
    require_policy,
    tabulate_for_queue,
)
from covertfl.decision.problem import Action, QueueProblem, expected_lost
from covertfl.errors import InvalidInput, SplitChain
from covertfl.evaluation.chain import (
    NEGLIGIBLE,
    ChainSolution,
    find_class_distributions,
    mean_costs,
    solve_chain,
)

# Averages that take more rounds than this to settle belong to no start state.
SLOWEST_SETTLING = 1e9


@dataclass(frozen=True, eq=False)
class QueueEvaluation:
    """Long-run averages of a round under a policy, which do not depend on the start.

    Parameters
    ----------
    privacy_cost, learning_cost : average costs of a round, the two averages of equation (9)
    learn_fraction : share of rounds that send a learning query
    full_prob : share of rounds that begin with a full queue
    lost_per_round : updates lost in a round
    mean_backlog : average backlog at the beginning of a round
    mass : (W, A, capacity + 1) stationary distribution of (oracle, arrival, backlog)
    settling_rounds : rounds after which the average so far, from an empty queue or a typical state,
        is within one percent of the long-run average
    """

    privacy_cost: float
    learning_cost: float
    learn_fraction: float
    full_prob: float
    lost_per_round: float
    mean_backlog: float
    mass: FloatArray
    settling_rounds: float


def split_costs(problem: QueueProblem, evaluation: QueueEvaluation) -> tuple[float, float]:
    """Return the minimised and the constrained average of equation (9)."""
    costs = evaluation.privacy_cost, evaluation.learning_cost
    return costs if problem.objective == "privacy" else (costs[1], costs[0])


def evaluate_queue_policy(problem: QueueProblem, policy: Policy) -> QueueEvaluation:
    """Compute the long-run averages of a stationary policy exactly.

    Parameters
    ----------
    problem : with a numeric capacity
    policy : any policy that depends on oracle state, arrival and backlog only

    Raises
    ------
    SplitChain
        if the policy has several closed classes, naming the averages of each
    """
    require_type(problem, QueueProblem, "problem")
    table = policy if isinstance(policy, QueueTable) else tabulate_for_queue(policy, problem)
    learn = np.array(table.table)
    if learn.shape != problem.table_shape:
        raise InvalidInput(
            f"learn_prob must be {' x '.join(map(str, problem.table_shape))} "
            f"(oracle x arrival x backlog) for this problem, got {describe_shape(learn)}"
        )
    chain = solve_chain(problem, learn)
    if len(chain.roots) > 1:
        raise SplitChain(_describe_split(problem, learn))
    mass = np.einsum("yo,e->oey", chain.mass, problem.arrival_probs)
    lost = learn * expected_lost(problem, Action.LEARN)
    lost += (1.0 - learn) * expected_lost(problem, Action.OBFUSCATE)
    return QueueEvaluation(
        privacy_cost=float(chain.averages[0]),
        learning_cost=float(chain.averages[1]),
        learn_fraction=float(np.sum(mass * learn)),
        full_prob=float(chain.mass[-1].sum()),
        lost_per_round=float(np.sum(mass * lost)),
        mean_backlog=float(np.arange(problem.num_levels) @ chain.mass.sum(axis=1)),
        mass=mass,
        settling_rounds=_settling_rounds(chain, mean_costs(problem, learn).max(axis=(0, 1))),
    )


def require_settling(evaluation: QueueEvaluation) -> None:
    """Raise `SplitChain` if the averages would not settle in any reasonable number of rounds."""
    if evaluation.settling_rounds > SLOWEST_SETTLING:
        raise SplitChain(
            "the optimum mixes two ways of running the queue that alternate less than once in "
            f"{SLOWEST_SETTLING:.0e} rounds, so its average belongs to no start state; "
            "raise overflow_cost or full_cost, or use a cost that grows with the backlog"
        )


def _settling_rounds(chain: ChainSolution, largest_costs: FloatArray) -> float:
    """Return the rounds until an average settles: from state s, T rounds are off by h(s) / T.

    The relative value h is taken relative to its mean, at an empty queue and on average over the
    stationary distribution.  An average below a thousandth of the largest cost of a round is
    replaced by that thousandth.
    """
    h = chain.values - np.sum(chain.values * chain.mass, axis=(1, 2), keepdims=True)
    from_empty = np.abs(h[:, 0]).max(axis=1)
    from_typical = np.sum(np.abs(h) * chain.mass, axis=(1, 2))
    scale = 0.01 * np.maximum(chain.averages, 1e-3 * largest_costs)
    positive = scale > 0.0
    off = np.maximum(from_empty, from_typical)[positive]
    return float(np.max(off / scale[positive], initial=0.0))


def _describe_split(problem: QueueProblem, learn: FloatArray) -> str:
    costs = mean_costs(problem, learn)
    distributions = find_class_distributions(problem, learn)
    parts = []
    for distribution in distributions:
        levels = np.flatnonzero(distribution.sum(axis=1) > NEGLIGIBLE)
        privacy, learning = np.einsum("yo,yoc->c", distribution, costs)
        parts.append(
            f"backlog {levels[0]}..{levels[-1]} (privacy {privacy:.4g}, learning {learning:.4g})"
        )
    return (
        f"the policy splits the queue into {len(distributions)} closed classes, "
        f"{'; '.join(parts)}: no long-run average holds from every start"
    )


@dataclass(frozen=True, eq=False)
class QueueSample:
    """Averages over simulated rounds, (runs,) each; `QueueEvaluation` describes them."""

    privacy_cost: FloatArray
    learning_cost: FloatArray
    learn_fraction: FloatArray
    full_prob: FloatArray
    lost_per_round: FloatArray
    mean_backlog: FloatArray


def simulate_queue_policy(
    problem: QueueProblem,
    policy: Policy,
    *,
    rounds: int,
    runs: int,
    generator: np.random.Generator,
    burn_in: int = 0,
    backlog: int = 0,
) -> QueueSample:
    """Simulate a policy round by round, following equation (8) and the costs literally.

    Parameters
    ----------
    rounds : number of rounds that are averaged over
    runs : number of independent runs, simulated side by side
    generator : source of all randomness
    burn_in : number of rounds dropped at the start
    backlog : first backlog; the first oracle state is stationary
    """
    require_type(problem, QueueProblem, "problem")
    require_policy(policy)
    require_type(generator, np.random.Generator, "generator")
    for name, count, least in (("rounds", rounds, 1), ("runs", runs, 1), ("burn_in", burn_in, 0)):
        read_count(count, name, least=least)
    if read_count(backlog, "backlog", least=0) >= problem.num_levels:
        raise InvalidInput(f"backlog must lie in 0..{problem.num_levels - 1}, got {backlog}")
    capacity = problem.num_levels - 1
    cumulative = np.cumsum(problem.oracle.transition, axis=1)
    o = generator.choice(
        problem.oracle.num_states, size=runs, p=compute_stationary_distribution(problem.oracle)
    )
    y = np.full(runs, backlog)
    totals = np.zeros((6, runs))
    for step in range(burn_in + rounds):
        e = problem.draw_arrivals(generator.random(runs))
        learn_prob = np.where(y > 0, policy.learn_prob(Observation(o, y, e)), 0.0)
        learn = generator.random(runs) < learn_prob
        served = learn & (generator.random(runs) < problem.oracle.success[o])
        arrived = y + problem.arrival_support[e] - served
        lost = np.maximum(arrived - capacity, 0)
        if step >= burn_in:
            privacy = np.where(learn, problem.privacy_cost[o], 0.0)
            learning = _charge_learning(problem, o, y, learn, lost)
            totals += np.stack([privacy, learning, learn, y == capacity, lost, y])
        y = np.minimum(arrived, capacity)
        draws = generator.random(runs)[:, None]
        o = np.minimum((cumulative[o] <= draws).sum(axis=1), problem.oracle.num_states - 1)
    return QueueSample(*(totals / rounds))


def _charge_learning(
    problem: QueueProblem,
    oracle_state: IntArray,
    backlog: IntArray,
    learn: BoolArray,
    lost: IntArray,
) -> FloatArray:
    """Return the learning cost of one simulated round in each run."""
    held = problem.backlog_cost(oracle_state, backlog)
    if problem.learning_cost.charged == "when-obfuscating":
        held = np.where(learn, 0.0, held)
    full = ~learn & (backlog == problem.num_levels - 1)
    cost = held + problem.full_cost * full + (problem.overflow_cost or 0.0) * lost
    return np.asarray(cost, dtype=np.float64)
