"""The noise bound as a choice: candidates for sigma, and how often each is met.

A reply counts as an update if its noise is at most sigma.  A looser bound accepts more rounds, and
needs more updates for the same accuracy (Theorem 1 of the paper); `planning.noise` weighs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from covertfl.decision.arguments import require_number
from covertfl.errors import InvalidInput

Step = Literal["constant", "decreasing"]
LARGEST_LEVEL = 1e100  # the bounds square it


@dataclass(frozen=True)
class NoiseChoice:
    """Candidates for the noise bound, and the constants of Theorem 1.

    Parameters
    ----------
    levels : candidates for sigma, positive, at most 1e100 and increasing
    success : for each level, the probability by oracle state that a learning query meets it
    gap : D = f(x_1) - f*, at least 0
    smoothness : L, positive
    epsilon : goal for the expected squared norm of the gradient, positive
    step : "constant", the best constant step, or "decreasing", steps 1/m
    confidence : probability of finishing that the smallest epsilon is found for, in (0, 1)
    """

    levels: tuple[float, ...]
    success: tuple[tuple[float, ...], ...]
    gap: float
    smoothness: float
    epsilon: float
    step: Step = "constant"
    confidence: float = 0.9

    def __post_init__(self) -> None:
        require_number(self.gap, "gap")
        require_number(self.smoothness, "smoothness", above=True)
        require_number(self.epsilon, "epsilon", above=True)
        for index, level in enumerate(self.levels):
            require_number(level, f"levels[{index}]", above=True)
            if level > LARGEST_LEVEL:
                raise InvalidInput(
                    f"levels[{index}] must be at most {LARGEST_LEVEL:g}, got {level:g}"
                )
        if not self.levels or any(after <= before for before, after in pairwise(self.levels)):
            raise InvalidInput(
                f"levels must be numbers that increase, at least one, got {list(self.levels)}"
            )
        if not 0.0 < self.confidence < 1.0:
            raise InvalidInput(f"confidence must lie between 0 and 1, got {self.confidence:g}")
        self._check_success()

    def _check_success(self) -> None:
        if len(self.success) != len(self.levels) or len({*map(len, self.success)}) != 1:
            raise InvalidInput(
                f"success must have {len(self.levels)} rows of one length, one for each level, "
                f"got rows of {', '.join(str(len(row)) for row in self.success) or 'none'}"
            )
        probs = np.array(self.success, dtype=np.float64)
        if not np.all((probs >= 0.0) & (probs <= 1.0)):
            raise InvalidInput("success must hold probabilities from 0 to 1")
        if np.any(np.diff(probs, axis=0) < 0.0):
            raise InvalidInput(
                "success must not fall from one level to the next: a looser bound on the noise "
                "accepts every reply that a tighter one does"
            )
