"""What K exchangeable trajectories cost: rounds of a horizon, load of a queue (formula F12).

Each of the M updates takes an accepted round of every trajectory, and every round asks.  So the
updates are done once K M rounds have been accepted.  With A_n the rounds accepted among the first n
and o_n the oracle state after them,

    P(A_{n+1} = j, o_{n+1} = o') = sum_o P(o, o') [g(o) P(A_n = j - 1, o_n = o)
                                                   + (1 - g(o)) P(A_n = j, o_n = o)],

the first state stationary.  One trajectory, K = 1, is training without secrecy.  A queue takes
K times its load, and is stable if and only if that is below its service capacity (formula F6).
An eavesdropper that knows the scheme but has no data names the true trajectory with probability
1 / K (formula F4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.arguments import read_count
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.problem import FiniteHorizon
from covertfl.solvers.minority import find_first_rounds

TRAJECTORIES = (1, 2, 4, 8)
SECRECY = "2 replicas: an eavesdropper who knows the scheme but has no data is right half the time"
MEDIAN = 0.5
MAX_ROUNDS = 20_000  # longest horizon tried in the search for the rounds needed
MAX_WORK = 500_000_000  # array elements that one search may touch: a few seconds


@dataclass(frozen=True)
class HorizonPrice:
    """What K exchangeable trajectories cost in a finite horizon.

    Parameters
    ----------
    trajectories : K, at least 1
    completion : probability of K M accepted rounds within the problem's rounds
    median_rounds : rounds for a probability of one half, None if out of reach
    rounds_needed : rounds for a probability of 90, 95 and 99%, None if out of reach
    """

    trajectories: int
    completion: float
    median_rounds: int | None
    rounds_needed: dict[float, int | None]


@dataclass(frozen=True)
class HorizonPrices:
    """What exchangeable trajectories cost in a finite horizon, by their number (formula F12).

    Parameters
    ----------
    problem : the horizon
    prices : for K = 1, 2, 4 and 8
    minority_rounds : rounds of the policy `minority` for the same probabilities (formula F5)
    """

    problem: FiniteHorizon
    prices: tuple[HorizonPrice, ...]
    minority_rounds: dict[float, int | None]

    def against_no_secrecy(self, price: HorizonPrice) -> dict[float, float | None]:
        """Return the rounds needed divided by those of one trajectory, None if out of reach."""
        return _divide(price.rounds_needed, self.prices[0].rounds_needed)

    def against_minority(self, price: HorizonPrice) -> dict[float, float | None]:
        """Return the rounds needed divided by those of `minority`, None if out of reach."""
        return _divide(price.rounds_needed, self.minority_rounds)

    @property
    def advice(self) -> str:
        """One sentence on what two trajectories give and cost."""
        alone, pair = (price.rounds_needed[0.95] for price in self.prices[:2])
        is_one = self.problem.updates == 1
        task = "1 update with 95%" if is_one else f"{self.problem.updates} updates with 95%"
        if pair is None:
            instead = "" if alone is None else f"; without secrecy {alone} rounds are enough"
            return f"{SECRECY}; {task} {'is' if is_one else 'are'} out of reach{instead}."
        return f"{SECRECY}; {task} take{'s' * is_one} {pair} rounds instead of {alone}."


@dataclass(frozen=True)
class QueuePrice:
    """What K exchangeable trajectories cost in a queue.

    Parameters
    ----------
    trajectories : K, at least 1
    load : accepted rounds needed per round, K times the updates that arrive
    stable : whether that is below the service capacity (formula F6)
    """

    trajectories: int
    load: float
    stable: bool


@dataclass(frozen=True)
class QueuePrices:
    """What exchangeable trajectories cost in a queue, by their number (formula F12).

    Parameters
    ----------
    service_capacity : rounds accepted per round if every round asks
    prices : for K = 1, 2, 4 and 8
    """

    service_capacity: float
    prices: tuple[QueuePrice, ...]

    @property
    def most_trajectories(self) -> int | None:
        """Largest K of 1, 2, 4 and 8 that keeps the queue stable, None if none does."""
        return max((price.trajectories for price in self.prices if price.stable), default=None)

    @property
    def advice(self) -> str:
        """One sentence on what two trajectories give and cost."""
        alone, pair = self.prices[:2]
        where = "below" if pair.stable else "not below"
        return (
            f"{SECRECY}; {pair.load:.3g} accepted rounds are needed in a round instead of "
            f"{alone.load:.3g}, {where} the capacity of {self.service_capacity:.3g}: "
            f"{self._describe_stability()}."
        )

    def _describe_stability(self) -> str:
        most = self.most_trajectories
        if most is None:
            return "the queue is not stable even without secrecy"
        if most == 1:
            return "the queue is stable only without secrecy"
        return f"the queue is stable with up to {most} replicas"


def _divide(
    rounds: dict[float, int | None], others: dict[float, int | None]
) -> dict[float, float | None]:
    pairs = ((prob, rounds[prob], others[prob]) for prob in rounds)
    return {prob: None if not (n and other) else n / other for prob, n, other in pairs}


def price_horizon(
    problem: FiniteHorizon, minority_rounds: dict[float, int | None]
) -> HorizonPrices:
    """Return what exchangeable trajectories cost in a finite horizon (formula F12).

    The rounds of the policy `minority`, by probability of finishing, are what it is compared with.
    """
    probs = tuple(minority_rounds)
    prices = tuple(_price_trajectories(problem, number, probs) for number in TRAJECTORIES)
    return HorizonPrices(problem, prices, minority_rounds)


def _price_trajectories(
    problem: FiniteHorizon, trajectories: int, probs: tuple[float, ...]
) -> HorizonPrice:
    accepted = trajectories * problem.updates
    completion = accepted_by_rounds(problem.oracle, accepted, problem.rounds)[-1]
    needed = find_rounds_for_accepted(problem.oracle, accepted, (MEDIAN, *probs))
    return HorizonPrice(trajectories, float(completion), needed.pop(MEDIAN), needed)


def price_queue(load: float, service_capacity: float) -> QueuePrices:
    """Return what exchangeable trajectories cost in a queue (formula F12).

    Load and capacity are updates per round that arrive, and that can be done at most.
    """
    loads = [(number, number * load) for number in TRAJECTORIES]
    prices = tuple(QueuePrice(number, much, much < service_capacity) for number, much in loads)
    return QueuePrices(service_capacity, prices)


def accepted_by_rounds(oracle: Oracle, accepted: int, max_rounds: int) -> FloatArray:
    """Return the probability of a number of accepted rounds within n = 0 .. max_rounds (F12).

    The array is (max_rounds + 1,); `accepted` and `max_rounds` are at least 1.  The oracle must be
    irreducible; the first state has its stationary distribution.
    """
    read_count(max_rounds, "max_rounds")
    by_rounds = _iterate_accepted(oracle, accepted)
    return np.array([0.0, *(next(by_rounds) for _ in range(max_rounds))])


def find_rounds_for_accepted(
    oracle: Oracle, accepted: int, probs: tuple[float, ...]
) -> dict[float, int | None]:
    """Find the fewest rounds that bring a number of accepted ones with given probabilities (F12).

    Returns the rounds by probability, each in (0, 1), and None where the longest search does not
    reach it.  The oracle is as in `accepted_by_rounds`.
    """
    last = min(MAX_ROUNDS, MAX_WORK // (oracle.num_states * read_count(accepted, "accepted")))
    mean = float(compute_stationary_distribution(oracle) @ oracle.success)
    # By Markov's inequality P(A_n >= a) is at most n mean / a: what is surely beyond the last round
    # is not searched for.
    within = [prob for prob in probs if 0.999 * prob * accepted <= last * mean]
    found = find_first_rounds(_iterate_accepted(oracle, accepted), within, last)
    return dict.fromkeys(probs) | found


def _iterate_accepted(oracle: Oracle, accepted: int) -> Iterator[float]:
    """Yield the probability that n rounds bring `accepted` ones, for n = 1, 2, ... (F12)."""
    read_count(accepted, "accepted")
    success = oracle.success[:, None]
    probs = np.zeros((oracle.num_states, accepted))  # by oracle state and rounds accepted so far
    probs[:, 0] = compute_stationary_distribution(oracle)
    reached = 0.0
    while True:
        gained = success * probs
        reached += float(gained[:, -1].sum())
        probs = probs - gained
        probs[:, 1:] += gained[:, :-1]
        probs = oracle.transition.T @ probs
        yield min(reached, 1.0)
