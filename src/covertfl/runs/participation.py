"""Who takes part in a round, with how much data, and whether that is enough.

As in the paper's experiments, the oracle state determines the number of clients, and each client
contributes a uniformly random number of batches, from none to all it has.  A client that draws none
is absent, which is not an error.  A round is accepted by `data`, if the examples that arrive reach
a share of all examples, or by `model`, at random with the problem's success probability (deviation
D19 in docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog, read_log
from covertfl.runs.settings import FederationSection, RunSettings
from covertfl.tasks.task import TrainingTask

# Rounds drawn to measure a success probability: its standard error is at most 0.0012.
MEASURED_ROUNDS = 200_000
# The same if no policy is solved with it: the standard error is at most 0.0036.
REPORTED_ROUNDS = 20_000
# The measured probabilities belong to the federation, not to a run, so they have a fixed seed.
MEASURING_SEED = 20
# Draws made at a time, to limit the memory needed with many clients.
DRAWS_AT_A_TIME = 4_000_000


# --- a round ----------------------------------------------------------------------------------


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
    """Draw `count` clients and the batches of each, uniformly from none to all.

    Parameters
    ----------
    sizes : (n,) examples of all clients
    count : number of clients that take part
    """
    if count > len(sizes):
        raise InvalidInput(f"participation must be at most {len(sizes)} clients, got {count}")
    clients = np.sort(generator.permutation(len(sizes))[:count])
    most = count_batches(sizes[clients], batch_size)
    return Attendance(clients, generator.integers(0, most + 1))


def accepts_data(examples: int, total: int, min_share: float) -> bool:
    """Return whether the examples that arrived are at least a share of all, and more than none."""
    # Divide rather than multiply: 0.07 * 100 is more than 7 in floating point.
    return examples > 0 and examples / total >= min_share


# --- success probabilities --------------------------------------------------------------------


def measure_federation(task: TrainingTask, section: FederationSection) -> FloatArray:
    """Return the success probabilities of a run's federation, by oracle state."""
    return _measure_sizes(
        tuple(len(rows) for rows in task.clients),
        tuple(section.participation),
        section.batch_size,
        section.min_share,
        MEASURED_ROUNDS if section.acceptance == "data" else REPORTED_ROUNDS,
    )


@lru_cache(maxsize=64)
def _measure_sizes(
    sizes: tuple[int, ...],
    participation: tuple[int, ...],
    batch_size: int,
    min_share: float,
    rounds: int,
) -> FloatArray:
    """Measure success once for all runs with clients of the same sizes."""
    generator = np.random.default_rng(MEASURING_SEED)
    return measure_success(
        np.array(sizes), participation, batch_size, min_share, generator=generator, rounds=rounds
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
    """Estimate the probability that enough data arrives, by oracle state: g of this federation.

    Parameters
    ----------
    sizes : (n,) examples of each client
    participation : (W,) clients that take part, by oracle state
    min_share : share of all examples that is enough
    rounds : rounds drawn for each oracle state

    Returns
    -------
    (W,) shares of the rounds that are accepted
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


# --- participation from a log -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RecordedRounds:
    """Rounds replayed from a participation log.

    Parameters
    ----------
    clients : (T,) clients in each round
    states : (T,) oracle states
    success : (T,) whether the round was accepted, None if the log has no such column
    arrivals : (T,) updates that arrived, None if the log has no such column
    """

    clients: IntArray
    states: IntArray
    success: IntArray | None
    arrivals: IntArray | None

    def __len__(self) -> int:
        return len(self.clients)


def read_recorded(settings: RunSettings) -> RecordedRounds | None:
    """Return the rounds of a run's participation log, None if the run has none.

    Raises
    ------
    InvalidInput
        if the log is shorter than the run, or has more clients than the run
    """
    section = settings.sections.federation
    if section.log is None:
        return None
    recorded = replay_log(read_log(section.log), section.participation)
    if len(recorded) < settings.rounds:
        raise InvalidInput(
            f"{section.log} must have at least {settings.rounds} rounds for this run, "
            f"got {len(recorded)}"
        )
    most = int(recorded.clients.max())
    if most > section.clients:
        raise InvalidInput(
            f"{section.log}: column clients must be at most {section.clients}, the number of "
            f"clients, got {most}"
        )
    return recorded


def replay_log(log: ParticipationLog, participation: Sequence[int]) -> RecordedRounds:
    """Return the rounds of a log, each with the oracle state of the nearest number of clients."""
    clients = log.column("clients")
    return RecordedRounds(
        clients=clients.astype(np.int64),
        states=classify_clients(clients, participation),
        success=_find_column(log, "success"),
        arrivals=_find_column(log, "arrival"),
    )


def classify_clients(clients: FloatArray, participation: Sequence[int]) -> IntArray:
    """Return the oracle states whose number of clients is nearest.

    Parameters
    ----------
    clients : (T,) clients in each round
    participation : (W,) clients by oracle state, increasing
    """
    middles = (np.array(participation[1:]) + np.array(participation[:-1])) / 2.0
    return np.searchsorted(middles, clients, side="left").astype(np.int64)


def _find_column(log: ParticipationLog, name: str) -> IntArray | None:
    return log.column(name).astype(np.int64) if name in log.columns else None
