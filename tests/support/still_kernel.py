"""A kernel that trains nothing: what a run draws and decides does not depend on its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.kernels.job import Float32Array, Layout, LocalJob, Vector


@dataclass(eq=False)
class StillKernel:
    """Returns the weights of jobs as they are, and outputs of zero."""

    layout: Layout
    outputs: int = 10

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return copies: weights that are the same object have not moved."""
        return [job.weights.copy() for job in jobs]

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return zeros."""
        return np.zeros((len(features), self.outputs), dtype=np.float32)
