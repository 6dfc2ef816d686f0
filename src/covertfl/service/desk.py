"""The desk of a service: requests come to its run before a round, and leave it with a version.

Before a round the desk settles which requests join the queue, leave it or are served from now on
(`Store.open_round`), and changes the run accordingly (`RoundChanges`).  After a round, which is on
the disk then, it notes what was done and releases a version if a request is done.  A service that
was killed between the two finds in its folder what the desk had not noted.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from covertfl.kernels.job import Vector
from covertfl.models.export import find_version
from covertfl.runs.checkpoint import STATE
from covertfl.runs.round import Begun
from covertfl.runs.state import Federation, RunState, unpack_scheme
from covertfl.schemes.scheme import State
from covertfl.service.changes import RoundChanges, roll_back
from covertfl.service.data import list_purged, measure_membership
from covertfl.service.replay import Interrupted, Replay
from covertfl.service.store import Store, StoredRequest, Version
from covertfl.service.versions import read_version, remove_version, write_version
from covertfl.service.watch import Watch

# Waits for the next start; returns whether there is to be another round.
Wait = Callable[[], bool]


class Desk:
    """The intake of a service's run.

    Parameters
    ----------
    folder : of the service, and of its run
    federation : of the run as it began
    store : durable connection to the database
    watch : that is shown every round
    wait : waits for the start of a round
    is_ending : returns whether the service is to end
    """

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        store: Store,
        watch: Watch,
        *,
        wait: Wait,
        is_ending: Callable[[], bool],
    ) -> None:
        self._folder, self._base, self._store, self._watch = folder, federation, store, watch
        self._wait, self._is_ending = wait, is_ending
        self._changes = RoundChanges(federation, store, self._find_target)
        # Rows of contexts that came before the service was started again may be named, too.
        watch.begin(self._changes.edit_clients(sys.maxsize).task, store.list_changing())
        self._serving: StoredRequest | None = None
        self._latest = store.find_latest()

    def begin(self, state: RunState, *, is_repeated: bool) -> Begun | None:
        """Return what the next round begins with, None if the service is to end."""
        if not self._wait():
            return None
        self._settle(state)
        number = state.round + 1
        if not is_repeated:
            self._open(number)
        self._serving = self._store.find_head(number)
        try:
            state = self._forget(self._changes.change_state(state))
        except Interrupted:
            return None
        begun, admitted = self._changes.begin_round(state), self._store.list_admitted(number)
        self._watch.begin(self._changes.edit_clients(number).task, admitted)
        return begun

    def end(self, state: RunState) -> None:
        """Note what a round has done, and release a version if it has finished a request."""
        self._settle(state, is_new=True)
        self._watch.end(state)

    # --- before a round ---------------------------------------------------------------------------

    def _open(self, number: int) -> None:
        """Settle who is served; a rollback that owes no updates is done at once."""
        while True:
            head = self._store.open_round(number)
            if head is None or head.size > 0:
                return
            assert head.body.version is not None
            self._release_again(head, number)

    def _release_again(self, request: StoredRequest, number: int) -> None:
        """Release the version that a request rolls back to as the latest one."""
        versions = {one.version: one for one in self._store.list_versions()}
        target = versions[request.body.version or 0]
        version = replace(
            target,
            version=max(versions) + 1,
            parent=target.version,
            request=request.id,
            released=time.time(),
            withdrawn=None,
        )
        if target.withdrawn is None:
            source = find_version(self._folder, target.version) / STATE
            write_version(self._folder, version, source)
            self._store.release(version, finished=number)
            self._latest = version.version
        else:
            self._store.finish(request.id, number)

    def _find_target(self, version: int) -> State | None:
        """Return the scheme's state of a version, None if a purge has withdrawn it since."""
        for known in self._store.list_versions():
            if known.version == version and known.withdrawn is None:
                return unpack_scheme(read_version(self._folder, version), self._base.scheme)
        return None

    def _forget(self, state: RunState) -> RunState:
        """Test the rows of purges that join now, and take exact ones out of the past."""
        for request in self._store.list_admitted(state.round + 1):
            if request.body.kind != "purge" or not self._watch.holds_data:
                continue
            self._keep_membership(request, state, "before")
            if request.body.exact:
                state = self._replay(request, state)
        return state

    def _replay(self, request: StoredRequest, state: RunState) -> RunState:
        replay = Replay(self._folder, self._changes, self._is_ending)
        found = replay.forget(request, state.round)
        if found is None:
            return state
        target, first_use = found
        gone = [one.version for one in self._store.list_versions() if one.round >= first_use]
        self._store.withdraw(gone, request.id)
        for one in self._store.list_versions():
            if one.withdrawn is not None:
                remove_version(self._folder, one.version)
        return roll_back(self._base, state, target)

    def _keep_membership(self, request: StoredRequest, state: RunState, when: str) -> None:
        """Store how well the loss of the purged rows tells them from fresh ones."""
        held = self._changes.edit_clients((request.admitted or 1) - 1).task
        weights, rows = self._find_model(state), list_purged(held, request)
        found = measure_membership(self._base.validation, held, weights, rows)
        known = self._store.find(request.id).membership or {"before": None, "after": None}
        self._store.keep_membership(request.id, {**known, when: found})

    # --- after a round ----------------------------------------------------------------------------

    def _settle(self, state: RunState, *, is_new: bool = False) -> None:
        """Release the version of the request that was served, if its last update is done.

        Before a round this happens only if the service was killed before it could.
        """
        if self._latest is None:
            self._release(state, None)
        request = self._serving if is_new else self._store.find_head(state.round + 1)
        if request is None or request.state != "serving" or (request.begun or 0) > state.round:
            return
        tasks = [task for task in state.queue.tasks if task.task == request.id]
        if tasks:
            self._watch.advance(request, tasks[0])
            return
        if request.body.kind == "purge" and self._watch.holds_data:
            self._keep_membership(self._store.find(request.id), state, "after")
        self._release(state, request)

    def _release(self, state: RunState, request: StoredRequest | None) -> None:
        """Release the state after a round as a version."""
        parent = self._latest
        if request is not None and request.body.version is not None:
            parent = request.body.version
        version = Version(
            version=0 if self._latest is None else self._latest + 1,
            parent=parent,
            round=state.round,
            request=None if request is None else request.id,
            metrics=self._measure(state),
            released=time.time(),
        )
        write_version(self._folder, version)
        served = 0 if request is None else self._watch.count_served(request)
        self._store.release(version, finished=state.round, served=served)
        self._latest = version.version
        if request is not None:
            self._watch.finish(request, state.round)

    def _measure(self, state: RunState) -> Mapping[str, Any]:
        validation, model = self._base.validation, self._find_model(state)
        if not len(validation.examples):
            return {}
        scores = validation.measure(model)
        found = {
            "accuracy": scores.accuracy,
            "balanced_accuracy": scores.balanced_accuracy,
            "auc": scores.auc,
            "f1": scores.f1,
            "loss": validation.measure_loss(model),
        }
        return {
            name: value
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }

    def _find_model(self, state: RunState) -> Vector:
        """Return the owner's model."""
        return self._base.scheme.models(state.scheme)[0]
