"""Local jobs of perceptrons: products, gradients and optimizer in compiled code (`_mlp.c`).

Each job runs in one thread, with its weights and optimizer state laid out for the products; jobs
are spread over the processor's cores.  The result of a job depends neither on the other jobs nor on
the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels import _mlp
from covertfl.kernels.compiled import count_threads, list_options, make_request, share_work
from covertfl.kernels.job import (
    Float32Array,
    Layout,
    LocalJob,
    LocalOptimizer,
    Loss,
    Vector,
    check_weights,
)

_ROWS_PER_THREAD = 1000


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer: outputs = weights @ inputs (+ biases)."""

    inputs: int
    outputs: int
    has_bias: bool = True


@dataclass(frozen=True)
class RectifierLayer:
    """A rectifier: the larger of 0 and each input."""


@dataclass(frozen=True)
class DropoutLayer:
    """Dropout of inputs in training, with `hash_dropout_mask`; the rate lies in [0, 1)."""

    rate: float


MlpLayer = LinearLayer | RectifierLayer | DropoutLayer


def _check_layers(layers: Sequence[MlpLayer]) -> list[LinearLayer]:
    """Return the linear layers; raise InvalidInput if the layers do not fit each other."""
    linear = [layer for layer in layers if isinstance(layer, LinearLayer)]
    if not linear or layers[-1] != linear[-1]:
        raise InvalidInput("the last layer of a perceptron must be linear")
    for before, after in itertools.pairwise(linear):
        if before.outputs != after.inputs:
            raise InvalidInput(
                f"a layer with {after.inputs} inputs cannot follow one "
                f"with {before.outputs} outputs"
            )
    return linear


def _list_gates(layers: Sequence[MlpLayer]) -> FloatArray:
    """Return (G, 4) gates: linear layers before it, 1 for dropout, rate, number of the dropout."""
    gates, place, dropouts = [], 0, 0
    for layer in layers:
        if isinstance(layer, LinearLayer):
            place += 1
        elif isinstance(layer, RectifierLayer):
            gates.append((place, 0, 0.0, 0))
        else:
            if not 0.0 <= layer.rate < 1.0:
                raise InvalidInput(f"a dropout rate must lie in [0, 1), got {layer.rate:g}")
            gates.append((place, 1, layer.rate, dropouts))
            dropouts += 1
    return np.array(gates, dtype=np.float64).reshape(-1, 4)


class MlpKernel:
    """Kernel for local jobs of a perceptron on the CPU.

    Parameters
    ----------
    layout : names of the parameters; weights (outputs, inputs) and biases (outputs,) by layer
    layers : from input to output; inputs of more than one dimension are flattened
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    threads : largest number of threads; None for one per core
    vector_length : of the widest vectors used, in floats: 4, 8 or 16
    """

    def __init__(
        self,
        layout: Layout,
        layers: Sequence[MlpLayer],
        loss: Loss,
        optimizer: LocalOptimizer,
        *,
        threads: int | None = None,
        vector_length: int = 16,
    ) -> None:
        linear = _check_layers(layers)
        sizes = [(layer.inputs, layer.outputs, int(layer.has_bias)) for layer in linear]
        needed = sum((inputs + bias) * outputs for inputs, outputs, bias in sizes)
        if layout.size != needed:
            raise InvalidInput(f"the layers have {needed} weights, the layout {layout.size}")
        if loss == "binary" and linear[-1].outputs != 1:
            raise InvalidInput(
                f"a model with a binary loss must have one output, got {linear[-1].outputs}"
            )
        self.layout = layout
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.threads = count_threads(threads)
        self._num_inputs, self._num_outputs = linear[0].inputs, linear[-1].outputs
        self._layers = np.array(sizes, dtype=np.int64)
        self._gates = _list_gates(layers)
        self._options = list_options(optimizer)
        self._vector_length = vector_length

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Return the weights after each job, or its gradient, whatever else is in the list."""
        results = [np.empty(self.layout.size, dtype=np.float32) for _ in jobs]
        for job in jobs:
            self._check_features(job.examples.features)
        requests = [
            make_request(job, result, self.layout, self.loss)
            for job, result in zip(jobs, results, strict=True)
        ]
        counter = np.zeros(1, dtype=np.int64)

        def work() -> None:
            _mlp.run(
                self._layers,
                self._gates,
                self._options,
                int(self.loss == "binary"),
                requests,
                counter,
                self._vector_length,
            )

        share_work(work, min(self.threads, len(jobs)))
        return results

    def _check_features(self, features: Float32Array) -> None:
        if features.dtype != np.float32 or math.prod(features.shape[1:]) != self._num_inputs:
            raise InvalidInput(
                f"features must be {self._num_inputs} 32-bit floats per example, "
                f"got shape {features.shape} of {features.dtype}"
            )

    def predict(self, weights: Vector, features: Float32Array) -> Float32Array:
        """Return (n, outputs) raw outputs (logits), without dropout."""
        check_weights(weights, self.layout)
        self._check_features(features)
        outputs = np.empty((len(features), self._num_outputs), dtype=np.float32)
        start, rows = np.ascontiguousarray(weights), np.ascontiguousarray(features)
        counter = np.zeros(1, dtype=np.int64)

        def work() -> None:
            _mlp.predict(
                self._layers, self._gates, start, rows, outputs, counter, self._vector_length
            )

        share_work(work, min(self.threads, len(features) // _ROWS_PER_THREAD + 1))
        return outputs
