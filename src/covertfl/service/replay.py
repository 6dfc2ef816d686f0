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
from covertfl.runs.files import read_rounds
from covertfl.runs.records import NoRecords
from covertfl.runs.round import Begun, run_rounds
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import make_client_job, run_together
from covertfl.runs.state import RunState, unpack_state
from covertfl.schemes.scheme import State
from covertfl.service.changes import RoundChanges
from covertfl.service.data import list_purged
from covertfl.service.store import StoredRequest
from covertfl.service.versions import read_version
from covertfl.tasks.task import TrainingTask


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

    def forget(self, purge: StoredRequest, last: int) -> tuple[State, int] | None:
        """Return where the run would be after round `last` without the rows of an exact purge.

        With the scheme's state comes the round in which the rows were first used; None if they
        never were, so that nothing changes.
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
        return self._play(start.version, forgotten, released, last).scheme, first

    def find_first_use(self, purge: StoredRequest, last: int) -> int | None:
        """Return the first round whose replies rest on rows of a purge, None if there is none.

        Rounds that an earlier exact purge has played again may have used other rows than their
        records say: there it is enough that a client which holds some of them took part.
        """
        replayed = self._find_replayed(purge)
        for record in itertools.islice(self._read_records(), last):
            number = int(record["round"])
            # What clients held may be as of an earlier round (`RunState.data`).
            clients = self.changes.edit_clients(int(record.get("data", number)))
            # Before it joins, the purge has taken nothing: these are the rows still held.
            rows = list_purged(clients.task, purge)
            if number <= replayed and len(rows):
                if any(np.isin(clients.task.clients[one], rows).any() for one in record["clients"]):
                    return number
                continue
            base = self.changes.base
            is_needed = base.scheme.uses_replies(int(record["trajectory"]))
            if len(rows) and is_needed and _uses(base.settings, clients.task, record, rows):
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
        start = unpack_state(checkpoint, records, base)
        states, kept = {start.round: start.scheme}, set(released.values())

        def find_target(number: int) -> State | None:
            if released.get(number, -1) in states:
                return states[released[number]]
            return self.changes.find_target(number)

        def keep(state: RunState) -> None:
            if state.round in kept:
                states[state.round] = state.scheme

        changes = RoundChanges(base, self.changes.store, find_target, forgotten)
        past = _Past(changes, last, self.is_ending)
        [final] = run_together([(base, run_rounds(base, NoRecords(), start, keep, past))])
        return final


@dataclass(frozen=True, eq=False)
class _Past:
    """The intake of rounds that are played again: the same requests in the same rounds."""

    changes: RoundChanges
    last: int
    is_ending: Callable[[], bool]

    def begin(self, state: RunState, *, is_repeated: bool) -> Begun | None:
        """Return what the next round starts from, None after the last."""
        if state.round >= self.last:
            return None
        if self.is_ending():
            raise Interrupted
        return self.changes.begin_round(self.changes.change_state(state))


def _uses(settings: RunSettings, task: TrainingTask, record: Any, rows: IntArray) -> bool:
    """Return whether a client of a round trained on some of the rows."""
    nothing, number = np.empty(0, dtype=np.float32), int(record["round"])
    for client, batches in zip(record["clients"], record["batches"], strict=True):
        if batches and np.isin(task.clients[client], rows).any():
            job = make_client_job(settings, task, client, batches, nothing, number)
            if np.isin(job.rows, rows).any():
                return True
    return False
