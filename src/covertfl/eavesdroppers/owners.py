"""Eavesdroppers with data: the public set (tier B) or rows unknown to the learner (tier D)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise, softmax
from covertfl.eavesdroppers.moves import Tally
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Float32Array, Labels, LocalJob, Vector


class OwnData:
    """An eavesdropper's labelled examples, and the kernel to evaluate and train weights on them.

    The eavesdropper's name is for the error message if the means have no data or no kernel.
    """

    def __init__(self, means: Means, name: str) -> None:
        if means.kernel is None or means.data is None:
            raise InvalidInput(f"the {name} eavesdropper needs labelled data and a model, got none")
        self.kernel, self.data = means.kernel, means.data
        self._batch_size, self._memory = means.batch_size, means.memory
        self._generator = np.random.default_rng([means.seed, len(means.data)])

    def predict(self, weights: Vector) -> Float32Array:
        """Return (n, outputs) logits of sent weights on the data; they are kept."""
        return self._memory.recall(
            "public", 0, weights, lambda: self.kernel.predict(weights, self.data.features)
        )

    def measure_loss(self, weights: Vector) -> float:
        """Return the mean cross entropy of weights on the data."""
        return compute_loss(self.kernel.predict(weights, self.data.features), self.data.labels)

    def train(self, weights: Vector) -> Vector:
        """Return the weights after one pass over the data."""
        rows = self._generator.permutation(len(self.data))
        seed = int(self._generator.integers(2**62))
        (trained,) = self.kernel.run([LocalJob(weights, self.data, rows, self._batch_size, seed)])
        return trained


def compute_loss(outputs: Float32Array, labels: Labels) -> float:
    """Return the mean cross entropy of (n, outputs) logits."""
    logits = outputs.astype(np.float64)
    if logits.shape[1] == 1:
        margin = logits[:, 0]
        return float(np.mean(np.logaddexp(0.0, margin) - labels * margin))
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(logits)), labels.astype(np.int64)]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))


def count_answers(outputs: Float32Array) -> FloatArray:
    """Return (classes,) shares of the inputs for which (n, outputs) logits answer each class."""
    if outputs.shape[1] == 1:
        positive = float(np.mean(outputs[:, 0] > 0.0))
        return np.array([1.0 - positive, positive])
    answers = np.bincount(outputs.argmax(axis=1), minlength=outputs.shape[1])
    shares: FloatArray = answers / len(outputs)
    return shares


def measure_evenness(shares: FloatArray) -> float:
    """Return the entropy of shares in units of the largest, that of equal shares."""
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return -float(np.sum(shares * logs)) / float(np.log(max(len(shares), 2)))


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


class AntiValidationEavesdropper(ValidationEavesdropper):
    """Eavesdropper that believes in the trajectory with the highest loss on the public set.

    A decoy is trained on the public set, on which it then does better than the truth.
    """

    threat = "sees every query, owns the public set and knows that decoys are trained on it"

    def belief(self) -> FloatArray:
        """Return beliefs by the loss of each trajectory's latest weights."""
        return softmax(len(self._own.data) * self._tally.last("loss", len(self._seen)))


class FineTuneEavesdropper(ValidationEavesdropper):
    """Eavesdropper that chooses as `ValidationEavesdropper` does and trains for one more pass."""

    threat = "sees every query, owns labelled data and trains on from what it caught"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._tuned: dict[bytes, Vector] = {}

    def estimate(self) -> Sequence[Vector]:
        """Return the chosen weights after one pass over its own data."""
        chosen = {weights.tobytes(): weights for weights in super().estimate()}
        # Weights are tuned once and kept for as long as they remain the choice.
        self._tuned = {
            key: self._tuned[key] if key in self._tuned else self._own.train(weights)
            for key, weights in chosen.items()
        }
        return tuple(self._tuned.values())


# Shares of one trajectory that are tried in a mixture with the mean of the others.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class EnsembleEavesdropper(Listener):
    """Eavesdropper that interpolates between the latest weights of all trajectories."""

    tier = "B"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "data")
    threat = "sees every query, owns labelled data and mixes trajectories"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "ensemble")
        super().__init__(means)
        self._best: tuple[FloatArray, Vector] | None = None

    def observe(self, query: SeenQuery) -> None:
        """Forget the mixtures if a trajectory has moved."""
        super().observe(query)
        if query.moved != 0.0:
            self._best = None

    def _find_best(self) -> tuple[FloatArray, Vector]:
        """Return shares and weights of the mixture with the lowest loss on its own data."""
        if self._best is None:
            mixtures = [self._mix(shares) for shares in self._list_shares()]
            _, shares, weights = min(mixtures, key=lambda mixture: mixture[0])
            self._best = shares, weights
        return self._best

    def _list_shares(self) -> list[FloatArray]:
        number = len(self._seen)
        if number == 1:
            return [np.ones(1)]
        rows = []
        # With two trajectories, the share of the first determines that of the second.
        for first in range(number if number > 2 else 1):
            for share in SHARES:
                row = np.full(number, (1.0 - share) / (number - 1))
                row[first] = share
                rows.append(row)
        return rows

    def _mix(self, shares: FloatArray) -> tuple[float, FloatArray, Vector]:
        mixed = (shares[:, np.newaxis] * np.stack(self._seen.latest)).sum(axis=0)
        weights = mixed.astype(np.float32)
        return self._own.measure_loss(weights), shares, weights

    def belief(self) -> FloatArray:
        """Return the shares of the trajectories in the best mixture."""
        return normalise(self._find_best()[0])

    def estimate(self) -> Sequence[Vector]:
        """Return the mixture with the lowest loss on its own data."""
        return (self._find_best()[1],)


class TrainAloneEavesdropper(Listener):
    """Eavesdropper that ignores the queries and trains on its own data: the baseline.

    It takes only the scale of its initial weights from the first query.
    """

    tier = "B"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "data")
    threat = "owns labelled data and does not listen"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "train-alone")
        super().__init__(means)
        self._generator = np.random.default_rng([means.seed, 1])
        self._weights: Vector | None = None

    def observe(self, query: SeenQuery) -> None:
        """Train for one more pass over its own data."""
        super().observe(query)
        if self._weights is None:
            self._weights = self._draw_weights(query.weights)
        self._weights = self._own.train(self._weights)

    def _draw_weights(self, like: Vector) -> Vector:
        """Return random weights, each parameter with the same standard deviation as in `like`."""
        layout = self._own.kernel.layout
        drawn = {
            name: (self._generator.normal(size=part.shape) * float(np.std(part))).astype(np.float32)
            for name, part in layout.split(like).items()
        }
        return layout.join(drawn)

    def belief(self) -> FloatArray:
        """Return equal beliefs, since it ignores the queries."""
        return normalise(np.ones(len(self._seen)))

    def estimate(self) -> Sequence[Vector]:
        """Return its own model."""
        assert self._weights is not None
        return (self._weights,)


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


class FreshLabelsEavesdropper(FreshListener):
    """Eavesdropper that believes in the trajectory with the lowest loss on `number` examples.

    A decoy is made to be worthless on data like the clients', and it cannot be trained on examples
    that the learner has never seen.
    """

    number: ClassVar[int] = 20
    threat = "sees every query and owns 20 labelled examples that the learner does not know"

    def measure_losses(self) -> list[float]:
        """Return the mean loss of each trajectory's latest weights on its own examples."""
        labels = self._fresh.labels[: self.number]
        return [compute_loss(outputs[: self.number], labels) for outputs in self._outputs]

    def belief(self) -> FloatArray:
        """Return the posterior, given its labels, of each trajectory's latest weights."""
        number = min(self.number, len(self._fresh))
        return softmax([-number * loss for loss in self.measure_losses()])


class FewFreshLabelsEavesdropper(FreshLabelsEavesdropper):
    """The same with 5 examples."""

    number = 5
    threat = "sees every query and owns 5 labelled examples that the learner does not know"


class ManyFreshLabelsEavesdropper(FreshLabelsEavesdropper):
    """The same with 100 examples."""

    number = 100
    threat = "sees every query and owns 100 labelled examples that the learner does not know"
