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

Guards against eavesdroppers that own data add offsets (`Offsets`) to what is sent, other ones in
each slot, that move slowly during the run.  Replies are taken back to the unperturbed state, so the
offsets are never part of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.kernels.weights import Float32Array, Layout, Vector

Guard = Literal["listener", "public", "client"]
SIZES = (2, 4, 8)  # numbers of trajectories
# Standard deviations of the offsets at both ends: of the last bias, and of the logarithms of the
# factors of the last layer and of the pivot.
DEVIATIONS = (0.05, 0.025, 0.0125)
PACE = 16  # updates from one end to the other


@dataclass(frozen=True, eq=False)
class Offsets:
    """What is added to the weights that a slot sends.

    It moves evenly from one end to the other during the first `PACE` updates, so that neither the
    level nor the trend of what a trajectory answers is its own.

    Parameters
    ----------
    first, last : (3,) at both ends: added to all biases of the last layer, and logarithms of the
        factors of the weights of the last layer and of the pivot
    """

    first: FloatArray
    last: FloatArray

    def find(self, updates: int) -> tuple[np.float32, np.float32, np.float32]:
        """Return the bias and the factors of the last layer and of the pivot after some updates."""
        share = min(updates / PACE, 1.0)
        bias, last, pivot = (1.0 - share) * self.first + share * self.last
        return np.float32(bias), np.float32(np.exp(last)), np.float32(np.exp(pivot))


def draw_offsets(trajectories: int, *, generator: np.random.Generator) -> tuple[Offsets, ...]:
    """Draw the offsets of all slots, independent and identically distributed."""
    drawn = generator.standard_normal((trajectories, 2, 3)) * DEVIATIONS
    return tuple(Offsets(first, last) for first, last in drawn)


@dataclass(frozen=True, eq=False)
class Replicas:
    """The K trajectories as images of the true one.

    Parameters
    ----------
    layout : names and shapes of the model's parameters
    pivot : name of the pivot's weights
    signs : (K, d) of the subgroup
    choice : slot of the true trajectory
    offsets : of the slots, none with guard `listener`
    mixes : whether the noise of replies to decoys enters the common step (guard `client`)
    """

    layout: Layout
    pivot: str
    signs: Float32Array
    choice: int
    offsets: tuple[Offsets, ...] = ()
    mixes: bool = False

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
        image = values.copy()
        self._reflect_in_place(image, trajectory)
        return image

    def _reflect_in_place(self, values: Float32Array, trajectory: int) -> None:
        # Splitting an axis makes a view, so that the values themselves are changed.
        shape = self.layout.shapes[self.layout.names.index(self.pivot)]
        columns = values[..., self.layout.locate(self.pivot)].reshape(*values.shape[:-1], *shape)
        columns *= self.signs[trajectory]
        columns += np.float32(0.0)  # a flipped zero would keep its sign

    def start(self, drawn: Vector) -> Vector:
        """Return the first true weights: those that were drawn, in the slot of the truth.

        So the first weights of slot 0 are those that were drawn, whichever slot is the truth's.
        """
        return self.reflect(drawn, self.choice)

    def send(self, true: Vector, trajectory: int, updates: int = 0) -> Vector:
        """Return the weights that a query of a trajectory sends after some updates."""
        image = self.reflect(true, trajectory)
        if self.offsets:
            added, last, pivot = self.offsets[trajectory ^ self.choice].find(updates)
            parts = self.layout.split(image)
            parts[self.pivot][...] *= pivot
            weights, bias = self._find_last()
            parts[weights][...] *= last
            if bias is not None:
                parts[bias][...] += added
        return image

    def _find_last(self) -> tuple[str, str | None]:
        """Return the names of the last layer's weights and bias."""
        shaped = zip(self.layout.trained_names, self.layout.shapes, strict=False)
        weights = [name for name, shape in shaped if len(shape) > 1][-1]
        bias = f"{weights.removesuffix('weight')}bias"
        return weights, bias if bias in self.layout.names else None

    def restore(
        self, values: Float32Array, sent: Vector, true: Vector, trajectory: int, *, moves: bool
    ) -> Float32Array:
        """Turn (..., P) replies to a trajectory into replies to the true weights; return them.

        They are changed in place: copies of large models take as long as the rest.

        Parameters
        ----------
        sent, true : (P,) what the query sent, and the unperturbed true weights
        moves : whether replies are weights, which move from where they started, or gradients
        """
        is_shifted = moves and bool(self.offsets)
        if is_shifted:
            values -= sent
        # Trajectory 0 is reflected as well, by ones: the work must not tell the truth from others.
        self._reflect_in_place(values, trajectory)
        if is_shifted:
            values += true
        return values


def draw_order(trajectories: int, *, generator: np.random.Generator) -> Sequence[int]:
    """Draw the order in which a generation queries the slots."""
    order: IntArray = generator.permutation(trajectories)
    return [int(slot) for slot in order]
