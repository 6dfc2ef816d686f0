"""An eavesdropper with inputs like the clients', without their labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax
from covertfl.eavesdroppers.own_data import count_answers, measure_evenness
from covertfl.kernels.weights import Float32Array

# Log-odds for answers in equal shares against one and the same answer to all.
EVENNESS_ODDS = 20.0


class FreshListener(Listener):
    """Base class of eavesdroppers with examples that the learner does not know.

    `_outputs` has the outputs on them of each trajectory's latest weights.
    """

    tier = "D"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "fresh")

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None and means.fresh is not None
        self._kernel, self._fresh, self._memory = means.kernel, means.fresh, means.memory
        self._outputs: list[Float32Array] = []

    def observe(self, query: SeenQuery) -> None:
        """Evaluate the query's weights on its own examples."""
        super().observe(query)
        outputs = self._memory.recall(
            "fresh",
            0,
            query.weights,
            lambda: self._kernel.predict(query.weights, self._fresh.features),
        )
        self._outputs[query.trajectory : query.trajectory + 1] = [outputs]


class UnlabelledEavesdropper(FreshListener):
    """Eavesdropper that believes in the trajectory whose answers are most even.

    The truth answers each class about as often as the classes occur among the clients, in balanced
    tasks equally often; a decoy answers nearly all inputs alike.
    """

    threat = "sees every query and owns inputs like the clients', without labels"

    def measure_evenness(self) -> FloatArray:
        """Return the evenness of each trajectory's answers, between 0 and 1."""
        return np.array([measure_evenness(count_answers(outputs)) for outputs in self._outputs])

    def belief(self) -> FloatArray:
        """Return beliefs by the evenness of answers."""
        return softmax(EVENNESS_ODDS * self.measure_evenness())
