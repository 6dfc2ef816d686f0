"""An exact purge: the run as it would be if rows had never been there.

Training goes back to the last version before the rows were first used, and the rounds since are
played again without them: the same draws, the same requests in the same rounds.  What comes out is,
byte for byte, a run that never had the rows from that version on.  Nothing of it is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.arrays import IntArray
from covertfl.engines.simulated import run_changing
from covertfl.runs.actions import decide
from covertfl.runs.clients import ClientResponder
from covertfl.runs.files import read_rounds
from covertfl.runs.round import play_round
from covertfl.runs.rounds import refresh_policy
from covertfl.runs.state import RunState, unpack_state
from covertfl.schemes.policies import RunPolicy
from covertfl.schemes.replies import LearnerState
from covertfl.service.changes import RoundChanges
from covertfl.service.data import list_purged
from covertfl.service.store import StoredRequest
from covertfl.service.versions import read_version


class Interrupted(Exception):
    """The service is to end; a replay that was begun is begun again when it starts."""


@dataclass(frozen=True, eq=False)
class Replay:
    """The rounds of a service, to be played again.

    Parameters
    ----------
    folder : of the service
    changes : of its rounds
    is_ending : returns whether the service is to end
    """

    folder: Path
    changes: RoundChanges
    is_ending: Callable[[], bool] = lambda: False

    def forget(self, purge: StoredRequest, last: int) -> tuple[LearnerState, int] | None:
        """Return where the run would be after round `last` without the rows of an exact purge.

        With the trajectories comes the round in which the rows were first used; None if they never
        were, so that nothing changes.
        """
        first = self.find_first_use(purge, last)
        if first is None:
            return None
        versions = self.changes.store.list_versions()
        kept = [one for one in versions if one.withdrawn is None and one.round < first]
        start = max(kept, key=lambda one: (one.round, one.version))
        exact = [one.id for one in self.changes.store.list_changing() if one.body.exact]
        forgotten = frozenset(number for number in exact if number <= purge.id)
        released = {one.version: one.round for one in versions}
        return self._play(start.version, forgotten, released, last).learner, first

    def find_first_use(self, purge: StoredRequest, last: int) -> int | None:
        """Return the first round whose replies rest on rows of a purge, None if there is none.

        Rounds that an earlier exact purge has played again may have used other rows than their
        records say: there it is enough that a client which holds some of them took part.
        """
        replayed = self._find_replayed(purge)
        for record in itertools.islice(self._read_records(), last):
            number = int(record["round"])
            clients = self.changes.edit_responder(number)
            # Before it joins, the purge has taken nothing: these are the rows still held.
            rows = list_purged(clients.task, purge)
            if number <= replayed and len(rows):
                if any(np.isin(clients.task.clients[one], rows).any() for one in record["clients"]):
                    return number
                continue
            is_needed = clients.needs_replies(int(record["trajectory"]))
            if len(rows) and is_needed and _uses(clients, record, rows):
                return number
        return None

    def _find_replayed(self, purge: StoredRequest) -> int:
        """Return the last round that exact purges before this one may have played again."""
        earlier = (one for one in self.changes.store.list_changing() if one.id < purge.id)
        return max(((one.admitted or 1) - 1 for one in earlier if one.body.exact), default=0)

    def _read_records(self) -> Any:
        base = self.changes.base
        return read_rounds(
            self.folder,
            states=base.problem.oracle.num_states,
            trajectories=base.settings.num_trajectories,
        )

    def _play(
        self, version: int, forgotten: frozenset[int], released: dict[int, int], last: int
    ) -> RunState:
        """Return the state after round `last`, played from a version on."""
        checkpoint, base = read_version(self.folder, version), self.changes.base
        records = itertools.islice(self._read_records(), checkpoint.round)
        state = unpack_state(checkpoint, records, base.responder.replicas)
        states = {state.round: state.learner}

        def find_learner(number: int) -> LearnerState | None:
            if released.get(number, -1) in states:
                return states[released[number]]
            return self.changes.find_learner(number)

        changes = RoundChanges(base, self.changes.store, find_learner, forgotten)
        policy, kept = base.policy, set(released.values())
        while state.round < last:
            if self.is_ending():
                raise Interrupted
            state, policy = _play_again(changes, state, policy)
            if state.round in kept:
                states[state.round] = state.learner
        return state


def _play_again(
    changes: RoundChanges, state: RunState, policy: RunPolicy
) -> tuple[RunState, RunPolicy]:
    """Return the state after the next round, and the policy that was in force."""
    state = changes.change_state(state)
    federation = changes.change_federation(state)
    state, policy = refresh_policy(federation, state, policy)
    decision = decide(federation, state, policy)
    rounds = play_round(federation, state, policy, decision)
    return run_changing(rounds, lambda: federation).after, policy


def _uses(clients: ClientResponder, record: Any, rows: IntArray) -> bool:
    """Return whether a client of a round trained on some of the rows."""
    nothing = np.empty(0, dtype=np.float32)
    for client, batches in zip(record["clients"], record["batches"], strict=True):
        if batches and np.isin(clients.task.clients[client], rows).any():
            job = clients.make_client_job(client, batches, nothing, int(record["round"]))
            if np.isin(job.rows, rows).any():
                return True
    return False
