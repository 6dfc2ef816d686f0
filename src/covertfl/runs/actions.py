"""What is observed before the query of a round, and which trajectory is then queried.

Oracle states and arrivals are drawn from streams of their own (`seeding`): they do not depend on
the policy, nor on anything that the run has done.
"""

from __future__ import annotations

from dataclasses import dataclass

from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.participation import draw_state
from covertfl.runs.policy import RunPolicy
from covertfl.seeding import Stream, make_generator


@dataclass(frozen=True)
class Decision:
    """What was observed before a query, and what was decided.

    Parameters
    ----------
    arrival : number of updates that arrive in this round
    trajectory : 0 for the true trajectory, 1, 2, ... for a decoy
    decoy : the decoy that is queried, or would have been
    """

    observation: Observation
    arrival: int
    learn_prob: float
    trajectory: int
    decoy: int

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
        learning_queries=state.learning_queries,
    )
    learn_prob = float(policy.policy.learn_prob(observation))
    generator = make_generator(federation.settings.hidden_seed, Stream.ACTION, number)
    learns = generator.random() < learn_prob
    # Drawn in either case, so that the choice among decoys never shifts other draws.
    decoy = 1 + int(generator.integers(federation.responder.num_decoys))
    return Decision(observation, arrival, learn_prob, 0 if learns else decoy, decoy)
