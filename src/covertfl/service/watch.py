"""What a service shows of its rounds: their records, waits against the promise, warnings.

It also shows what eavesdroppers believe of the true model.  They are told which queries belong
together, as assumption E2 of the paper has it, so that neither does worse than one that has to find
out.

Nothing here is needed to go on after a crash, so it is written without waiting for the disk.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from covertfl.auditing.means import find_known_scheme
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.likelihood import LikelihoodEavesdropper
from covertfl.eavesdroppers.listeners import MajorityEavesdropper
from covertfl.runs.queue import OwedTask
from covertfl.runs.round import recount
from covertfl.runs.settings import DRIFT_ROUNDS
from covertfl.runs.state import Federation, RunState
from covertfl.schemes.scheme import PolicyInForce
from covertfl.service.changes import is_checked
from covertfl.service.data import find_limits
from covertfl.service.promise import find_drift, promise_wait
from covertfl.service.store import Store, StoredRequest
from covertfl.tasks.task import TrainingTask

# Rounds before the same warning is given again.
QUIET_ROUNDS = 1_000
# Rounds that a service which is started again shows to eavesdroppers; earlier ones are left out.
MOST_ROUNDS = 20_000
NOTHING = np.zeros(1, dtype=np.float32)


class Watch:
    """The records of a service's rounds.

    Parameters
    ----------
    federation : of the run as it began
    store : connection to the database, which need not be durable
    records : private records of the rounds so far
    holds_data : whether the service holds the clients' data
    rolls_back : whether versions hold all that a rollback needs
    """

    def __init__(
        self,
        federation: Federation,
        store: Store,
        records: Iterable[Mapping[str, Any]],
        *,
        holds_data: bool,
        rolls_back: bool = True,
    ) -> None:
        problem = federation.problem
        assert isinstance(problem, QueueProblem)
        self._base, self._problem, self._store = federation, problem, store
        self.holds_data, self._rolls_back = holds_data, rolls_back
        self._beliefs = Beliefs(federation, records)
        self._queries: tuple[int, ...] | None = None
        self._shown = -1  # refresh of the policy that is shown
        self._served: dict[int, int] = {}
        self._warned: dict[str, int] = {}
        self._keep_limits(federation.task)

    def _keep_limits(self, task: TrainingTask) -> None:
        limits = find_limits(task, holds_data=self.holds_data, rolls_back=self._rolls_back)
        self._store.keep_fact("limits", asdict(limits))

    def begin(self, task: TrainingTask, admitted: Sequence[StoredRequest]) -> None:
        """Note what later requests may name, if those that join a round have changed it.

        Parameters
        ----------
        task : with the rows that clients hold, or will once the scheme lets their data change
        """
        if any(request.body.kind == "context" for request in admitted):
            self._keep_limits(task)

    def advance(self, request: StoredRequest, task: OwedTask) -> None:
        """Note how far the request that is being served has come."""
        if self._served.get(request.id) != task.done:
            self._served = {request.id: task.done}
            self._store.advance(request.id, left=task.left, served=task.done)

    def count_served(self, request: StoredRequest) -> int:
        """Return the number of updates of a request whose last one has just been done."""
        return 1 + self._served.get(request.id, request.served)

    def finish(self, request: StoredRequest, round_number: int) -> None:
        """Add the wait of a request that is done to those of all."""
        known = self._store.read_fact("request_waits") or {"count": 0, "total": 0}
        waited = round_number - (request.admitted or round_number)
        waits = {"count": known["count"] + 1, "total": known["total"] + waited}
        self._store.keep_fact("request_waits", waits)

    def end(self, state: RunState) -> None:
        """Record a round."""
        _, arrival, accepted = state.seen[-1]
        trajectory = self._find_queried(state)
        self._beliefs.observe(state.round, trajectory)
        served = state.totals["served"]
        self._store.add_round(
            state.round,
            {
                "oracle_state": state.oracle_state,
                "backlog": state.queue.backlog,
                "arrival": int(self._problem.index_arrivals(arrival)),
                "action": "obfuscate" if trajectory else "learn",
                "accepted": accepted,
                "exposure": state.exposure,
                "learner_score": state.scores[0],
                "mean_wait": state.totals["wait"] / served if served else None,
                "rejected": sum(state.rejected.values()),
                **self._beliefs.describe(),
            },
        )
        self._warn(state)
        self._keep_policy(state)

    def _find_queried(self, state: RunState) -> int:
        """Return the trajectory that the round has queried."""
        before = self._queries
        self._queries = state.queries
        if before is None:
            before = (0,) * len(state.queries)
        grown = (now > then for now, then in zip(state.queries, before, strict=True))
        return next((place for place, is_grown in enumerate(grown) if is_grown), 0)

    def start(self, state: RunState) -> None:
        """Take note of the state that the service starts from."""
        self._queries = state.queries
        sections = self._base.settings.sections
        assert sections.service is not None
        self._store.keep_fact(
            "service",
            {
                "task": sections.task,
                "policy": self._find_policy(state).kind,
                "round_seconds": sections.service.round_seconds,
                "trajectories": self._beliefs.trajectories,
                "states": self._problem.oracle.num_states,
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            },
        )
        self._store.keep_fact("paused", None)
        self._keep_policy(state)

    def _warn(self, state: RunState) -> None:
        """Store a warning for what the latest rounds contradict, not again and again."""
        if not is_checked(state):
            return
        for kind, text in find_drift(self._problem, state.seen[-DRIFT_ROUNDS:]).items():
            if state.round - self._warned.get(kind, -QUIET_ROUNDS) >= QUIET_ROUNDS:
                self._store.warn(state.round, kind, text)
                self._warned[kind] = state.round

    def _keep_policy(self, state: RunState) -> None:
        """Store the policy in force, if it is another than before."""
        refreshed = self._base.scheme.find_refresh(state.scheme)
        if refreshed == self._shown:
            return
        self._shown = refreshed
        self._store.keep_fact("policy", self._describe_policy(self._find_policy(state)))

    def _find_policy(self, state: RunState) -> PolicyInForce:
        return self._base.scheme.find_policy(state.scheme, recount(state))

    def _describe_policy(self, found: PolicyInForce) -> dict[str, Any]:
        policy, problem = found.policy, found.problem
        assert isinstance(problem, QueueProblem)
        table = policy.table.tolist() if isinstance(policy, QueueTable) else None
        return {
            "kind": found.kind,
            "learn_prob": table,
            "arrival_sizes": [int(size) for size in self._problem.arrival_support],
            "limit": self._problem.limit,
            "arrival_rate": problem.load,
            "promised_wait": None if policy is None else promise_wait(problem, policy),
        }


class Beliefs:
    """The eavesdropper that counts queries, and the one that knows problem and policy.

    Parameters
    ----------
    federation : of the run
    records : private records of its rounds so far
    """

    def __init__(self, federation: Federation, records: Iterable[Mapping[str, Any]]) -> None:
        means = Means(scheme=find_known_scheme(federation))
        self._counting, self._scheme = MajorityEavesdropper(means), LikelihoodEavesdropper(means)
        self._places: dict[int, int] = {}
        self.trajectories = federation.settings.num_trajectories
        for record in records:
            self.observe(int(record["round"]), int(record["trajectory"]))

    def observe(self, round_number: int, trajectory: int) -> None:
        """Let both see which trajectory a round has queried."""
        place = self._places.setdefault(trajectory, len(self._places))
        query = SeenQuery(round_number, place, NOTHING, None)
        for eavesdropper in (self._counting, self._scheme):  # neither uses the order
            eavesdropper.observe(query)
            eavesdropper.forget_order()

    def describe(self) -> dict[str, float]:
        """Return the probability that each gives the true trajectory; 0 before it was queried."""
        place = self._places.get(0)
        if place is None:
            return {"counting": 0.0, "scheme": 0.0}
        found = {"counting": self._counting.belief(), "scheme": self._scheme.belief()}
        return {name: float(belief[place]) for name, belief in found.items()}
