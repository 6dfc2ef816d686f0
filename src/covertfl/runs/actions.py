"""What is observed before the query of a round, and which trajectory is then queried.

Oracle states and arrivals are drawn from streams of their own (`seeding`): they do not depend on
the policy, nor on anything that the run has done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.participation import draw_state
from covertfl.runs.policy import RunPolicy
from covertfl.seeding import Stream, make_generator

BROKEN = "the round that was interrupted cannot be repeated as decided"


@dataclass(frozen=True)
class Decision:
    """What was observed before a query, and what was decided.

    Parameters
    ----------
    arrival : number of updates that arrive in this round
    trajectory : 0 for the true trajectory, 1, 2, ... for a decoy
    """

    observation: Observation
    arrival: int
    learn_prob: float
    trajectory: int

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Decision:
        """Return the decision that `to_dict` described."""
        try:
            observation = Observation(**content["observation"])
            decision = cls(**{**content, "observation": observation})
        except (LookupError, TypeError) as error:
            raise InvalidInput(f"{BROKEN}: {error}") from error
        for name, value in {**asdict(observation), **content}.items():
            is_right = name in ("observation", "learn_prob") or (type(value) is int and value >= 0)
            if not is_right:
                raise InvalidInput(f"{BROKEN}: {name} must be a whole number from 0, got {value}")
        if type(decision.learn_prob) not in (int, float) or not 0 <= decision.learn_prob <= 1:
            raise InvalidInput(
                f"{BROKEN}: learn_prob must lie in [0, 1], got {decision.learn_prob}"
            )
        return decision

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        return {**vars(self), "observation": dict(vars(self.observation))}

    @property
    def learns(self) -> bool:
        """Whether the true weights are sent."""
        return self.trajectory == 0

    @property
    def oracle_state(self) -> int:
        """The oracle state of the round."""
        return int(self.observation.oracle_state)


def draw_arrival(federation: Federation, round_number: int) -> int:
    """Draw how many updates arrive in a round; zero in a finite horizon, where all are owed."""
    problem = federation.problem
    if isinstance(problem, FiniteHorizon):
        return 0
    if federation.arrivals is not None:
        return federation.arrivals.get(round_number, 0)
    if federation.recorded is not None and federation.recorded.arrivals is not None:
        return int(federation.recorded.arrivals[round_number - 1])
    draw = make_generator(federation.settings.hidden_seed, Stream.ARRIVAL, round_number).random()
    return int(problem.arrival_support[problem.draw_arrivals(draw)])


def decide(federation: Federation, state: RunState, policy: RunPolicy) -> Decision:
    """Observe the round that follows a state and choose the trajectory that is queried in it."""
    number, problem, seed = state.round + 1, federation.problem, federation.settings.seed
    oracle_state = federation.responder.observe(number)
    if oracle_state is None:
        before = state.oracle_state
        oracle_state = draw_state(problem.oracle, federation.recorded, before, number, seed=seed)
    arrival = draw_arrival(federation, number)
    if isinstance(problem, FiniteHorizon):
        index, rounds_left = 0, federation.settings.rounds - state.round
    else:
        index, rounds_left = int(problem.index_arrivals(arrival)), 0
    observation = Observation(
        oracle_state=oracle_state,
        backlog=state.queue.backlog,
        arrival=index,
        rounds_left=rounds_left,
        learning_queries=state.queries[0],
    )
    learn_prob = float(policy.policy.learn_prob(observation))
    if policy.is_exchangeable:
        trajectory = find_replica(federation, state)
    else:
        generator = make_generator(federation.settings.hidden_seed, Stream.ACTION, number)
        trajectory = 0 if generator.random() < learn_prob else 1
    return Decision(observation, arrival, learn_prob, trajectory)


def find_replica(federation: Federation, state: RunState) -> int:
    """Return the trajectory that the next round of a generation queries: 0 for the true one."""
    replicas = federation.responder.replicas
    assert replicas is not None
    generation = state.generation.enter(state.queue.backlog)
    slot = generation.find_slot(replicas.size, seed=federation.settings.hidden_seed)
    return replicas.find_trajectory(slot)
