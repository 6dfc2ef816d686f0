"""What requests do to a run in a round: to the data, the queue and the models.

The scheme decides when: data of clients change only in rounds in which it allows that
(`Scheme.change`), and a rollback concerns all that clients are shown in the same round.  An exact
purge takes rows out of the past of the owner's model.  With a decoy this shows: the models that
clients are sent jump, and the owner's jumps further (docs/threat_model.md has the figures).

Everything here follows from the database, the files of versions and the state before the round, so
that a round can be repeated, and a stretch of rounds replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from covertfl.decision.problem import QueueProblem
from covertfl.runs.participation import Clients
from covertfl.runs.queue import OwedTask
from covertfl.runs.round import Begun
from covertfl.runs.settings import DRIFT_ROUNDS
from covertfl.runs.state import Federation, RunState
from covertfl.schemes.scheme import REFIT_ROUNDS, Cancellation, DataChange, Restart, Rollback, State
from covertfl.service.data import edit_task
from covertfl.service.promise import CHECK_EVERY, FEWEST, find_drift
from covertfl.service.store import Store, StoredRequest
from covertfl.tasks.task import TrainingTask

FindTarget = Callable[[int], State | None]


class RoundChanges:
    """Changes of a run by round.

    Requests that change the data are read once, and again when one joins or leaves the queue.

    Parameters
    ----------
    base : the federation with the data that it began with
    store : of the service
    find_target : returns the scheme's state of a version, None if it was withdrawn
    forgotten : purges that are in force from the first round on
    """

    def __init__(
        self,
        base: Federation,
        store: Store,
        find_target: FindTarget,
        forgotten: frozenset[int] = frozenset(),
    ) -> None:
        self.base, self.store, self.find_target = base, store, find_target
        self._forgotten = forgotten
        self._changing = store.list_changing()

    def change_state(self, state: RunState) -> RunState:
        """Return the state after a round with what the next one begins with.

        Tasks that were cancelled leave the queue; one that is served from now on may roll back and
        empty the optimizer's memory.
        """
        number = state.round + 1
        removed = self.store.list_removed(number)
        if removed:
            self._changing = self.store.list_changing()
            numbers = {request.id for request in removed}
            state = replace(state, queue=state.queue.leave(numbers))
            changed = self.base.scheme.change(state.scheme, Cancellation())
            state = state if changed is None else replace(state, scheme=changed)
        for request in self.store.list_begun(number):
            state = self._begin(state, request)
        return state

    def _begin(self, state: RunState, request: StoredRequest) -> RunState:
        if request.body.version is not None:
            target = self.find_target(request.body.version)
            if target is not None:
                state = roll_back(self.base, state, target)
        if request.body.restart:
            changed = self.base.scheme.change(state.scheme, Restart())
            state = state if changed is None else replace(state, scheme=changed)
        return state

    def begin_round(self, state: RunState) -> Begun:
        """Return what a round begins with: the clients' data, and who joins the queue."""
        number = state.round + 1
        admitted = self.store.list_admitted(number)
        if any(request.body.kind in ("purge", "context") for request in admitted):
            self._changing = self.store.list_changing()
        changed = self.base.scheme.change(state.scheme, DataChange())
        if changed is not None:
            state = replace(state, scheme=changed, data=number)
        joining = tuple(make_task(request, number) for request in admitted if request.size)
        return Begun(state, self.edit_clients(state.data), joining, self.is_outdated(state))

    def is_outdated(self, state: RunState) -> bool:
        """Return whether the policy is made anew: the latest rounds contradict its problem.

        One that was made from rounds is made anew from time to time.
        """
        section, problem = self.base.settings.sections.service, self.base.problem
        if section is None or not section.refit or not is_checked(state):
            return False
        assert isinstance(problem, QueueProblem)
        refreshed = self.base.scheme.find_refresh(state.scheme)
        is_old = refreshed > 0 and state.round - refreshed >= REFIT_ROUNDS
        return is_old or bool(find_drift(problem, state.seen[-DRIFT_ROUNDS:]))

    def edit_clients(self, number: int) -> Clients:
        """Return the clients with the data that the requests up to a round have left them."""
        clients = self.base.clients
        if not self._changing:
            return clients
        active = tuple(
            request
            for request in self._changing
            if request.is_active(max(number, request.admitted or 0))
            and (request.is_active(number) or request.id in self._forgotten)
        )
        return _edit(clients, _Edit(tuple(self._changing), active)) if active else clients


def roll_back(federation: Federation, state: RunState, target: State) -> RunState:
    """Return the state with all models where they are in `target`, a state of the scheme.

    The queue and everything that counts rounds stay as they are.
    """
    changed = federation.scheme.change(state.scheme, Rollback(target))
    assert changed is not None  # a rollback never waits
    models, score = federation.scheme.models(changed), federation.validation.score
    return replace(state, scheme=changed, scores=tuple(score(weights) for weights in models))


def is_checked(state: RunState) -> bool:
    """Return whether the latest rounds are compared with the problem after this one."""
    return state.round % CHECK_EVERY == 0 and len(state.seen) >= FEWEST


def make_task(request: StoredRequest, number: int) -> OwedTask:
    """Return the task of a request that joins the queue at the end of a round."""
    body, size = request.body, request.size
    if body.patience is None:
        return OwedTask(request.id, number, size, size)
    left = min(body.patience, size)
    return OwedTask(request.id, number, left, left, patience=body.patience, most=size)


@dataclass(frozen=True, eq=False)
class _Edit:
    """Requests that change the data; the same if they are the same requests."""

    changing: tuple[StoredRequest, ...]
    active: tuple[StoredRequest, ...]

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Edit) and self._key == other._key

    @property
    def _key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return _number(self.changing), _number(self.active)


def _number(requests: Sequence[StoredRequest]) -> tuple[int, ...]:
    return tuple(request.id for request in requests)


@lru_cache(maxsize=4)
def _edit(clients: Clients, edit: _Edit) -> Clients:
    """Return the clients with other data, the same object as long as nothing changes."""
    task: TrainingTask = edit_task(clients.task, edit.changing, edit.active)
    purged = [client for request in edit.active for client in request.body.clients]
    return Clients(task, frozenset(purged))
