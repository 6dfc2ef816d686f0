"""Local jobs for perceptrons: products, gradients and optimiser in one pass of compiled code.

A job is done by one thread from beginning to end, its weights and optimiser state laid out for
the products; jobs are spread over the processor's cores.  What comes out of a job depends neither
on the others nor on the number of threads.

Dropout masks are not drawn from a stream but hashed from (seed, step, layer, element), so that
every kernel, and a plain PyTorch loop, can use the same ones.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.kernels import _mlp
from covertfl.kernels.job import LocalJob, LocalOptimizer, Loss, check_job_form
from covertfl.kernels.weights import Layout, Vector

_WORD = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
LAYER_STRIDE = 0x9E3779B9
_ROWS_WORTH_A_THREAD = 1000


def _mix_long(value: int) -> int:
    """Finaliser of splitmix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _LONG
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _LONG
    return value ^ (value >> 31)


def _mix_words(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A bijection of 32-bit words that changes about half of the bits for any change."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> np.uint32(15))) * np.uint32(0x846CA68B)
    return words ^ (words >> np.uint32(16))


def derive_dropout_key(seed: int, step: int) -> tuple[int, int]:
    """The two 32-bit words from which the masks of one step are hashed.

    Parameters
    ----------
    seed : of the job
    step : number of the batch, from 0
    """
    # Arrays' integers would overflow where Python's do not.
    key = _mix_long((_mix_long(int(seed)) + (step + 1) * _GOLDEN) & _LONG)
    return key & _WORD, key >> 32


def derive_dropout_keys(
    seeds: npt.NDArray[np.uint64], steps: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint32]:
    """(..., 2) words of `derive_dropout_key` for many seeds and steps of one shape."""
    keys = _mix_longs(_mix_longs(seeds) + (steps + np.uint64(1)) * np.uint64(_GOLDEN))
    return np.stack([keys & np.uint64(_WORD), keys >> np.uint64(32)], axis=-1).astype(np.uint32)


def _mix_longs(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """As `_mix_long`."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def find_dropout_threshold(rate: float) -> int:
    """Elements whose hash lies below this are dropped; at most 2^32."""
    if not 0.0 <= rate <= 1.0:
        raise InvalidInput(f"a dropout rate must lie between 0 and 1, got {rate:g}")
    return math.floor(rate * 2.0**32)


def dropout_mask(
    seed: int, step: int, layer: int, shape: tuple[int, ...], rate: float
) -> npt.NDArray[np.float32]:
    """What a layer's inputs are multiplied with: 0 where dropped, 1 / (1 - rate) elsewhere.

    Parameters
    ----------
    seed : of the job
    step : number of the batch, from 0
    layer : which dropout of the forward pass, from 0
    shape : of the layer's inputs, batch first
    rate : chance that an element is dropped
    """
    return hash_dropout_mask(*derive_dropout_key(seed, step), layer, shape, rate)


def hash_dropout_mask(
    low: int, high: int, layer: int, shape: tuple[int, ...], rate: float
) -> npt.NDArray[np.float32]:
    """The mask of a layer in the step whose key is (low, high); see `dropout_mask`."""
    elements = np.arange(math.prod(shape), dtype=np.uint32) + np.uint32(low)
    layer_word = np.uint32((high + layer * LAYER_STRIDE) & _WORD)
    kept = _mix_words(_mix_words(elements) ^ layer_word) >= find_dropout_threshold(rate)
    scale = np.float32(1.0 / (1.0 - rate)) if rate < 1.0 else np.float32(0.0)
    return np.where(kept, scale, np.float32(0.0)).reshape(shape)


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer: outputs = weights @ inputs (+ biases).

    Parameters
    ----------
    inputs, outputs : numbers of them, at least 1
    has_bias : whether biases are added
    """

    inputs: int
    outputs: int
    has_bias: bool = True


@dataclass(frozen=True)
class Rectifier:
    """The larger of 0 and each input."""


@dataclass(frozen=True)
class DropoutLayer:
    """Drops inputs in training, with `dropout_mask`.

    Parameters
    ----------
    rate : chance that an element is dropped, in [0, 1)
    """

    rate: float


MlpLayer = LinearLayer | Rectifier | DropoutLayer


def _check_layers(layers: Sequence[MlpLayer]) -> list[LinearLayer]:
    """The linear layers, where the whole can be carried out."""
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


def _list_gates(layers: Sequence[MlpLayer]) -> npt.NDArray[np.float64]:
    """(G, 4) rectifiers and dropouts: linear layers before it, is it dropout, rate, its number."""
    gates, place, dropouts = [], 0, 0
    for layer in layers:
        if isinstance(layer, LinearLayer):
            place += 1
        elif isinstance(layer, Rectifier):
            gates.append((place, 0, 0.0, 0))
        else:
            if not 0.0 <= layer.rate < 1.0:
                raise InvalidInput(f"a dropout rate must lie in [0, 1), got {layer.rate:g}")
            gates.append((place, 1, layer.rate, dropouts))
            dropouts += 1
    return np.array(gates, dtype=np.float64).reshape(-1, 4)


def _list_options(optimizer: LocalOptimizer) -> npt.NDArray[np.float64]:
    name = ("sgd", "adam", "adamw").index(optimizer.name)
    if optimizer.name != "sgd" and not optimizer.eps > 0.0:
        raise InvalidInput(f"eps must be positive, got {optimizer.eps:g}")
    numbers = (name, optimizer.lr, optimizer.momentum, *optimizer.betas)
    return np.array((*numbers, optimizer.eps, optimizer.weight_decay), dtype=np.float64)


def count_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class MlpKernel:
    """Carries out local jobs of a perceptron on the CPU.

    Parameters
    ----------
    layout : names of the parameters; weights (outputs, inputs) and biases (outputs,) by layer
    layers : from input to output; inputs of more than one dimension are flattened
    loss : binary (mean of binary cross entropy with logits) or multiclass (mean cross entropy)
    optimizer : of the jobs
    threads : at most so many at once; as many as there are cores if None
    vector_length : widest vectors used, in floats: 4, 8 or 16
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
        if threads is not None and threads < 1:
            raise InvalidInput(f"threads must be at least 1, got {threads}")
        self.layout = layout
        self.loss: Loss = loss
        self.optimizer = optimizer
        self.threads = threads if threads is not None else count_cores()
        self._num_inputs, self._num_outputs = linear[0].inputs, linear[-1].outputs
        self._layers = np.array(sizes, dtype=np.int64)
        self._gates = _list_gates(layers)
        self._options = _list_options(optimizer)
        self._vector_length = vector_length

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        """Weights after each job, or its gradient; the same bits whatever else is in the list."""
        results = [np.empty(self.layout.size, dtype=np.float32) for _ in jobs]
        requests = [self._request(*pair) for pair in zip(jobs, results, strict=True)]
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

        self._share(work, len(jobs))
        return results

    def _request(
        self, job: LocalJob, result: Vector
    ) -> tuple[
        Vector, Vector, npt.NDArray[np.generic], npt.NDArray[np.int64], Vector, int, int, int
    ]:
        """A job as the compiled part takes it."""
        features, labels = job.examples.features, job.examples.labels
        wanted = np.float32 if self.loss == "binary" else np.int64
        self._check_weights(job.weights)
        self._check_features(features)
        if labels.dtype != wanted or labels.ndim != 1:
            raise InvalidInput(
                f"labels of a {self.loss} loss must be a vector of {np.dtype(wanted)}, "
                f"got shape {labels.shape} of {labels.dtype}"
            )
        check_job_form(job)
        return (
            np.ascontiguousarray(job.weights),
            np.ascontiguousarray(features),
            np.ascontiguousarray(labels),
            np.ascontiguousarray(job.rows, dtype=np.int64),
            result,
            int(job.batch_size),
            int(job.seed),
            int(job.work == "gradient"),
        )

    def _check_weights(self, weights: Vector) -> None:
        if weights.shape != (self.layout.size,) or weights.dtype != np.float32:
            raise InvalidInput(
                f"weights must be a vector of {self.layout.size} 32-bit floats, "
                f"got shape {weights.shape} of {weights.dtype}"
            )

    def _check_features(self, features: npt.NDArray[np.float32]) -> None:
        if features.dtype != np.float32 or math.prod(features.shape[1:]) != self._num_inputs:
            raise InvalidInput(
                f"features must be {self._num_inputs} 32-bit floats an example, "
                f"got shape {features.shape} of {features.dtype}"
            )

    def _share(self, work: Callable[[], None], portions: int) -> None:
        """Let up to `threads` threads take portions of the work until none is left."""
        threads = min(self.threads, portions)
        try:
            if threads <= 1:
                work()
                return
            with ThreadPoolExecutor(threads - 1) as pool:
                others = [pool.submit(work) for _ in range(threads - 1)]
                work()
                for other in others:
                    other.result()
        except ValueError as error:
            raise InvalidInput(str(error)) from None

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(n, outputs) raw outputs (logits), without dropout."""
        self._check_weights(weights)
        self._check_features(features)
        outputs = np.empty((len(features), self._num_outputs), dtype=np.float32)
        start, rows = np.ascontiguousarray(weights), np.ascontiguousarray(features)
        counter = np.zeros(1, dtype=np.int64)

        def work() -> None:
            _mlp.predict(
                self._layers, self._gates, start, rows, outputs, counter, self._vector_length
            )

        self._share(work, len(features) // _ROWS_WORTH_A_THREAD + 1)
        return outputs
