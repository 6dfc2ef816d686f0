"""The oracle state of a round, who takes part in it with how much data, and if that is enough.

As in the paper's experiments, the oracle state determines the number of clients, and each client
contributes a uniformly random number of batches, from none to all it has.  A client that draws none
is absent, which is not an error.  A round is accepted by `data`, if the examples that arrive reach
a share of all examples, or by `model`, at random with the problem's success probability (deviation
D19 in docs/deviations.md).

States and attendance are drawn from the run's seed by round (`seeding`) and do not depend on the
actions, so that a simulated client and a simulated federation draw the same, also after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog, read_log
from covertfl.runs.settings import FederationSection, RunSettings
from covertfl.seeding import Stream, make_generator
from covertfl.tasks.task import TrainingTask

# Rounds drawn to measure a success probability: its standard error is at most 0.0012.
MEASURED_ROUNDS = 200_000
# The same if no policy is solved with it: the standard error is at most 0.0036.
REPORTED_ROUNDS = 20_000
# The measured probabilities belong to the federation, not to a run, so they have a fixed seed.
MEASURING_SEED = 20
# Success probabilities closer to 0 or 1 than this count as this close.
CERTAIN = 1e-9
# Draws made at a time, to limit the memory needed with many clients.
DRAWS_AT_A_TIME = 4_000_000


@dataclass(frozen=True, eq=False)
class Attendance:
    """The clients that a query is sent to.

    Parameters
    ----------
    clients : (k,) numbers of the clients, increasing
    batches : (k,) batches that each client trains on; 0 if it is absent
    """

    clients: IntArray
    batches: IntArray


def count_batches(sizes: IntArray, batch_size: int) -> IntArray:
    """Return the number of batches of clients with `sizes` examples.

    Examples that do not fill a batch are left over; a client with less than one batch has one short
    batch.
    """
    return np.where(sizes > 0, np.maximum(sizes // batch_size, 1), 0)


def count_examples(batches: IntArray, sizes: IntArray, batch_size: int) -> IntArray:
    """Return the number of examples in `batches` batches of clients with `sizes` examples."""
    return np.minimum(batches * batch_size, sizes)


def draw_attendance(
    sizes: IntArray, count: int, batch_size: int, *, generator: np.random.Generator
) -> Attendance:
    """Draw `count` clients and the batches of each, uniformly from none to all it has."""
    if count > len(sizes):
        raise InvalidInput(f"participation must be at most {len(sizes)} clients, got {count}")
    clients = np.sort(generator.permutation(len(sizes))[:count])
    most = count_batches(sizes[clients], batch_size)
    return Attendance(clients, generator.integers(0, most + 1))


def accepts_data(examples: int, total: int, min_share: float) -> bool:
    """Return whether the examples that arrived are at least a share of all, and more than none."""
    # Divide rather than multiply: 0.07 * 100 is more than 7 in floating point.
    return examples > 0 and examples / total >= min_share


def choose_participation(success: FloatArray, clients: int, min_share: float) -> list[int]:
    """Return the numbers of clients, by oracle state, whose data suffices about as often as asked.

    The shares of k equal clients are uniform, so their sum is about normal with mean k/2 and
    variance k/12; it is to reach t = min_share * clients with the (W,) probabilities of `success`.
    With z the normal quantile of one of them, sqrt(k) = z / sqrt(12) + sqrt(z^2 / 12 + 2 t), and of
    the two whole numbers beside it the one with the nearer probability is taken.  The numbers never
    fall from one state to the next, also where the probabilities do.
    """
    numbers: list[int] = []
    for prob in np.clip(success, CERTAIN, 1.0 - CERTAIN).tolist():
        z = NormalDist().inv_cdf(prob) / math.sqrt(12.0)
        fewer = math.floor((z + math.sqrt(z * z + 2.0 * min_share * clients)) ** 2)
        counts = [min(max(count, *numbers[-1:], 1), clients) for count in (fewer, fewer + 1)]
        reached = [
            NormalDist(count / 2.0, math.sqrt(count / 12.0)).cdf(min_share * clients)
            for count in counts
        ]
        is_more = abs(1.0 - reached[1] - prob) < abs(1.0 - reached[0] - prob)
        numbers.append(counts[is_more])
    return numbers


def measure_federation(task: TrainingTask, section: FederationSection) -> FloatArray:
    """Return the success probabilities of a run's federation, by oracle state."""
    sizes, participation = tuple(map(len, task.clients)), tuple(section.participation)
    rounds = MEASURED_ROUNDS if section.acceptance == "data" else REPORTED_ROUNDS
    return _measure_sizes(sizes, participation, section.batch_size, section.min_share, rounds)


@lru_cache(maxsize=64)
def _measure_sizes(
    sizes: tuple[int, ...], present: tuple[int, ...], batch_size: int, share: float, rounds: int
) -> FloatArray:
    """Measure success once for all runs with clients of the same sizes."""
    generator = np.random.default_rng(MEASURING_SEED)
    return measure_success(
        np.array(sizes), present, batch_size, share, generator=generator, rounds=rounds
    )


def measure_success(
    sizes: IntArray,
    participation: Sequence[int],
    batch_size: int,
    min_share: float,
    *,
    generator: np.random.Generator,
    rounds: int = MEASURED_ROUNDS,
) -> FloatArray:
    """Estimate the (W,) probabilities that enough data arrives: g of this federation.

    Parameters
    ----------
    sizes : (n,) examples of each client
    participation : (W,) clients that take part, by oracle state
    min_share : share of all examples that is enough
    rounds : rounds drawn for each oracle state
    """
    at_once = max(DRAWS_AT_A_TIME // len(sizes), 1)
    most, total = count_batches(sizes, batch_size), int(sizes.sum())
    probs = []
    for count in participation:
        accepted, left = 0, rounds
        while left > 0:
            draws = min(at_once, left)
            keys = generator.random((draws, len(sizes)))
            # The clients with the smallest keys are a uniform choice of `count` clients.
            chosen = keys <= np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
            batches = generator.integers(0, most + 1, size=keys.shape) * chosen
            examples = count_examples(batches, sizes, batch_size).sum(axis=1)
            accepted += int(np.count_nonzero((examples > 0) & (examples / total >= min_share)))
            left -= draws
        probs.append(accepted / rounds)
    return np.array(probs)


@dataclass(frozen=True, eq=False)
class RecordedRounds:
    """Rounds replayed from a participation log.

    Parameters
    ----------
    clients, states : (T,) number of clients and oracle state of each round
    success, arrivals : (T,) whether a round was accepted and how many updates arrived, None if the
        log has no such column
    """

    clients: IntArray
    states: IntArray
    success: IntArray | None
    arrivals: IntArray | None


def read_recorded(settings: RunSettings) -> RecordedRounds | None:
    """Return the rounds of a run's participation log, None if the run has none."""
    section = settings.sections.federation
    if section.log is None:
        return None
    recorded = replay_log(read_log(section.log), section.participation)
    rounds, most = len(recorded.clients), int(recorded.clients.max())
    if rounds < settings.rounds:
        raise InvalidInput(
            f"{section.log} must have at least {settings.rounds} rounds for this run, got {rounds}"
        )
    if most > section.clients:
        raise InvalidInput(
            f"{section.log}: column clients must be at most {section.clients}, the number of "
            f"clients, got {most}"
        )
    return recorded


def replay_log(log: ParticipationLog, participation: Sequence[int]) -> RecordedRounds:
    """Return the rounds of a log, each with the oracle state of the nearest number of clients."""
    success, arrivals = (
        log.column(name).astype(np.int64) if name in log.columns else None
        for name in ("success", "arrival")
    )
    clients = log.column("clients")
    states = classify_clients(clients, participation)
    return RecordedRounds(clients.astype(np.int64), states, success, arrivals)


def classify_clients(clients: FloatArray, participation: Sequence[int]) -> IntArray:
    """Return the oracle states whose number of clients, increasing by state, is nearest."""
    middles = (np.array(participation[1:]) + np.array(participation[:-1])) / 2.0
    return np.searchsorted(middles, clients, side="left").astype(np.int64)


def draw_state(
    oracle: Oracle, recorded: RecordedRounds | None, before: int, round_number: int, *, seed: int
) -> int:
    """Draw the oracle state of a round from that of the round before, or replay a recorded one.

    In the first round `before` is -1, and the state has the stationary distribution.
    """
    if recorded is not None:
        return int(recorded.states[round_number - 1])
    is_first = before < 0
    probs = compute_stationary_distribution(oracle) if is_first else oracle.transition[before]
    draw = make_generator(seed, Stream.ORACLE, round_number).random()
    state = int(np.searchsorted(np.cumsum(probs), draw, side="right"))
    return min(state, oracle.num_states - 1)


@dataclass(eq=False)
class SimulatedParticipation:
    """Oracle states and attendance of a run by round; `sizes` are the clients' (n,) examples."""

    settings: RunSettings
    sizes: IntArray
    recorded: RecordedRounds | None = None
    _path: list[int] = field(default_factory=list, repr=False)

    def state_at(self, round_number: int) -> int:
        """Return the oracle state of a round; states of earlier rounds are drawn first."""
        oracle, seed = self.settings.problem.oracle, self.settings.seed
        while len(self._path) < round_number:
            before = self._path[-1] if self._path else -1
            number = len(self._path) + 1
            self._path.append(draw_state(oracle, self.recorded, before, number, seed=seed))
        return self._path[round_number - 1]

    def attend(self, round_number: int) -> Attendance:
        """Return who takes part in a round, and with how many batches."""
        return self.draw_clients(self.state_at(round_number), round_number)

    def draw_clients(self, oracle_state: int, round_number: int) -> Attendance:
        """Draw who takes part in a round with this oracle state, and with how many batches."""
        section = self.settings.sections.federation
        count = section.participation[oracle_state]
        if self.recorded is not None:
            count = int(self.recorded.clients[round_number - 1])
        generator = make_generator(self.settings.seed, Stream.PARTICIPATION, round_number)
        return draw_attendance(self.sizes, count, section.batch_size, generator=generator)
