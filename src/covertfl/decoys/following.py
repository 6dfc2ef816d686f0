"""A decoy that goes along with the replies it gets and is corrected by the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from covertfl.decoys.contradiction import Contradiction
from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.step_length import guess_length, limit_length, measure_noise
from covertfl.decoys.update_rule import FloatVector, UpdateRule, move_by
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Layout, Vector

LAST_LAYER_GAIN, OTHER_GAIN = 3.0, 0.9
LARGEST_LAST_LAYER = 0.1  # share of the model


class FollowingDecoy:
    """Moves with the replies to its own query, plus a correction that keeps it from learning.

    From where the replies lead, jobs fit the public set and contradict the learner
    (`contradiction`).  Their displacement, at most as long as the one that the replies ask for, is
    added: three times in the last layer and by 0.9 in the others.  The last layer decides what the
    model says but holds few of its numbers; so the correction wins there, while the others, of
    which a cosine mostly consists, keep the part of the replies that it does not undo, each
    client's own noise above all.  The sum is shortened to a plausible true move, known from the
    scatter of the replies; that changes no cosine.

    Hides: a client that compares its reply with the next move sees a clearly positive cosine, as on
    the true trajectory.  Moves are as long as true ones.  It names examples no better than
    guessing.

    Gives away: its loss on the public set is about the true model's, and its loss averaged over
    classes is that of guessing.  The cosine hardly falls as training gets on, while the true one
    does, because clients never come to agree with it.  While the learner is still untrained there
    is little to contradict: the decoy's output then ranks well, and where the public set has one
    class only it may name six examples in ten rightly.  With FedSGD its alignment is about zero.
    Clients train its hidden layers: an eavesdropper that keeps them and fits a last layer of its
    own starts from better features than random ones.

    Parameters
    ----------
    contradiction : what its jobs are made from
    rule : how replies and results become an update
    gains : (P,) factors of the correction
    batches : that a client holds
    """

    needs_replies = True

    def __init__(
        self, contradiction: Contradiction, rule: UpdateRule, gains: FloatVector, batches: int
    ) -> None:
        self._contradiction, self._rule = contradiction, rule
        self._gains, self._batches = gains, batches

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Jobs that begin where the replies lead."""
        return self._contradiction.plan(
            self._follow(view), view.learner, view.predict, view.moves, generator=generator
        )

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """The weights after following and correcting."""
        followed = self._follow(view)
        asked = followed.astype(np.float64) - view.weights
        correction = self._rule.displace(followed, results)
        correction = self._gains * limit_length(correction, float(np.linalg.norm(asked)))
        displacement = asked + correction
        return move_by(view.weights, limit_length(displacement, self._guess_length(view)))

    def _follow(self, view: DecoyView) -> Vector:
        return move_by(view.weights, self._rule.displace(view.weights, view.replies, view.examples))

    def _guess_length(self, view: DecoyView) -> float:
        displace = partial(self._rule.displace, view.weights)
        asked = float(np.linalg.norm(displace(view.replies, view.examples)))
        if self._rule.algorithm == "fedsgd":
            return asked
        noise = measure_noise(view.replies, view.examples)
        return guess_length(asked, noise, view.moves * self._batches)


def choose_gains(layout: Layout) -> FloatVector:
    """(P,) factors of the correction: more in the last layer, where that is a small part."""
    layer = layout.names[-1].rpartition(".")[0]
    is_last = {name: name.rpartition(".")[0] == layer for name in layout.names}
    parts = layout.split(np.zeros(layout.size, dtype=np.float32))
    gains = np.concatenate(
        [
            np.full(part.size, LAST_LAYER_GAIN if is_last[name] else OTHER_GAIN)
            for name, part in parts.items()
        ]
    )
    if np.mean(gains == LAST_LAYER_GAIN) > LARGEST_LAST_LAYER:
        return np.full(layout.size, OTHER_GAIN)
    return gains
