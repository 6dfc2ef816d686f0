"""Who takes part in a round, with how much data, and whether that is enough.

As in the paper's experiments the oracle state gives the number of clients, and each of them
contributes a uniformly random number of batches, from none to all it has.  A client that drew none
is absent, which is no fault.  A round is accepted by `data`, when the examples that arrived reach a
share of all examples, or by `model`, by a draw with the problem's success chance (deviation D19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog

# Draws behind a measured success chance: its standard error is at most 0.0012.
MEASURED_ROUNDS = 200_000
# Draws made at a time, so that many clients do not fill the memory.
DRAWS_AT_A_TIME = 4_000_000


@dataclass(frozen=True, eq=False)
class Attendance:
    """Who answers a query.

    Parameters
    ----------
    clients : (k,) numbers of the clients that are asked, in rising order
    batches : (k,) batches that each trains on; 0 for an absent one
    """

    clients: IntArray
    batches: IntArray


def count_batches(sizes: IntArray, batch_size: int) -> IntArray:
    """Batches that clients of some sizes have; examples that fill no batch are left over.

    A client with less than one batch has one short batch.
    """
    return np.where(sizes > 0, np.maximum(sizes // batch_size, 1), 0)


def count_examples(batches: IntArray, sizes: IntArray, batch_size: int) -> IntArray:
    """Examples in some batches of clients of some sizes."""
    return np.minimum(batches * batch_size, sizes)


def draw_attendance(
    sizes: IntArray, count: int, batch_size: int, *, generator: np.random.Generator
) -> Attendance:
    """Draw `count` clients and the batches of each, uniformly from none to all.

    Parameters
    ----------
    sizes : (n,) examples of all clients
    count : how many of them take part
    """
    if count > len(sizes):
        raise InvalidInput(f"participation must be at most {len(sizes)} clients, got {count}")
    clients = np.sort(generator.permutation(len(sizes))[:count])
    most = count_batches(sizes[clients], batch_size)
    return Attendance(clients, generator.integers(0, most + 1))


def accepts_data(examples: int, total: int, min_share: float) -> bool:
    """Whether the examples that arrived are at least a share of all; none are never enough."""
    # Divided, because 0.07 * 100 is more than 7 in floating point.
    return examples > 0 and examples / total >= min_share


def measure_success(
    sizes: IntArray,
    participation: Sequence[int],
    batch_size: int,
    min_share: float,
    *,
    generator: np.random.Generator,
    rounds: int = MEASURED_ROUNDS,
) -> FloatArray:
    """Chance that enough data arrives, by oracle state: g as this federation has it.

    Parameters
    ----------
    participation : clients that take part, by oracle state
    """
    at_once = max(DRAWS_AT_A_TIME // len(sizes), 1)
    most, total = count_batches(sizes, batch_size), int(sizes.sum())
    probs = []
    for count in participation:
        accepted, left = 0, rounds
        while left > 0:
            draws = min(at_once, left)
            keys = generator.random((draws, len(sizes)))
            # The clients with the smallest keys are a uniform choice of `count` of them.
            chosen = keys <= np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
            batches = generator.integers(0, most + 1, size=keys.shape) * chosen
            examples = count_examples(batches, sizes, batch_size).sum(axis=1)
            accepted += int(np.count_nonzero((examples > 0) & (examples / total >= min_share)))
            left -= draws
        probs.append(accepted / rounds)
    return np.array(probs)


def classify_clients(clients: FloatArray, participation: Sequence[int]) -> IntArray:
    """Oracle states of recorded rounds: the state whose number of clients is nearest.

    Parameters
    ----------
    clients : (T,) clients in each round
    participation : clients by oracle state, rising
    """
    middles = (np.array(participation[1:]) + np.array(participation[:-1])) / 2.0
    return np.searchsorted(middles, clients, side="left").astype(np.int64)


@dataclass(frozen=True, eq=False)
class RecordedRounds:
    """Participation replayed from a log.

    Parameters
    ----------
    clients : (T,) clients in each round
    states : (T,) oracle states
    success : (T,) whether the round was accepted, None where the log does not say
    arrivals : (T,) updates that arrived, None where the log does not say
    """

    clients: IntArray
    states: IntArray
    success: IntArray | None
    arrivals: IntArray | None

    def __len__(self) -> int:
        return len(self.clients)


def replay_log(log: ParticipationLog, participation: Sequence[int]) -> RecordedRounds:
    """Rounds of a log, with oracle states by the nearest number of clients."""
    clients = log.column("clients")
    return RecordedRounds(
        clients=clients.astype(np.int64),
        states=classify_clients(clients, participation),
        success=_optional_column(log, "success"),
        arrivals=_optional_column(log, "arrival"),
    )


def _optional_column(log: ParticipationLog, name: str) -> IntArray | None:
    return log.column(name).astype(np.int64) if name in log.columns else None
