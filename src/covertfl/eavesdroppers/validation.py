"""An eavesdropper that evaluates queries on labelled data of its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import Tally
from covertfl.eavesdroppers.own_data import OwnData, compute_loss, count_answers, measure_evenness
from covertfl.kernels.job import Labels
from covertfl.kernels.weights import Float32Array

QUANTILES = (0.1, 0.5, 0.9)


class ValidationEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with the lowest loss on its own data.

    Its figures describe the outputs on these data: their mean, deviation and quantiles, the loss
    and the answers, each at the end, over the run and by its trend.
    """

    tier = "B"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "data")
    threat = "sees every query and owns labelled data (the public set)"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "validation")
        super().__init__(means)
        self._tally = Tally()
        self._names: tuple[str, ...] = ()

    def observe(self, query: SeenQuery) -> None:
        """Evaluate the query's weights on its own data, unless they repeat the previous ones."""
        super().observe(query)
        if query.moved is None or query.moved > 0.0:
            outputs = self._own.predict(query.weights)
            found = describe_outputs(outputs, self._own.data.labels)
            self._names = tuple(found)
            for name, value in found.items():
                self._tally.note(name, query.trajectory, value)

    def belief(self) -> FloatArray:
        """Return the posterior, given its labels, of each trajectory's latest weights."""
        return softmax(-len(self._own.data) * self._tally.last("loss", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return each description of the outputs at the end, its mean and its trend."""
        count, found = len(self._seen), {}
        for name in self._names:
            found[f"last {name}"] = self._tally.last(name, count)
            found[f"mean {name}"] = self._tally.average(name, count)
            found[f"trend of {name}"] = self._tally.trend(name, count)
        found["first mean output"] = self._tally.average("output", count, first=1)
        return found


def describe_outputs(outputs: Float32Array, labels: Labels) -> dict[str, float]:
    """Return figures of (n, outputs) logits on labelled examples.

    Of several classes, the output is that of the label less the mean of all.
    """
    if outputs.shape[1] == 1:
        margins = outputs[:, 0].astype(np.float64)
        positive = float(np.mean(labels))
        sides = {}
        if 0.0 < positive < 1.0:
            is_positive = labels > 0.5
            gap = np.mean(margins[is_positive]) - np.mean(margins[~is_positive])
            sides = {"gap": float(gap)}
        answers = {"positive answers": float(np.mean(margins > 0.0)), **sides}
    else:
        chosen = outputs[np.arange(len(outputs)), labels.astype(np.int64)]
        margins = chosen.astype(np.float64) - outputs.mean(axis=1, dtype=np.float64)
        answers = {"evenness": measure_evenness(count_answers(outputs))}
    quantiles = np.quantile(margins, QUANTILES)
    return {
        "loss": compute_loss(outputs, labels),
        "output": float(np.mean(margins)),
        "deviation": float(np.std(margins)),
        **{f"quantile {q:g}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)},
        **answers,
    }
