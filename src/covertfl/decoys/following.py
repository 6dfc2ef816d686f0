"""A decoy that follows the replies to its queries and is corrected by the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decoys.adversarial import Contradiction
from covertfl.decoys.decoy import DecoyView
from covertfl.decoys.step_length import estimate_length, limit_length, measure_noise
from covertfl.decoys.update_rule import UpdateRule, move_by
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Layout, Vector

LAST_LAYER_GAIN, OTHER_GAIN = 3.0, 0.9
LARGEST_LAST_LAYER = 0.1  # as a share of the weights


class FollowingDecoy:
    """Decoy that moves with the replies to its own query, plus a correction against learning.

    Jobs that start where the replies lead fit the public set and contradict the learner
    (`Contradiction`).  Their displacement, limited to the length of the replies', is added with a
    factor of 3 in the last layer and 0.9 in the others.  The last layer determines the predictions
    but holds few of the weights; the correction prevails there, while the other layers, which
    dominate a cosine, keep the part of the replies that it does not cancel, above all each client's
    own noise.  The sum is shortened to the length of a plausible true move, estimated from the
    scatter of the replies; that changes no cosine.

    Hides: a client that compares its reply with the next move sees a clearly positive cosine, as on
    the true trajectory.  Moves are as long as true ones.  Its accuracy is that of guessing.

    Reveals: its loss on the public set is about the true model's, but its loss averaged over
    classes is that of guessing.  The cosine hardly falls as training proceeds, while the true one
    does, because clients never come to agree with the decoy.  While the learner is still untrained
    there is little to contradict: the decoy's outputs then rank well, and if the public set has a
    single class, its accuracy may reach 0.6.  With FedSGD its alignment is about zero.  Clients
    train its hidden layers: an eavesdropper that keeps them and fits a last layer of its own starts
    from better features than random ones.

    Parameters
    ----------
    gains : (P,) factors of the correction
    batches : number of batches that a client holds
    """

    needs_replies = True

    def __init__(
        self, contradiction: Contradiction, rule: UpdateRule, gains: FloatArray, batches: int
    ) -> None:
        self._contradiction, self._rule = contradiction, rule
        self._gains, self._batches = gains, batches

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return jobs that start where the replies lead."""
        return self._contradiction.plan(
            replace(view, weights=self._follow(view)), generator=generator
        )

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the replies' step and the correction."""
        followed = self._follow(view)
        asked = followed.astype(np.float64) - view.weights
        correction = self._rule.displace(followed, results[: self._contradiction.parts])
        correction = self._gains * limit_length(correction, float(np.linalg.norm(asked)))
        displacement = asked + correction
        return move_by(view.weights, limit_length(displacement, self._estimate_length(view)))

    def _follow(self, view: DecoyView) -> Vector:
        return move_by(view.weights, self._rule.displace(view.weights, view.replies, view.examples))

    def _estimate_length(self, view: DecoyView) -> float:
        asked = float(
            np.linalg.norm(self._rule.displace(view.weights, view.replies, view.examples))
        )
        if self._rule.algorithm == "fedsgd":
            return asked
        noise = measure_noise(view.replies, view.examples)
        return estimate_length(asked, noise, view.moves * self._batches)


def choose_gains(layout: Layout) -> FloatArray:
    """Return (P,) factors of the correction, larger in the last layer if that layer is small."""
    layer = layout.trained_names[-1].rpartition(".")[0]
    is_last = {name: name.rpartition(".")[0] == layer for name in layout.names}
    parts = layout.split(np.zeros(layout.size, dtype=np.float32))
    factors = {name: LAST_LAYER_GAIN if is_last[name] else OTHER_GAIN for name in parts}
    gains = np.concatenate([np.full(part.size, factors[name]) for name, part in parts.items()])
    if np.mean(gains == LAST_LAYER_GAIN) > LARGEST_LAST_LAYER:
        return np.full(layout.size, OTHER_GAIN)
    return gains
