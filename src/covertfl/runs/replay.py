"""Rounds replayed from a participation log, and the oracle state that a number of clients shows.

A replayed round has the state and the acceptance that `covertfl fit` gives it: by the cuts and the
least number of examples that are part of the problem, or by the log's column `success`.  A problem
that does not say what its states stand for takes the state whose number of clients is nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog, read_log
from covertfl.fitting.oracle import read_success
from covertfl.runs.settings import RunSettings


@dataclass(frozen=True, eq=False)
class RecordedRounds:
    """Rounds replayed from a participation log.

    Parameters
    ----------
    clients, states : (T,) number of clients and oracle state of each round
    examples : (T,) number of examples behind the replies, None if the log does not have it
    success : (T,) whether a round is accepted, None if the log does not determine it
    arrivals : (T,) how many updates arrived, None if the log has no such column
    """

    clients: IntArray
    states: IntArray
    examples: FloatArray | None = None
    success: BoolArray | None = None
    arrivals: IntArray | None = None

    def measure_success(self, num_states: int) -> FloatArray | None:
        """Return the shares of accepted rounds, (W,); None if unknown, also in a single state."""
        visits = np.bincount(self.states, minlength=num_states)
        if self.success is None or not np.all(visits):
            return None
        return np.bincount(self.states, self.success, minlength=num_states) / visits


def read_recorded(settings: RunSettings) -> RecordedRounds | None:
    """Return the rounds of a run's participation log, None if the run has none."""
    section = settings.sections.federation
    if section.log is None:
        return None
    states = settings.states
    log = read_log(section.log, gaps="refuse" if states is None or not states.gaps else "skip")
    recorded = replay_log(log, section.participation, states)
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


def replay_log(
    log: ParticipationLog, participation: Sequence[int], states: OracleStates | None = None
) -> RecordedRounds:
    """Return the rounds of a log with the states and the acceptance that a fit gives them.

    Parameters
    ----------
    participation : (W,) clients by oracle state, used if the problem has no `states`, or has other
        states than by clients and the log has no column `clients`

    Rounds with a blank cell are left out, like those without a line.
    """
    log = log.keep_complete(("clients", "examples", "success", "arrival", *_list_column(states)))
    if states is not None and not states.by_clients and "clients" not in log.columns:
        found = states.classify(log.column(states.column))
        clients: FloatArray = np.array(participation, dtype=np.float64)[found]
    else:
        clients = log.column("clients")
    least = None if states is None else states.min_examples
    success = None
    if least is not None or "success" in log.columns:
        success = read_success(log, least)
    for wrong, problem in (
        (clients != np.floor(clients), "clients must be a whole number to be replayed"),
        ((clients == 0) & (success is not None and success), "a success needs clients"),
    ):
        if np.any(wrong):
            place = int(np.argmax(wrong))
            raise InvalidInput(
                f"{log.path}: {problem}, got {clients[place]:g} in round {log.rounds[place]}"
            )
    return RecordedRounds(
        clients.astype(np.int64),
        classify_clients(clients, participation)
        if states is None
        else states.classify(log.column(states.column)),
        log.columns.get("examples"),
        success,
        log.column("arrival").astype(np.int64) if "arrival" in log.columns else None,
    )


def _list_column(states: OracleStates | None) -> list[str]:
    return [] if states is None else [states.column]


def infer_state(settings: RunSettings, clients: int) -> int:
    """Return the oracle state that a number of clients shows, for states formed by clients."""
    if settings.states is not None:
        return int(settings.states.classify(clients))
    return int(classify_clients(clients, settings.sections.federation.participation))


def classify_clients(clients: npt.ArrayLike, participation: Sequence[int]) -> IntArray:
    """Return the oracle states whose number of clients, increasing by state, is nearest."""
    middles = (np.array(participation[1:]) + np.array(participation[:-1])) / 2.0
    return np.searchsorted(middles, np.asarray(clients), side="left").astype(np.int64)
