"""Replicas: decoys that are images of the true weights under sign flips (docs/exchangeable.md).

The pivot is the first trained layer, linear in inputs that the public map has centred and rotated
(`tasks.public_map`, `tasks.pivot`).  For signs s of the axes, T_s multiplies column i of the
pivot's weights W by s_i: W -> W diag(s).  That is one multiplication by 1 or -1, exact in floating
point and its own inverse.  T_s maps training runs to training runs: it is what training would have
given, had the inputs been reflected.

The K = 2, 4 or 8 trajectories are the orbit of the true one under a subgroup H of order K.  Its
members are numbered so that the product of members a and b is member a ^ b (bitwise), and member 0
is the identity.  A *slot* is a place in the orbit: slot h shows the weights T_h x of a common
trajectory x, and the true trajectory is the one in slot `choice`, which is all that must stay
secret.  Seen from the truth, slot h is trajectory h ^ choice: 0 is the true one, and trajectory k
is its image under T_k.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from covertfl.kernels.weights import Float32Array, Layout, Vector

SIZES = (2, 4, 8)  # numbers of trajectories


@dataclass(frozen=True, eq=False)
class Replicas:
    """The K trajectories as images of the true one.

    Parameters
    ----------
    layout : names and shapes of the model's parameters
    pivot : name of the pivot's weights
    signs : (K, d) of the subgroup
    choice : slot of the true trajectory
    """

    layout: Layout
    pivot: str
    signs: Float32Array
    choice: int

    @property
    def size(self) -> int:
        """Number of trajectories, K."""
        return len(self.signs)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the signs, by which a resumed run knows that they are the same."""
        return hashlib.sha256(self.signs.tobytes()).hexdigest()

    def find_trajectory(self, slot: int) -> int:
        """Return the trajectory in a slot: 0 for the true one."""
        return slot ^ self.choice

    def reflect(self, values: Float32Array, trajectory: int) -> Float32Array:
        """Return the images of (..., P) weights, gradients or steps under T of a trajectory."""
        return self.restore(values.copy(), trajectory)

    def restore(self, values: Float32Array, trajectory: int) -> Float32Array:
        """Turn (..., P) replies to a trajectory into replies to the true weights; return them.

        They are changed in place: copies of large models take as long as the rest.  Trajectory 0 is
        reflected as well, by ones: the work must not tell the truth from others.
        """
        # Splitting an axis makes a view, so that the values themselves are changed.
        shape = self.layout.shapes[self.layout.names.index(self.pivot)]
        columns = values[..., self.layout.locate(self.pivot)].reshape(*values.shape[:-1], *shape)
        columns *= self.signs[trajectory]
        columns += np.float32(0.0)  # a flipped zero would keep its sign
        return values

    def start(self, drawn: Vector) -> Vector:
        """Return the first true weights: those that were drawn, in the slot of the truth.

        So the first weights of slot 0 are those that were drawn, whichever slot is the truth's.
        """
        return self.reflect(drawn, self.choice)
