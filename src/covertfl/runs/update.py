"""Which trajectory moves after a round, and how: equation (1) of the paper."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from covertfl.runs.federation import Federation
from covertfl.runs.learner import LearnerState
from covertfl.runs.policy import RunPolicy
from covertfl.runs.responder import Outcome, Query, Work
from covertfl.runs.state import RunState


def update_trajectories(
    federation: Federation, policy: RunPolicy, state: RunState, query: Query, outcome: Outcome
) -> Generator[Work, Any, LearnerState]:
    """Move the trajectory that was queried: equation (1) of the paper, the coupled updates.

    x_{k+1} = x_k - mu_k H(r_k, y_k, q_k), where H is zero for every trajectory but the queried one:

    - the true trajectory moves on the replies if the round is a success and an update is owed
      (some policies use every reply, or learn when nothing is owed);
    - a decoy moves by its own rule if the round is a success, or in any case if it is not gated.

    Parameters
    ----------
    policy : in force in this round
    state : before the round
    """
    if query.trajectory == 0:
        is_used = outcome.accepted or (policy.takes_every_reply and outcome.examples > 0)
        is_moving = is_used and (state.queue.backlog > 0 or policy.updates_unowed)
    else:
        is_moving = outcome.accepted or not federation.settings.sections.decoy.gated
    update = federation.responder.update(state.learner, query, outcome, is_moving=is_moving)
    return (yield from update)
